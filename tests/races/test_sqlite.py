"""SQLite: one file, several writers. They wait, no "database is locked"; a kill undoes all."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter

import pytest
from django.conf import settings
from django.db import connection

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle import (
    ClaimRequest,
    Completion,
    Failure,
    claim,
    complete,
    process_batch,
    sweep,
)
from deadletter.models import Message, PoisonRecord

from .actors import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.sqlite_only(reason="PostgreSQL has its own races"),
    pytest.mark.django_db(transaction=True),
]

#: A worker process: works until nothing is left and prints each message it executed. With `die_in`,
#: it stands still inside the transaction after that statement, for somebody to kill it.
WORKER = """
import os, sys, time
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
django.setup()
from deadletter import sql
from deadletter.lifecycle import ClaimRequest, Completion, Failure, claim, fail, process_batch

die_in = sys.argv[1] if len(sys.argv) > 1 else None
run = sql.run

def stand_still(connection, name, params, **options):
    rows = run(connection, name, params, **options)
    if name == die_in:
        print("inside", flush=True)
        time.sleep(600)
    return rows

sql.run = stand_still
print("ready", flush=True)
sys.stdin.readline()
if die_in:
    batch = claim(["q"], worker="killed")
    fail(batch.token, [Failure(id, error="x", permanent=True) for id in batch.ids])
report, idle = {}, 0
while idle < 5:
    batch = process_batch(worker=str(os.getpid()), claim=ClaimRequest(["q"], 5), **report)
    assert not batch.lost, batch.lost
    for message in batch:
        print(message.id, flush=True)
    if not report:
        print("took", flush=True)
        sys.stdin.readline()
    report = {"token": batch.token, "completions": [Completion(id) for id in batch.ids]}
    idle = 0 if batch else idle + 1
"""


def worker(*arguments: str) -> subprocess.Popen:
    path = connection.settings_dict["NAME"]
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DATABASE_URL": f"sqlite:///{path}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_batch(process: subprocess.Popen) -> list[str]:
    lines = []
    while (line := process.stdout.readline()) != "took\n":
        assert line, process.stderr.read()
        lines.append(line)
    return lines


def go(process: subprocess.Popen) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def test_processes_on_one_file_execute_every_message_once_and_meet_no_locked_database(queue):
    ids = send_many(
        [Outgoing("m", stream=f"s{n % 7}" if n % 2 else None) for n in range(300)], queue="q"
    )

    workers = [worker() for _ in range(3)]
    for process in workers:
        assert process.stdout.readline() == "ready\n"
        go(process)
    # SQLite is not fair: who writes last writes next. Each must have some before any goes on.
    executed = [first_batch(process) for process in workers]
    assert Message.objects.all().in_state("active").count() == 15
    for process in workers:
        go(process)
    outputs = [process.communicate(timeout=PATIENCE * 3) for process in workers]

    assert [process.returncode for process in workers] == [0, 0, 0], outputs
    executed += [out.splitlines() for out, _ in outputs]
    assert Counter(int(id) for each in executed for id in each) == Counter(ids)
    assert Message.objects.count() == 0
    assert sweep().repaired == 0


@pytest.mark.slow
def test_threads_on_one_file_send_and_settle_at_once(queue, repeated):
    queue.max_attempts = None
    queue.save()
    each, senders, workers = 30, 2, 3
    sent: list[int] = []
    executed: Counter[int] = Counter()
    order: dict[str, list[int]] = {f"s{n}": [] for n in range(senders)}
    problems: list[BaseException] = []
    news = threading.Event()
    sending = threading.Barrier(senders + workers, timeout=PATIENCE)

    def guarded(work):
        def run() -> None:
            try:
                sending.wait()
                work()
            except BaseException as error:  # noqa: BLE001 - looked at below
                problems.append(error)
            finally:
                connection.close()

        return threading.Thread(target=run, daemon=True)

    def produce(stream: str):
        def work() -> None:
            for _ in range(each):
                sent.append(send("m", queue="q", stream=stream).id)
                news.set()

        return work

    def consume(name: str):
        chance = random.Random(name)

        def work() -> None:
            report: dict = {}
            idle = 0
            while idle < 3:
                batch = process_batch(worker=name, claim=ClaimRequest(["q"], 4), **report)
                report = {"token": batch.token, "completions": [], "failures": [], "releases": []}
                idle = 0 if batch or len(sent) < each * senders else idle + 1
                if not batch:
                    news.wait(0.1)  # as a worker does: SQLite is not fair to who waits
                    news.clear()
                for run in batch.runs():
                    stop = chance.choice([len(run), len(run), 0])
                    for message in run[:stop]:
                        executed[message.id] += 1
                        order[message.stream].append(message.id)
                        report["completions"].append(Completion(message.id))
                    report["failures"] += [Failure(m.id, delay=0) for m in run[stop : stop + 1]]
                    report["releases"] += [message.id for message in run[stop + 1 :]]

        return work

    threads = [guarded(produce(stream)) for stream in order]
    threads += [guarded(consume(f"w{n}")) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 3)

    assert problems == []
    assert repeated == []
    assert executed == Counter(sent)
    assert all(ids == sorted(ids) for ids in order.values())
    assert Message.objects.count() == 0


@pytest.mark.parametrize("statement", ["claim", "fail", "quarantine", "delete"])
def test_a_writer_killed_inside_a_transaction_leaves_nothing_half_written(queue, statement):
    message = send("m", queue="q")
    process = worker(statement)
    assert process.stdout.readline() == "ready\n"
    go(process)
    assert process.stdout.readline() == "inside\n"
    locked = claim_is_locked_out()

    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)

    assert locked, "the killed process was not inside a transaction"
    row = Message.objects.get()
    assert PoisonRecord.objects.count() == 0
    assert row.id == message.id
    assert (row.attempts, row.history) == ((0, []) if statement == "claim" else (1, []))
    assert row.worker == (None if statement == "claim" else "killed")
    Message.objects.update(available_at=row.created_at)  # its lease runs out
    batch = claim(["q"])
    complete(batch.token, batch.ids)
    assert batch.ids == [message.id]


def claim_is_locked_out() -> bool:
    """Whether somebody holds the write lock of the file at this moment."""
    other = sqlite3.connect(connection.settings_dict["NAME"], timeout=0, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        return "locked" in str(error)
    else:
        other.execute("ROLLBACK")
        return False
    finally:
        other.close()
