"""A worker behind pgbouncer in transaction mode: nothing rests on a session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.conf import settings
from django.db import connection

from deadletter import Outgoing, send, send_many
from deadletter.models import Message, PoisonRecord, Queue
from tests import pooler
from tests.processes import Workers, database_url, wait_until

pytestmark = [
    pytest.mark.postgresql_only(reason="there is no pooler for SQLite"),
    pytest.mark.skipif(bool(pooler.missing()), reason=pooler.missing() or "is there"),
]

#: The parts of the suite that use the verbs most. Not the races: they tell who waits for whom by
#: the numbers of server processes, which a pooler changes.
REPRESENTATIVE = [
    "tests/lifecycle/test_settles.py",
    "tests/lifecycle/test_stream_claims.py",
    "tests/lifecycle/test_process_batch.py",
]


SENDERS = 40
EACH = 15
#: Senders with a connection each, all at once: in autocommit, in a transaction of Django's, and in
#: one that the application began in SQL.
SEND = f"""
import django, json, threading
django.setup()
from django.db import connection, transaction
from deadletter import send
errors, ids, together = [], [], threading.Barrier({SENDERS})

def sender(number):
    try:
        connection.ensure_connection()
        together.wait()
        for n in range({EACH}):
            ids.append(send("job", {{"n": n}}).id)
            with transaction.atomic():
                ids.append(send("job", {{"n": n}}).id)
                ids.append(send("job", {{"n": n}}).id)
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                ids.append(send("job", {{"n": n}}).id)
                cursor.execute("COMMIT")
    except BaseException as error:
        errors.append(f"{{type(error).__name__}}: {{error}}")
    finally:
        connection.close()

threads = [threading.Thread(target=sender, args=[n]) for n in range({SENDERS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([errors, ids]))
"""


@pytest.fixture
def pooled(transactional_db: None, workers: Workers) -> Iterator[Workers]:
    """Workers that reach the test database only through the pooler."""
    with pooler.pooler(database_url()) as url:
        workers.url = url
        yield workers


def test_killed_workers_behind_a_pooler_lose_nothing_and_keep_every_stream_in_order(pooled):
    Queue.objects.filter(name="default").update(cooldown=timedelta(seconds=0.1), max_attempts=None)
    plain = send_many([Outgoing("sample.work", {"sleep": 0.005}) for _ in range(200)])
    streamed = send_many([Outgoing("sample.work", stream=f"s{n % 5}") for n in range(100)])
    first = pooled.start("--processes", 2, "--lease", 2).wait_ready()
    pooled.wait_for("finish", count=50)

    first.signal_group(signal.SIGKILL)
    first.wait()
    pooled.start("--lease", 2)

    wait_until(lambda: not Message.objects.exists(), why=lambda: pooled.report("left"))
    finished = [line["id"] for line in pooled.journal("finish")]
    assert set(finished) == {*plain, *streamed}
    assert PoisonRecord.objects.count() == 0
    for number in range(5):
        of_stream = [id for id in dict.fromkeys(finished) if id in streamed[number::5]]
        assert of_stream == streamed[number::5]


@pytest.mark.parametrize("size", [3, 10])
def test_forty_senders_behind_a_pooler_store_every_message(transactional_db, size):
    with pooler.pooler(database_url(), size=size) as url:
        done = subprocess.run(
            [sys.executable, "-c", SEND],
            cwd=settings.BASE_DIR,
            env={
                **os.environ,
                "DATABASE_URL": url,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "LOG_LEVEL": "ERROR",
            },
            capture_output=True,
            text=True,
        )

    assert done.returncode == 0, done.stderr
    errors, ids = json.loads(done.stdout)
    assert errors == []
    assert len(ids) == SENDERS * EACH * 4
    assert sorted(ids) == list(Message.objects.order_by("id").values_list("id", flat=True))


def test_a_worker_that_cannot_be_notified_says_so_once_and_looks_by_itself(pooled):
    worker = pooled.start("--processes", 1, "--poll", 0.5, "--name", "w").wait_ready()

    (line,) = worker.wait_for("worker_not_notified")
    message = send("sample.work")

    assert line["worker"] == "w"
    pooled.wait_for("finish", id=message.id)
    assert worker.stop() == 0
    assert len(worker.lines("worker_not_notified")) == 1


def test_a_worker_without_a_pooler_has_nothing_to_say_about_it(workers):
    worker = workers.start("--poll", 600)
    worker.wait_ready()
    message = send("sample.work")

    workers.wait_for("finish", id=message.id)

    assert worker.stop() == 0
    assert worker.lines("worker_not_notified") == []


def test_the_verbs_are_the_same_behind_a_pooler(transactional_db):
    """The tests themselves, with the pooler between them and a database of their own."""
    behind = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path="/pooled"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    # Not dropped by them: the pooler keeps its connections to it.
    command += ["--reuse-db", *REPRESENTATIVE]
    try:
        with pooler.pooler(behind, size=20) as url:
            done = subprocess.run(
                command,
                cwd=settings.BASE_DIR,
                env={**os.environ, "DATABASE_URL": url},
                capture_output=True,
                text=True,
            )
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS test_pooled WITH (FORCE)")

    assert done.returncode == 0, done.stdout[-4000:]
