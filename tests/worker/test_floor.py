"""A busy worker goes on where it left off, and misses nothing that came in behind it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from time import monotonic

import pytest
from django.utils.timezone import now

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle import ClaimRequest, Floor, WorkBatch, claim, process_batch
from deadletter.models import Message, Queue
from deadletter.worker import exchange, intake
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from deadletter.worker.reports import Reports

pytestmark = [
    pytest.mark.postgresql_only(reason="SQLite leaves no dead entries behind"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def floors(monkeypatch) -> list[dict[str, Floor]]:
    """Where each claim of the worker began."""
    seen: list[dict[str, Floor]] = []
    real = exchange.process_batch

    def noting(**given):
        if given["claim"] is not None:
            seen.append(given["claim"].floors)
        return real(**given)

    monkeypatch.setattr(exchange, "process_batch", noting)
    return seen


def fill(times: int = 6, each: int = 100) -> list[int]:
    return [id for _ in range(times) for id in send_many([Outgoing("job") for _ in range(each)])]


def test_a_claim_says_where_what_it_found_began():
    first = send("job")
    send("job")

    batch = claim()

    assert batch.floor == (first.available_at, first.id)


def test_a_claim_passes_over_what_comes_before_its_floor():
    together = send_many([Outgoing("job") for _ in range(4)])
    older = send("job")
    Message.objects.filter(id=older.id).update(available_at=now() - timedelta(hours=1))
    since = Message.objects.get(id=together[0]).available_at
    assert since is not None
    floors = {"default": Floor(since, together[2])}

    some = process_batch(worker="w", claim=ClaimRequest(floors=floors))
    rest = process_batch(worker="w", claim=ClaimRequest())

    assert some.ids == together[2:]
    assert rest.ids == [older.id, *together[:2]]


def test_claims_without_a_pause_go_on_where_the_last_one_began(run, handles, floors):
    handled = []
    handles("job", lambda message: handled.append(message.id))
    ids = fill()

    run(batch=50)

    assert sorted(handled) == ids
    later = [floor["default"] for floor in floors if floor]
    assert len(later) >= 5
    assert all(one <= other for one, other in pairwise(later))
    assert floors[0] == {}
    assert floors[-1] == {}, "the last look must be at everything"


def test_all_that_is_due_is_looked_at_every_second(run, handles, floors, monkeypatch):
    monkeypatch.setattr(intake, "WHOLE_LOOK", 0.0)
    handles("job", lambda message: None)
    fill()

    run(batch=50)

    assert not any(floors)


def test_what_becomes_due_behind_the_worker_is_handled_all_the_same(run, handles, floors):
    """A sender's transaction may be long: its messages are older than others when they come."""
    handled = []

    def work(message) -> None:
        handled.append(message.id)
        if len(handled) == 120:
            late = send("job", delay=3600)
            Message.objects.filter(id=late.id).update(available_at=now() - timedelta(hours=1))

    handles("job", work)
    fill()

    run(batch=50)

    assert len(handled) == 601
    assert not Message.objects.exists()
    assert any(floors)


def test_each_queue_has_its_own(run, handles, floors):
    """The older messages of one queue are not hidden by the newer ones of another."""
    Queue.objects.create(name="other")
    handled = []
    handles("job", lambda message: handled.append(message.queue))
    send_many([Outgoing("job") for _ in range(300)], queue="other")
    fill(times=3)

    run(batch=50, queues=["default", "other"])

    assert Counter(handled) == {"default": 300, "other": 300}
    newer = [floor["default"] for floor in floors if "default" in floor]
    older = [floor["other"] for floor in floors if "other" in floor]
    assert newer
    assert older
    assert max(older) < min(newer)


@pytest.mark.parametrize("is_partial", [True, False])
def test_a_drain_is_not_through_before_a_look_at_everything(is_partial):
    process = Worker(Options(name="here", drain=True))
    nothing = exchange.CommittedExchange(Reports(), WorkBatch("t"), 10, 0.0, 0.0, is_partial)
    try:
        process.pump._plan_ahead(nothing)
    finally:
        process._executors.stop()

    assert process.pump._claiming is is_partial
    assert (process.pump._schedule.next_look <= monotonic()) is is_partial
