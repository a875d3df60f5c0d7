"""A process that is replaced: why it ends, what follows it, and its running handlers."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from deadletter import FailureReason, send
from deadletter.models import Message, PoisonRecord, Queue, WorkerProcess
from deadletter.worker.crash_ledger import CrashLedger, Phase
from deadletter.worker.housekeeper import draining_name
from tests.processes import Worker, Workers, _can_write, wait_until

from .rows import leases, rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

#: Nothing here waits that long; a loaded machine may.
PATIENCE = 90.0


def state(pid: int) -> str:
    """Return what the system says of a process, as a letter: T when it is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def is_alive(pid: int) -> bool:
    return state(pid) != "Z"


def wait(workers: Workers, condition: Any) -> Any:
    return wait_until(condition, patience=PATIENCE, why=lambda: workers.report("not seen"))


def start_one(workers: Workers, *arguments: Any) -> tuple[Worker, str, int]:
    """Start two processes of which one is suspended; return the name and id of the other one."""
    worker = workers.start("--processes", 2, "--poll", 0.1, "--name", "w", *arguments)
    wait(workers, lambda: WorkerProcess.objects.count() == 2)
    other = WorkerProcess.objects.get(name="w/2").pid
    while True:
        os.kill(other, signal.SIGSTOP)
        # Each of its threads: they do not stop all at once.
        tasks = [int(path.name) for path in Path(f"/proc/{other}/task").iterdir()]
        wait(workers, lambda tasks=tasks: all(state(task) in "TZ" for task in tasks))
        if connection.vendor != "sqlite" or _can_write():
            break
        os.kill(other, signal.SIGCONT)
        time.sleep(0.02)
    return worker, "w/1", WorkerProcess.objects.get(name="w/1").pid


def wake(worker: Worker) -> None:
    worker.signal_group(signal.SIGCONT)


def pids(worker: Worker, name: str) -> list[int]:
    return [line["pid"] for line in worker.lines("worker_started", worker=name)]


@pytest.mark.parametrize("code", [0, 75], ids=["as after a drain", "as for a recycle"])
def test_a_handler_that_exits_is_a_death_whatever_its_exit_code(workers: Workers, code: int):
    Queue.objects.filter(name="default").update(max_attempts=3)
    bad = [send("sample.crash", {"how": "exit", "code": code}).pk for _ in range(2)]
    worker = workers.start("--processes", 2, "--concurrency", 1, "--poll", 0.1)

    wait(workers, lambda: PoisonRecord.objects.count() == 2)

    assert sorted(PoisonRecord.objects.values_list("message_id", "attempts")) == [
        (id, 3) for id in bad
    ]
    reasons = set(PoisonRecord.objects.values_list("last_failure_reason", flat=True))
    assert reasons == {FailureReason.WORKER_LOST}
    deaths = worker.wait_for("worker_died", count=6)
    assert {line["reason"] for line in deaths} == {f"exit code {code}"}
    # And the worker works on.
    good = send("sample.work").pk
    workers.wait_for("finish", id=good)
    assert worker.stop() == 0


def test_one_child_that_is_told_to_stop_finishes_and_is_replaced(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--processes", 2, "--grace", 60, "--poll", 0.1)
    [start] = workers.wait_for("start", id=id)
    [name] = [line["worker"] for line in worker.lines("worker_started", pid=start["pid"])]

    os.kill(start["pid"], signal.SIGTERM)
    worker.wait_for("worker_stopping", worker=name)
    workers.open("end")

    wait(workers, lambda: len(pids(worker, name)) == 2)
    assert len(workers.journal("finish", id=id)) == 1
    assert rows() == {}
    assert not worker.lines("worker_died")
    assert worker.stop() == 0


def test_a_child_that_died_between_its_last_word_and_its_end_is_no_death():
    ledger = CrashLedger()
    ledger.phase = Phase.REPLACED
    ledger.announce("00112233445566ff")

    assert ledger.phase is Phase.REPLACED
    assert not ledger.may_drain
    ledger.let_drain()
    assert ledger.may_drain
    assert ledger.announced == ["00112233445566ff"]
    assert ledger.entries() == []
    ledger.clear()
    assert (ledger.phase, ledger.may_drain) == (Phase.WORKING, False)


def test_a_process_with_a_stuck_thread_finishes_its_other_handlers_while_its_place_is_filled(
    workers: Workers,
):
    worker, name, pid = start_one(workers, "--concurrency", 3, "--grace", 0.2)
    long = send("sample.work", {"gate": "end"}).pk
    workers.wait_for("start", id=long, pid=pid)
    hangs = send("sample.hang", {"times": 1}).pk

    # The place is filled, and works, while the healthy handler goes on.
    wait(workers, lambda: len(pids(worker, name)) == 2)
    others = [send("sample.work").pk for _ in range(20)]
    for id in others:
        [line] = workers.wait_for("finish", id=id)
        assert line["pid"] != pid
    assert is_alive(pid)
    wait(workers, lambda: WorkerProcess.objects.count() == 3)
    drains = WorkerProcess.objects.get(name="w/1 (draining)")
    assert (drains.pid, drains.queues) == (pid, [])
    assert WorkerProcess.objects.get(name="w/1").pid == pids(worker, name)[1]

    # It ends with its handler, which ran once.
    workers.open("end")
    workers.wait_for("finish", id=long, pid=pid)
    wait(workers, lambda: not is_alive(pid))
    wait(workers, lambda: WorkerProcess.objects.count() == 2)
    assert WorkerProcess.objects.get(name="w/1").pid == pids(worker, name)[1]
    assert len(workers.journal("start", id=long)) == 1
    wait(workers, lambda: set(rows()) <= {hangs})
    assert not worker.lines("worker_died")
    wake(worker)
    assert worker.stop() == 0


def test_at_most_one_process_of_a_place_drains_and_the_next_one_works_until_it_may(
    workers: Workers,
):
    Queue.objects.filter(name="default").update(cooldown=timedelta(hours=1))
    worker, name, first = start_one(workers, "--concurrency", 3, "--grace", 0.2)
    long = send("sample.work", {"gate": "first"}).pk
    workers.wait_for("start", id=long, pid=first)
    send("sample.hang")
    wait(workers, lambda: len(pids(worker, name)) == 2)
    second = pids(worker, name)[1]
    longer = send("sample.work", {"gate": "second"}).pk
    workers.wait_for("start", id=longer, pid=second)

    # Stuck as well, it has no replacement yet, and works on.
    hangs = send("sample.hang").pk
    worker.wait_for("message_timed_out", message_id=hangs)
    for _ in range(3):
        id = send("sample.work", {"sleep": 0.5}).pk
        workers.wait_for("finish", id=id, pid=second)
    assert len(worker.lines("worker_recycling")) == 1
    assert pids(worker, name) == [first, second]

    # When the first has gone, it is its turn.
    workers.open("first")
    wait(workers, lambda: not is_alive(first))
    wait(workers, lambda: len(pids(worker, name)) == 3)
    assert len(worker.lines("worker_recycling")) == 2
    workers.open("second")
    wait(workers, lambda: not is_alive(second))
    assert [len(workers.journal("start", id=id)) for id in (long, longer)] == [1, 1]
    assert not worker.lines("worker_died")
    wake(worker)
    assert worker.stop() == 0


def test_a_draining_process_that_is_killed_is_charged_and_not_replaced_twice(workers: Workers):
    Queue.objects.filter(name="default").update(cooldown=timedelta(hours=1))
    worker, name, pid = start_one(workers, "--concurrency", 2, "--grace", 0.2)
    long = send("sample.work", {"gate": "end"}).pk
    workers.wait_for("start", id=long, pid=pid)
    send("sample.hang")
    wait(workers, lambda: WorkerProcess.objects.filter(name="w/1 (draining)").exists())
    wait(workers, lambda: len(pids(worker, name)) == 2)

    os.kill(pid, signal.SIGKILL)

    [death] = worker.wait_for("worker_died", pid=pid)
    assert death["next"] == "replaced already"
    workers.wait_for("start", id=long, attempt=2)
    assert Message.objects.get(pk=long).failure_reason == FailureReason.WORKER_LOST
    wait(workers, lambda: WorkerProcess.objects.count() == 2)
    assert len(pids(worker, name)) == 2
    workers.open("end")
    workers.wait_for("finish", id=long)
    wake(worker)
    assert worker.stop() == 0


def test_a_stop_reaches_a_draining_process_and_its_replacement(workers: Workers):
    Queue.objects.filter(name="default").update(cooldown=timedelta(hours=1))
    worker, name, pid = start_one(workers, "--concurrency", 2, "--grace", 60)
    long = send("sample.work", {"gate": "end"}).pk
    workers.wait_for("start", id=long, pid=pid)
    hangs = send("sample.hang").pk
    wait(workers, lambda: len(pids(worker, name)) == 2)
    later = send("sample.work", {"gate": "end"}).pk
    workers.wait_for("start", id=later, pid=pids(worker, name)[1])
    wake(worker)

    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_stopping", count=3)
    workers.open("end")

    assert worker.wait(PATIENCE) == 0, worker.text()
    assert len(workers.journal("finish")) == 2
    assert rows() == {hangs: 1}
    assert leases() == []
    assert not WorkerProcess.objects.exists()


def test_what_a_draining_process_gives_back_is_run_before_a_drain_ends(workers: Workers):
    """Its place has drained by then, and ended."""
    Queue.objects.filter(name="default").update(cooldown=timedelta(hours=1))
    long = send("sample.untimed", {"gate": "end"}).pk
    hangs = send("sample.hang").pk
    worker = workers.start("--processes", 2, "--drain", "--drain-limit", 8, "--concurrency", 2)
    [first] = workers.wait_for("start", id=long)
    worker.wait_for("worker_recycling")

    [second] = workers.wait_for("start", id=long, count=2)[1:]
    assert second["pid"] != first["pid"]
    workers.open("end")
    assert worker.wait(PATIENCE) == 0
    assert rows() == {hangs: 1}


def test_the_rows_of_processes_that_drain_are_told_apart_whatever_their_names():
    names = ["n" * 198 + "/1", "n" * 198 + "/2", "n" * 189, "m" + "n" * 189, "w/1"]

    drains = [draining_name(name) for name in names]

    assert len(set(drains)) == len(names)
    assert max(len(name) for name in drains) == 200
    assert drains[-1] == "w/1 (draining)"


@pytest.mark.parametrize("name", ["sample.work", "sample.untimed"])
def test_a_limit_ends_the_patience_with_handlers_of_a_process_that_is_replaced(
    workers: Workers, name: str
):
    Queue.objects.filter(name="default").update(cooldown=timedelta(hours=1))
    worker, place, pid = start_one(workers, "--concurrency", 2, "--drain-limit", 0.5)
    long = send(name, {"gate": "end"}).pk
    workers.wait_for("start", id=long, pid=pid)
    send("sample.hang")

    # Given back, uncounted, to be run again.
    workers.wait_for("start", count=2, id=long, attempt=1)
    wait(workers, lambda: not is_alive(pid))
    workers.open("end")
    wait(workers, lambda: long not in rows())
    assert not worker.lines("worker_died")
    assert place
    wake(worker)
    assert worker.stop() == 0


def test_a_lone_process_with_a_stuck_thread_lets_its_other_handlers_finish(workers: Workers):
    Queue.objects.filter(name="default").update(cooldown=timedelta(hours=1))
    long = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--concurrency", 2, "--grace", 0.2, "--poll", 0.1, "--lease", 6)
    workers.wait_for("start", id=long)
    hangs = send("sample.hang").pk
    worker.wait_for("worker_recycling")

    # Its row says that it serves no queue any more; its lease is renewed, longer than the grace.
    wait(workers, lambda: WorkerProcess.objects.filter(queues=[]).exists())
    late = send("sample.work").pk
    for _ in range(2):
        lease = Message.objects.get(pk=long).available_at
        wait(workers, lambda lease=lease: Message.objects.get(pk=long).available_at != lease)
    workers.open("end")

    workers.wait_for("finish", id=late)
    assert len(workers.journal("start", id=long)) == 1
    worker.wait_for("worker_started", count=2, pid=worker.pid)
    wait(workers, lambda: rows() == {hangs: 1})
    assert worker.stop() == 0


@pytest.mark.parametrize("how", ["", "raise"])
def test_an_async_handler_is_cancelled_when_the_grace_ends_and_given_back(
    workers: Workers, how: str
):
    id = send("sample.async_tidy", {"how": how}).pk
    worker = workers.start("--grace", 0.3, "--poll", 0.1)
    workers.wait_for("start", id=id)

    assert worker.stop() == 0

    assert len(workers.journal("tidied", id=id)) == 1
    assert rows() == {id: 0}
    assert leases() == []
    assert not worker.lines("message_failed")
    [line] = worker.lines("worker_stopped")
    assert (line["failed"], line["released"]) == (0, 1)


def test_an_async_handler_of_a_mixed_stream_is_cancelled_too_and_its_run_given_back(
    workers: Workers,
):
    ids = [send("sample.async_tidy", stream="s").pk, send("sample.work", stream="s").pk]
    worker = workers.start("--grace", 0.3, "--poll", 0.1)
    workers.wait_for("start", id=ids[0])

    assert worker.stop() == 0

    assert len(workers.journal("tidied", id=ids[0])) == 1
    assert rows() == dict.fromkeys(ids, 0)
    assert leases() == []
    assert not workers.journal("start", id=ids[1])


def test_an_async_handler_that_does_not_end_when_cancelled_holds_nobody_up(workers: Workers):
    id = send("sample.async_tidy", {"how": "stubborn"}).pk
    worker = workers.start("--grace", 0.3, "--poll", 0.1)
    workers.wait_for("start", id=id)

    assert worker.stop() == 0

    assert rows() == {id: 0}
    assert leases() == []
