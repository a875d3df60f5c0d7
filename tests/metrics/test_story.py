"""A story with every kind of ending, and every number that tells it."""

from __future__ import annotations

import pytest

from deadletter import Permanent, operations, send, testing
from deadletter.lifecycle import Release, WorkBatch
from deadletter.lifecycle.sweeps import Sweep
from deadletter.metrics.cache import TableReader
from deadletter.metrics.exposition import render
from deadletter.metrics.process_counters import CounterObserver, ProcessCounters
from deadletter.models import Message, PoisonRecord
from deadletter.models.message import Kind
from deadletter.status import FailureReason
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from deadletter.worker.reports import Reports, Tally

from .scrapes import Samples

pytestmark = pytest.mark.django_db


def tell(*places: ProcessCounters) -> Samples:
    page = render("", processes=places, reading=TableReader("default", fresh=0).latest())
    return Samples(page.body.decode(), page.type)


def test_every_number_is_right_after_a_story(clock, policy, handles):
    policy(max_attempts=2)
    policy("mail")

    def fail(message: object) -> None:
        raise TimeoutError("too slow")

    def refuse(message: object) -> None:
        raise Permanent("never")

    handles("ok", lambda message: None)
    handles("bad", fail)
    handles("refused", refuse)
    for name in ("ok", "ok", "bad", "bad", "nobody.knows"):
        send(name)
    send("ok", queue="mail")
    send("refused", queue="mail")
    Message.objects.filter(name="refused").update(kind=Kind.ACTIVITY)
    testing.drain()
    clock.advance(61)
    testing.drain()
    kept, gone = PoisonRecord.objects.filter(name="bad").values_list("pk", flat=True)
    operations.retry_poison([kept])
    operations.remove_poison([gone])
    send("ok", delay=600)
    clock.advance(7)

    found = tell()

    assert found.named("deadletter_messages_sent_total") == {
        ("ok", "default"): 3,
        ("bad", "default"): 2,
        ("nobody.knows", "default"): 1,
        ("ok", "mail"): 1,
        ("refused", "mail"): 1,
    }
    assert found("deadletter_messages_completed_total", queue="default", name="ok") == 2
    assert found("deadletter_messages_completed_total", queue="mail", name="ok") == 1
    assert found("deadletter_messages_completed_total", queue="default", name="bad") == 0
    assert found.named("deadletter_messages_failed_total") == {
        ("bad", "default", "TIMEOUT_EXCEEDED"): 4,
        ("refused", "mail", FailureReason.HANDLER_EXCEPTION.name): 1,
    }
    assert found.named("deadletter_messages_poisoned_total") == {
        ("message",): 2,
        ("orchestration",): 0,
        ("activity",): 1,
        ("task",): 0,
        ("event",): 0,
    }
    assert found("deadletter_poison_messages_retried_total", type="message") == 1
    assert found("deadletter_poison_messages_removed_total", type="message") == 1
    assert found("deadletter_poison_messages_removed_total", type="activity") == 0
    assert found("deadletter_unregistered_deferrals_total", type="message") == 2
    assert found.named("deadletter_poison_queue_depth") == {
        ("message",): 0,
        ("orchestration",): 0,
        ("activity",): 1,
        ("task",): 0,
        ("event",): 0,
    }
    depth = {key: n for key, n in found.named("deadletter_queue_depth").items() if n}
    assert depth == {
        # The one retried, and the one that nobody knows: its 2 s are over.
        ("default", "pending"): 2,
        ("default", "scheduled"): 1,
        ("mail", "dead"): 1,
    }
    assert found("deadletter_queue_oldest_age_seconds", queue="default") == 7
    assert found("deadletter_queue_oldest_age_seconds", queue="mail") == 0
    assert found("deadletter_up") == 1


def test_what_a_real_worker_does_is_on_its_board(transactional_db, handles):
    def fail(message: object) -> None:
        raise ValueError("no")

    async def wait(message: object) -> None:
        return None

    handles("ok", lambda message: None)
    handles("both", lambda message: None, atomic=True)
    handles("async", wait)
    handles("bad", fail)
    for name in ("ok", "ok", "both", "async", "bad", "nobody.knows"):
        send(name)
    counters = ProcessCounters(["ok", "both", "async", "bad"])

    Worker(Options(name="here", drain=True), observer=CounterObserver(counters)).run()

    found = tell(counters)
    assert found.named("deadletter_handler_duration_seconds_count") == {
        ("ok",): 2,
        ("both",): 1,
        ("async",): 1,
        ("bad",): 1,
    }
    assert found("deadletter_settle_duration_seconds_count") >= 1
    assert found("deadletter_claim_duration_seconds_count") >= 2
    assert found("deadletter_settle_duration_seconds_sum") > 0
    assert found("deadletter_claim_duration_seconds_sum") > 0
    assert found("deadletter_leases_lost_total") == 0


def test_lost_leases_and_repairs_are_added_up():
    counters, tally = ProcessCounters([]), Tally()
    observer = CounterObserver(counters)
    for lost in (2, 2, 5):
        tally.lost = lost
        observer.exchanged(0.1, Reports(), WorkBatch("t"), tally)
    observer.swept(Sweep(expired=1, forgotten=1, repaired=3))

    found = tell(counters)

    assert found("deadletter_leases_lost_total") == 5
    assert found("deadletter_token_repairs_total") == 3


def test_a_worker_that_starts_anew_goes_on_counting_lost_leases():
    counters = ProcessCounters([])

    for _ in range(2):
        CounterObserver(counters).exchanged(0.1, Reports(), WorkBatch("t"), Tally(lost=2))

    assert tell(counters)("deadletter_leases_lost_total") == 4


def test_a_transaction_is_divided_into_what_it_settled_and_what_it_claimed():
    counters, reports = ProcessCounters([]), Reports()
    observer = CounterObserver(counters)
    claimed = WorkBatch("token", claim_seconds=0.25)

    observer.exchanged(0.5, reports, claimed, Tally())
    reports.releases.append(Release(1))
    observer.exchanged(1.0, reports, claimed, Tally())
    observer.exchanged(2.0, reports, WorkBatch(""), Tally())

    found = tell(counters)
    assert found("deadletter_claim_duration_seconds_count") == 2
    assert found("deadletter_claim_duration_seconds_sum") == 0.5 + 0.25
    assert found("deadletter_settle_duration_seconds_count") == 2
    assert found("deadletter_settle_duration_seconds_sum") == 0.75 + 2.0
