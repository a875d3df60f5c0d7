"""More workers than the server has connections: they wait for each other, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest
from django.conf import settings

from tests.private_postgres import private_server
from tests.processes import Workers, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.postgresql_only(reason="SQLite has no connections to run out of"),
]

MESSAGES = 100
#: Each of them wants two connections and more; one is the test's own.
WORKERS = 3
CONNECTIONS = 6
SEND = f"""
import django
django.setup()
from deadletter import Outgoing, send_many
send_many([Outgoing("sample.work", {{"sleep": 0.01}}) for _ in range({MESSAGES})])
"""


def test_workers_that_get_no_connection_wait_and_every_message_is_handled(any_workers: Workers):
    limits = {"max_connections": str(CONNECTIONS), "superuser_reserved_connections": "0"}
    with private_server(**limits) as server:
        environment = {**os.environ, "DATABASE_URL": server.url}
        environment |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "LOG_LEVEL": "ERROR"}
        for command in (["manage.py", "migrate", "-v", "0"], ["-c", SEND]):
            subprocess.run(
                [sys.executable, *command], cwd=settings.BASE_DIR, env=environment, check=True
            )
        any_workers.url = server.url
        with psycopg.connect(server.url, autocommit=True) as watching:
            workers = [any_workers.start("--poll", 0.2) for _ in range(WORKERS)]
            any_workers.wait_for("finish", count=MESSAGES)

            def is_empty() -> bool:
                return watching.execute("SELECT count(*) FROM deadletter_message").fetchone() == (
                    0,
                )

            wait_until(is_empty)
            # Fewer than each of them would like to have.
            wait_until(lambda: server_said(server.home, "too many clients"))
            poison = watching.execute("SELECT count(*) FROM deadletter_poison").fetchone()
        assert [worker.process.poll() for worker in workers] == [None] * WORKERS
        codes = [worker.stop() for worker in workers]

    assert poison == (0,)
    assert len({line["id"] for line in any_workers.journal("finish")}) == MESSAGES
    assert codes == [0] * WORKERS


def server_said(home, words: str) -> bool:
    return words in (home / "log").read_text(errors="replace")
