"""A full disk: `send` raises, nothing is half written, and work goes on when there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from deadletter.models import Message
from tests.processes import Workers, database_url

from .conftest import Disk

pytestmark = pytest.mark.process

#: Sends until it is refused, then looks what is there. A row needs 8 KB.
FILL = """
import json
import django
django.setup()
from django.db import DatabaseError
from deadletter import send
from deadletter.models import Message
acked, error = [], ""
while not error and len(acked) < 2000:
    try:
        acked.append(send("sample.work", {"note": "x" * 8000}).id)
    except DatabaseError as raised:
        error = str(raised)
stored = list(Message.objects.order_by("id").values_list("id", flat=True))
print(json.dumps([acked, error, stored]))
"""

LEFT = """
import json
import django
django.setup()
from deadletter.models import Message, PoisonRecord
print(json.dumps([Message.objects.count(), PoisonRecord.objects.count()]))
"""


def run(url: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=settings.BASE_DIR,
        env={
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "LOG_LEVEL": "CRITICAL",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def small_database(transactional_db: None, vendor: str, small_disk: Disk) -> Iterator[str]:
    """The URL of a database whose messages are on the small disk."""
    if vendor == "sqlite":
        url = f"sqlite:///{small_disk.path}/small.sqlite3"
        run(url, "manage.py", "migrate", "--verbosity", "0")
        yield url
        return
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLESPACE small LOCATION '{tablespace(small_disk)}'")
        cursor.execute("ALTER TABLE deadletter_message SET TABLESPACE small")
    # Long texts are kept apart, in a table that moves with theirs; packed they would fit.
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE deadletter_message ALTER payload SET STORAGE EXTERNAL")
    yield database_url()
    Message.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE deadletter_message ALTER payload SET STORAGE EXTENDED")
        cursor.execute("ALTER TABLE deadletter_message SET TABLESPACE pg_default")
        cursor.execute("DROP TABLESPACE small")


def tablespace(disk: Disk) -> str:
    """Make a directory for the server's user, who must be able to reach it."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW data_directory")
        owner = Path(cursor.fetchone()[0]).stat()
    folder = disk.path / "tablespace"
    folder.mkdir()
    os.chown(folder, owner.st_uid, owner.st_gid)
    for parent in [disk.path, *disk.path.parents]:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return str(folder)


def test_a_full_disk_refuses_what_is_sent_and_work_goes_on_when_there_is_room(
    small_disk: Disk, small_database: str, any_workers: Workers
):
    acked, error, stored = json.loads(run(small_database, "-c", FILL))
    assert "full" in error or "No space left on device" in error
    assert len(acked) > 20
    assert stored == acked

    # The rest of the last page would do for some claims.
    rest = small_disk.path / "rest"
    rest.write_bytes(b"x" * small_disk.free())
    any_workers.url = small_database
    worker = any_workers.start("--poll", 0.2).wait_ready()
    worker.wait_for("database_away")
    rest.unlink()
    small_disk.grow()

    any_workers.wait_for("finish", count=len(acked))
    assert worker.stop() == 0
    assert sorted(line["id"] for line in any_workers.journal("finish")) == acked
    assert json.loads(run(small_database, "-c", LEFT)) == [0, 0]
