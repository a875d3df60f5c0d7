"""A long act that a worker carries on: one piece a message."""

from __future__ import annotations

import pytest

from deadletter import UnknownQueue, operations, testing
from deadletter.models import Act, AuditEntry, BulkJob, Message, PoisonRecord, Queue
from deadletter.operations import PoisonFilter, acts, bulk

from .records import dead, many_dead

OWN = ["deadletter"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(acts, "PIECE", 10)


def start(act: Act = Act.RETRY, **options) -> BulkJob:
    seen = operations.preview(PoisonFilter(name="mail"))
    return operations.start_job(
        act, seen.wanted, total=seen.count, by="ann", why="fixed", **options
    )


def test_a_worker_carries_a_job_to_its_end(clock, counts):
    many_dead(25)
    job = start(rate=100)
    late = dead()

    tally = testing.drain(OWN)

    job.refresh_from_db()
    assert (job.state, job.total, job.done, job.refused) == ("done", 25, 25, 0)
    assert tally.completed == 4  # 10, 10, 5, and the look that finds nothing
    assert PoisonRecord.objects.get() == late
    assert Message.objects.count() == 25
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.why, entry.done, entry.detail) == ("ann", "fixed", 25, {"rate": 100})


def test_a_job_can_remove(clock, counts):
    many_dead(12)

    start(Act.REMOVE)
    testing.drain(OWN)

    assert counts() == {}
    assert AuditEntry.objects.get().done == 12


def step() -> None:
    """One message of the queue, as a worker would."""
    job = Message.objects.get(queue__name="deadletter")
    bulk.step_job(job.payload["job"], using=job.payload["using"])
    job.delete()


def test_a_paused_job_stands_still_and_goes_on_where_it_was(clock, counts):
    many_dead(25)
    job = start()
    step()

    operations.control_job(job.pk, "paused")
    testing.drain(OWN)
    assert (PoisonRecord.objects.count(), BulkJob.objects.get().done) == (15, 10)
    operations.control_job(job.pk, "running")
    testing.drain(OWN)

    job.refresh_from_db()
    assert (job.state, job.done, PoisonRecord.objects.count()) == ("done", 25, 0)


def test_the_trail_says_who_paused_and_resumed_a_job(clock):
    many_dead(25)
    job = start()

    operations.control_job(job.pk, "paused", by="ada")
    operations.control_job(job.pk, "running", by="grace")

    steps = AuditEntry.objects.get().detail["steps"]
    assert [(step["state"], step["by"]) for step in steps] == [
        ("paused", "ada"),
        ("running", "grace"),
    ]
    assert steps[0]["at"] == clock.now.isoformat()


def test_pausing_and_resuming_in_haste_does_nothing_twice(clock, counts):
    many_dead(25)
    job = start()
    for state in ("paused", "running") * 3:
        operations.control_job(job.pk, state)

    testing.drain(OWN)

    job.refresh_from_db()
    assert (job.state, job.done) == ("done", 25)
    assert AuditEntry.objects.get().done == 25
    assert counts() == {"pending": 25}


def test_a_cancelled_job_is_over(clock, counts):
    many_dead(25)
    job = start()
    step()

    operations.control_job(job.pk, "cancelled")
    testing.drain(OWN)

    assert (PoisonRecord.objects.count(), AuditEntry.objects.get().done) == (15, 10)
    with pytest.raises(ValueError, match="is cancelled"):
        operations.control_job(job.pk, "running")


@pytest.mark.slow
def test_a_piece_that_breaks_is_undone_and_done_again(clock, counts, monkeypatch):
    many_dead(25)
    job = start()
    real, calls = bulk._send_next, []

    def breaks_once(*args):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the machine trips")
        real(*args)

    monkeypatch.setattr(bulk, "_send_next", breaks_once)
    tally = testing.drain(OWN)
    assert (tally.failed, PoisonRecord.objects.count()) == (1, 15)
    clock.advance(120)
    testing.drain(OWN)

    job.refresh_from_db()
    assert (job.state, job.done, AuditEntry.objects.get().done) == ("done", 25, 25)
    assert counts() == {"pending": 25}


def test_what_cannot_be_a_job_is_refused(clock):
    with pytest.raises(ValueError, match="fixed filter"):
        operations.start_job(Act.RETRY, PoisonFilter(), total=1)
    with pytest.raises(ValueError, match="fixed filter"):
        operations.start_job(Act.PAUSE, PoisonFilter(up_to=1), total=1)
    with pytest.raises(UnknownQueue):
        operations.start_job(Act.RETRY, PoisonFilter(up_to=1), total=1, queue="nowhere")

    assert not BulkJob.objects.exists()
    assert not Queue.objects.filter(name="deadletter").exists()


@pytest.mark.django_db(databases=["default", "second"])
def test_a_job_of_another_database_is_carried_on_there():
    dead_there = operations.PoisonFilter(up_to=10**9)
    job = operations.start_job(Act.RETRY, dead_there, total=0, using="second")

    assert testing.drain(OWN, using="second").completed == 1

    job.refresh_from_db(using="second")
    assert job.state == "done"
