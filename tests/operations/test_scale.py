"""
Many records in one act: flat memory, interrupted in the middle, resumed, none twice.

6,000 in the suite, 200,000 with `DEADLETTER_MANY=200000 pytest -rP tests/operations/test_scale.py`.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import time
import tracemalloc

import pytest
from django.conf import settings
from django.db import connection

from deadletter import operations
from deadletter.models import AuditedMessage, AuditEntry, Message, PoisonRecord
from deadletter.operations import PoisonFilter
from tests.patience import PATIENCE
from tests.processes import database_url, wait_until

from .records import many_dead

MANY = int(os.environ.get("DEADLETTER_MANY", "6000"))
#: Bytes. A piece of 1,000 records takes 2 MB, 4.7 with Python 3.13 and Django 6.1; all 6,000
#: without pieces would take 10.
FLAT = 6_000_000

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


class Pulled(BaseException):
    """The plug, in the middle of an act."""


def test_an_interrupted_retry_goes_on_and_does_nothing_twice():
    many_dead(MANY, payload={"body": "x" * 200})
    records = set(PoisonRecord.objects.values_list("message_id", flat=True))
    half = MANY // 2

    def pull(looked_at: int) -> None:
        if looked_at >= half:
            raise Pulled

    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    began = time.monotonic()
    with pytest.raises(Pulled):
        operations.retry_matching(PoisonFilter(name="mail"), by="ann", progress=pull)
    done_first = Message.objects.count()
    rest = operations.retry_matching(PoisonFilter(name="mail"), by="ann")
    seconds = time.monotonic() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    print(f"{connection.vendor}: {MANY:,} in {seconds:.1f} s, peak {(peak - before) / 1e6:.1f} MB")
    assert done_first == half
    assert rest.done == MANY - half
    assert not PoisonRecord.objects.exists()
    assert set(Message.objects.values_list("pk", flat=True)) == records
    assert list(AuditEntry.objects.order_by("pk").values_list("done", flat=True)) == [
        half,
        MANY - half,
    ]
    assert AuditedMessage.objects.count() == MANY
    assert peak - before < FLAT


@pytest.mark.process
def test_a_killed_command_leaves_whole_pieces_and_the_same_command_goes_on(tmp_path):
    many_dead(MANY)
    connection.close()
    command = [sys.executable, "manage.py", "deadletter", "retry", "--all", "--yes"]
    options = {
        "cwd": settings.BASE_DIR,
        "env": {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": database_url(),
        },
        "stdin": subprocess.DEVNULL,
    }
    first = subprocess.Popen(command, **options)
    wait_until(lambda: first.poll() is not None or Message.objects.exists())
    first.kill()
    first.wait()
    done = Message.objects.count()
    assert (done % 1_000, done + PoisonRecord.objects.count()) == (0, MANY)

    second = subprocess.run(
        command, **options, capture_output=True, text=True, timeout=2 * PATIENCE
    )

    assert second.returncode == (0 if done < MANY else 1), second.stderr
    assert (Message.objects.count(), PoisonRecord.objects.count()) == (MANY, 0)
    assert AuditedMessage.objects.count() == MANY
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{connection.vendor}: {done:,} before the kill; peak of a process {children:.0f} MiB")
