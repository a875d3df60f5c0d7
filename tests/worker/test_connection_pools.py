"""Workers whose DATABASES say `"OPTIONS": {"pool": …}`: Django's own pool of connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
from django.conf import settings
from django.db import connection

from deadletter import Outgoing, send_many
from deadletter.models import Message, PoisonRecord
from tests.processes import Workers, database_url, wait_until
from tests.sample.models import Effect

pytest.importorskip("psycopg_pool")

pytestmark = pytest.mark.postgresql_only(reason="Django pools connections to PostgreSQL alone")

MESSAGES = 300
#: Seconds; every wait ends at its event.
PATIENCE = 120.0
POOL = '{"min_size": 1, "max_size": 5}'


def send_each(count: int) -> list[int]:
    """Send as many messages for atomic, plain and async handlers, all of which write."""
    names = ["sample.effect", "sample.orm", "sample.async_orm"]
    return send_many([Outgoing(names[n % 3], {}) for n in range(count)])


def assert_whole(workers: Workers, ids: list[int]) -> None:
    """Assert that each message was executed once, and its work is there once."""
    assert Counter(line["id"] for line in workers.journal("finish")) == Counter(ids)
    assert sorted(Effect.objects.values_list("message", flat=True)) == ids
    assert (Message.objects.count(), PoisonRecord.objects.count()) == (0, 0)


@pytest.mark.process
@pytest.mark.parametrize("run", range(int(os.environ.get("POOL_RUNS", "3"))))
def test_forked_workers_share_no_pooled_connection(workers: Workers, run: int):
    ids = send_each(MESSAGES)

    worker = workers.start(
        "--processes", 2, "--concurrency", 3, POOL="true", SAMPLE_ASKS_AT_IMPORT="1"
    )

    wait_until(lambda: not Message.objects.exists(), patience=PATIENCE, why=worker.text)
    assert worker.stop() == 0
    assert_whole(workers, ids)
    assert worker.lines("message_failed") == []
    assert worker.lines("worker_died") == []


@pytest.mark.process
def test_a_process_that_replaces_a_dead_one_shares_no_pooled_connection(workers: Workers):
    first = send_each(MESSAGES // 3)
    worker = workers.start(
        "--processes", 2, "--concurrency", 3, POOL="true", SAMPLE_ASKS_AT_IMPORT="1"
    )
    wait_until(lambda: not Message.objects.exists(), patience=PATIENCE, why=worker.text)

    os.kill(worker.children()[0], signal.SIGKILL)
    worker.wait_for("worker_died")
    worker.wait_for("worker_started", count=3)
    second = send_each(MESSAGES // 3)

    wait_until(lambda: not Message.objects.exists(), patience=PATIENCE, why=worker.text)
    assert worker.stop() == 0
    assert_whole(workers, [*first, *second])
    assert worker.lines("message_failed") == []


@pytest.mark.process
def test_handlers_have_the_whole_pool_for_themselves(workers: Workers):
    """As many handlers hold a connection at the same time as the pool has."""
    ids = send_many([Outgoing("sample.effect", {"gate": "all"}) for _ in range(4)])

    worker = workers.start("--concurrency", 4, POOL=POOL)

    workers.wait_for("start", count=4)
    wait_until(lambda: in_transaction() == 4, patience=PATIENCE, why=worker.text)
    workers.open("all")
    wait_until(lambda: not Message.objects.exists(), patience=PATIENCE, why=worker.text)
    assert worker.stop() == 0
    assert_whole(workers, ids)
    assert worker.lines("message_failed") == []


@pytest.mark.process
def test_a_worker_opens_three_connections_beside_the_pool(workers: Workers):
    send_many([Outgoing("sample.effect", {"gate": "all"}) for _ in range(4)])
    worker = workers.start("--concurrency", 4, POOL=POOL)
    wait_until(lambda: in_transaction() == 4, patience=PATIENCE, why=worker.text)
    worker.wait_for("worker_started")

    # The pump, the housekeeper and the listener, and four handlers; the pool has room for five.
    wait_until(lambda: listening() == 1, patience=PATIENCE, why=worker.text)
    assert sessions() <= 3 + 5
    workers.open("all")
    assert worker.stop() == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("pool", "concurrency", "words"),
    [
        ("true", 8, ["has 4 connections", "need 9", "'max_size': 9", "--concurrency 3"]),
        ('{"min_size": 1, "max_size": 5}', 5, ["has 5 connections", "need 6", "--concurrency 4"]),
        ('{"min_size": 1, "max_size": 1}', 1, ["has 1 connections", "need 2", "'max_size': 2"]),
    ],
)
def test_a_pool_with_fewer_connections_than_handlers_is_refused_at_the_start(
    workers: Workers, pool: str, concurrency: int, words: list[str]
):
    worker = workers.start("--concurrency", concurrency, POOL=pool)

    assert worker.wait(PATIENCE) == 1
    assert [word for word in words if word not in worker.text()] == []
    assert worker.lines("worker_started") == []


FORK = """
import django, os, sys
django.setup()
from django.db import connection, connections
from deadletter.worker import thread_connections

def pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]

before = pid()
assert connection._connection_pools
child = os.fork()
if not child:
    thread_connections.discard_inherited()
    assert not connection._connection_pools
    mine = pid()
    assert mine != before, "the child uses the session of its parent"
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == 0, code
assert pid() == before, "the child closed the session of its parent"
thread_connections.close_all()
assert not connection._connection_pools
"""


@pytest.mark.process
def test_a_forked_process_neither_uses_nor_closes_what_its_parent_has_open(transactional_db):
    """Also when the parent did not close it: a thread of the application may have opened it."""
    done = subprocess.run(
        # Since 3.12 Python warns of forks beside other threads, here those of the parent's pool.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        cwd=settings.BASE_DIR,
        env={
            **os.environ,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "POOL": "true",
        },
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def sessions() -> int:
    """Count the sessions of others."""
    return _count("true")


def listening() -> int:
    return _count("query = 'LISTEN deadletter'")


def in_transaction() -> int:
    """Count sessions of others that stand in a transaction."""
    return _count("state = 'idle in transaction'")


def _count(condition: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            f" AND pid <> pg_backend_pid() AND {condition}"
        )
        return cursor.fetchone()[0]
