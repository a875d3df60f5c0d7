"""What becomes of messages when the worker that holds them is stopped, killed or put to sleep."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from deadletter import FailureReason, Outgoing, send, send_many
from deadletter.models import Message, PoisonRecord, Queue, WorkerProcess
from tests.patience import PATIENCE
from tests.processes import Workers, wait_until

from .rows import attempts, leases, rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

STOPS = [signal.SIGTERM, signal.SIGINT]


def send_gated(buffered: int) -> tuple[int, list[int]]:
    """Send one message that waits for the gate "end", and some that wait behind it."""
    first = send("sample.work", {"gate": "end"}).pk
    rest = send_many([Outgoing("sample.work", {}) for _ in range(buffered)])
    return first, rest


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_lets_the_running_handler_finish_and_gives_the_rest_back_uncounted(
    workers: Workers, number: signal.Signals
):
    warm_up = send_many([Outgoing("sample.work", {}) for _ in range(50)])
    first = send("sample.work", {"gate": "end"}).pk
    rest = send_many([Outgoing("sample.work", {"gate": "end"}) for _ in range(20)])
    worker = workers.start("--concurrency", 1, "--grace", 20)
    workers.wait_for("start", id=first)

    worker.signal(number)
    wait_until(lambda: leases() == [first], why=worker.text)
    workers.open("end")
    code = worker.wait()

    assert code == 0, worker.text()
    assert len(workers.journal("finish")) == len(warm_up) + 1
    assert rows() == dict.fromkeys(rest, 0)
    assert leases() == []
    assert not WorkerProcess.objects.exists()
    assert "Traceback" not in worker.text()


def test_a_signal_that_another_thread_received_is_not_missed(workers: Workers):
    """
    The main thread waits; what it is not woken by, or misses as it falls asleep, it must look for.
    """
    worker = workers.start("--poll", 0.1).wait_ready()
    send("sample.work", {})
    workers.wait_for("finish")
    threads = [int(path.name) for path in Path(f"/proc/{worker.pid}/task").iterdir()]
    other = max(thread for thread in threads if thread != worker.pid)

    tgkill = 234 if platform.machine() == "x86_64" else 131
    assert ctypes.CDLL(None).syscall(tgkill, worker.pid, other, signal.SIGTERM) == 0

    assert worker.wait(PATIENCE) == 0, worker.text()


def test_past_the_grace_the_running_handler_is_given_back_uncounted(workers: Workers):
    first, rest = send_gated(buffered=3)
    worker = workers.start("--concurrency", 1, "--grace", 0.3)
    workers.wait_for("start", id=first)

    worker.signal(signal.SIGTERM)
    code = worker.wait()

    assert code == 0, worker.text()
    assert rows() == dict.fromkeys((first, *rest), 0)
    assert leases() == []
    assert workers.journal("finish") == []


@pytest.mark.parametrize("number", STOPS)
def test_a_second_signal_stops_at_once(workers: Workers, number: signal.Signals):
    first, rest = send_gated(buffered=3)
    worker = workers.start("--concurrency", 1, "--grace", 60)
    workers.wait_for("start", id=first)

    worker.signal(number)
    worker.wait_for("worker_stopping", how="within 60 s")
    worker.signal(number)
    code = worker.wait()

    assert code == 0, worker.text()
    assert rows() == dict.fromkeys((first, *rest), 0)
    assert leases() == []


def test_a_handler_killed_with_its_worker_runs_again_when_the_lease_is_over(workers: Workers):
    # Only the lease that the worker was given can be over before the test gives up.
    Queue.objects.update(lease_timeout=10 * PATIENCE * timedelta(seconds=1))
    id = send("sample.work", {"gate": "end"}).pk
    killed = workers.start("--lease", 1.5)
    workers.wait_for("start", id=id)
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert attempts(id) == 1

    workers.open("end")
    worker = workers.start("--lease", 1.5, "--poll", 0.1)
    workers.wait_for("finish", id=id)
    wait_until(lambda: not rows(), why=worker.text)

    starts = workers.journal("start", id=id)
    assert [start["attempt"] for start in starts] == [1, 2]
    assert worker.stop() == 0


def test_under_a_supervisor_a_killed_handler_runs_again_at_once(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--processes", 2, "--lease", 60)
    [start] = workers.wait_for("start", id=id)

    os.kill(start["pid"], signal.SIGKILL)
    workers.wait_for("start", id=id, attempt=2)
    workers.open("end")
    wait_until(lambda: not rows(), why=worker.text)

    [death] = worker.lines("worker_died")
    assert death["reason"] == "signal SIGKILL"
    assert "signal SIGKILL" in death["text"]
    assert len(workers.journal("finish", id=id)) == 1
    assert worker.stop() == 0


def test_a_worker_stopped_longer_than_its_lease_cannot_report_and_lives_on(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    sleeper = workers.start("--lease", 1, "--poll", 0.1, "--name", "sleeper")
    workers.wait_for("start", id=id, attempt=1)
    sleeper.suspend()

    other = workers.start("--lease", 30, "--poll", 0.1, "--name", "other")
    workers.wait_for("start", id=id, attempt=2)
    workers.open("end")
    workers.wait_for("finish", id=id, attempt=2)
    wait_until(lambda: not rows(), why=other.text)
    assert other.stop() == 0
    again = send("sample.work", {}).pk
    sleeper.signal(signal.SIGCONT)

    workers.wait_for("finish", id=again)
    sleeper.wait_for("lease_lost", message_id=id)
    wait_until(lambda: not rows(), why=sleeper.text)
    assert sleeper.stop() == 0
    stopped = sleeper.lines("worker_stopped")[0]
    assert (stopped["completed"], stopped["failed"]) == (1, 0)


def test_a_sole_worker_that_slept_through_its_lease_runs_the_message_once_more(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--lease", 1, "--poll", 0.1, "--processes", 1)
    workers.wait_for("start", id=id, attempt=1)

    worker.suspend()
    wait_until(lambda: leases() == [])
    worker.signal(signal.SIGCONT)
    workers.wait_for("start", id=id, attempt=2)
    workers.open("end")
    wait_until(lambda: not rows(), why=worker.text)

    assert worker.stop() == 0
    assert worker.lines("worker_stopped")[0]["completed"] == 1
    assert len(workers.journal("start", id=id)) == 2


@pytest.mark.parametrize(
    ("how", "reason"),
    [("exit", "exit code 3"), ("segfault", "signal SIGSEGV"), ("kill", "signal SIGKILL")],
)
def test_a_handler_that_takes_its_process_along_is_charged_alone(
    workers: Workers, how: str, reason: str
):
    Queue.objects.filter(name="default").update(max_attempts=1)
    warm_up = send_many([Outgoing("sample.work", {}) for _ in range(100)])
    bad = send("sample.crash", {"how": how, "gate": "crash"}).pk
    send_many([Outgoing("sample.work", {}) for _ in range(100)])
    worker = workers.start("--processes", 2, "--concurrency", 1, "--poll", 0.1)
    workers.wait_for("start", id=bad)
    workers.wait_for("finish", count=len(warm_up))
    workers.open("crash")

    wait_until(lambda: not rows(), why=worker.text)
    [poison] = PoisonRecord.objects.all()
    assert (poison.message_id, poison.attempts) == (bad, 1)
    assert poison.last_failure_reason == FailureReason.WORKER_LOST
    assert reason in poison.last_error
    starts = workers.journal("start")
    assert len(starts) == 201
    assert {start["attempt"] for start in starts} == {1}
    assert worker.stop() == 0
    assert Message.objects.count() == 0
