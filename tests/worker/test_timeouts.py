"""A handler that does not end: the attempt fails, the slot comes back, the process recycles."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from deadletter import FailureReason, Outgoing, send, send_many
from deadletter.models import PoisonRecord, Queue
from tests.processes import Workers, wait_until

from .rows import rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

HANGS = [
    ("sample.hang", {"how": "sleep"}),
    ("sample.hang", {"how": "spin"}),
    ("sample.async_hang", {"how": "stubborn"}),
]


@pytest.fixture
def two_attempts(transactional_db: None) -> None:
    Queue.objects.filter(name="default").update(max_attempts=2, cooldown=timedelta(0))


def assert_quarantined(id: int) -> None:
    [poison] = PoisonRecord.objects.all()
    assert (poison.message_id, poison.attempts) == (id, 2)
    assert poison.last_failure_reason == FailureReason.TIMEOUT_EXCEEDED
    assert poison.last_error.endswith("took longer than 0.5 s")
    # The stage it had reached was recorded although it never came back.
    assert poison.status & 8


@pytest.mark.parametrize(("name", "payload"), HANGS, ids=["sleep", "spin", "async"])
def test_a_hanging_handler_is_given_up_and_the_process_starts_again(
    workers: Workers, two_attempts, name, payload
):
    id = send(name, payload).pk
    others = send_many([Outgoing("sample.work", {"sleep": 0.3}) for _ in range(6)])
    worker = workers.start("--concurrency", 2, "--poll", 0.1, "--grace", 5)

    wait_until(lambda: not rows(), why=worker.text)

    assert_quarantined(id)
    assert len(workers.journal("start", id=id)) == 2
    finishes = workers.journal("finish")
    assert sorted(line["id"] for line in finishes) == others
    assert {line["attempt"] for line in finishes} == {1}
    # The same process id, started again in place by exec.
    worker.wait_for("worker_recycling")
    worker.wait_for("worker_started", count=2, pid=worker.pid)
    assert worker.stop() == 0


@pytest.mark.parametrize(("name", "payload"), HANGS, ids=["sleep", "spin", "async"])
def test_under_a_supervisor_the_process_is_replaced(workers: Workers, two_attempts, name, payload):
    id = send(name, payload).pk
    others = send_many([Outgoing("sample.work", {"sleep": 0.1}) for _ in range(10)])
    worker = workers.start("--processes", 2, "--concurrency", 2, "--poll", 0.1, "--grace", 5)

    wait_until(lambda: not rows(), why=worker.text)

    assert_quarantined(id)
    assert sorted(line["id"] for line in workers.journal("finish")) == others
    assert not worker.lines("worker_died")
    worker.wait_for("worker_started", count=3)
    assert worker.stop() == 0


def test_an_async_handler_that_can_be_cancelled_costs_nothing_but_its_attempt(
    workers: Workers, two_attempts
):
    id = send("sample.async_hang", {}).pk
    worker = workers.start("--concurrency", 1, "--poll", 0.1)

    wait_until(lambda: not rows(), why=worker.text)

    assert_quarantined(id)
    assert len(workers.journal("cancelled", id=id)) == 2
    assert not worker.lines("worker_recycling")
    again = send("sample.async", {}).pk
    workers.wait_for("finish", id=again)
    assert worker.stop() == 0


def test_the_slots_of_hanging_handlers_come_back_before_the_process_is_replaced(
    workers: Workers,
):
    ids = [send("sample.hang", {"times": 1}).pk for _ in range(2)]
    slow = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--concurrency", 3, "--grace", 20, "--poll", 0.1)
    workers.wait_for("start", id=slow)
    worker.wait_for("message_timed_out", count=2)
    worker.wait_for("worker_recycling")

    # What runs beside them keeps its time to finish.
    workers.open("end")
    workers.wait_for("finish", id=slow)
    worker.wait_for("worker_started", count=2)

    assert rows() == dict.fromkeys(ids, 1)
    assert len(workers.journal("start", id=slow)) == 1
    assert worker.stop() == 0


def test_a_stop_during_a_recycle_ends_the_process_for_good(workers: Workers):
    send("sample.hang", {})
    slow = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--concurrency", 2, "--grace", 20)
    workers.wait_for("start", id=slow)
    worker.wait_for("worker_recycling")

    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_stopping")
    workers.open("end")

    assert worker.wait() == 0, worker.text()
    assert len(worker.lines("worker_started")) == 1


def test_a_lease_is_renewed_for_as_long_as_its_handler_runs(workers: Workers):
    id = send("sample.work", {"sleep": 2.5}).pk
    first = workers.start("--lease", 0.6, "--poll", 0.1)
    second = workers.start("--lease", 0.6, "--poll", 0.1)

    wait_until(lambda: not rows(), why=first.text)

    assert len(workers.journal("start", id=id)) == 1
    assert [first.stop(), second.stop()] == [0, 0]
    assert not first.lines("lease_lost")
    assert not second.lines("lease_lost")
