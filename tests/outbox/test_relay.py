"""The relay: order, confirms, refusals, and a broker that is away."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import OutgoingEvent, operations, publish, publish_many
from deadletter.lifecycle import sweep
from deadletter.models import BrokerStatus, Count, OutboxLane, OutboxMessage, PoisonRecord
from deadletter.operations.retry_outcomes import outcomes_of
from deadletter.outbox.transports.base import BrokerRefusal
from deadletter.status import FailureReason
from deadletter.worker import relay as relays

pytestmark = pytest.mark.django_db(transaction=True)

UNROUTABLE = BrokerRefusal(FailureReason.TRANSPORT_UNAVAILABLE, "no queue is bound")
TOO_LARGE = BrokerRefusal(FailureReason.VALIDATION_FAILURE, "too large", is_permanent=True)


def payloads(broker) -> list[object]:
    return [int(event.data) for event in broker.arrived]


def refuse(broker, topic: str, refusal: BrokerRefusal = UNROUTABLE) -> None:
    broker.judge = staticmethod(lambda event: refusal if event.topic == topic else None)


def test_what_was_committed_arrives_once_and_leaves(broker, relay, clock):
    row = publish("orders.shipped", 7, key="order-7", headers={"tenant": "a"})

    relay.turn()
    relay.turn()

    (event,) = broker.arrived
    assert (event.id, event.topic, event.key, event.data) == (
        str(row.pk),
        "orders.shipped",
        "order-7",
        "7",
    )
    assert (event.headers, event.time, event.source) == ({"tenant": "a"}, clock.now, "/project")
    assert OutboxMessage.objects.count() == 0
    assert relay.published == 1


def test_the_trace_is_not_among_the_headers(broker, relay):
    publish("t", headers={"traceparent": "00-a-b-01", "tenant": "a"})

    relay.turn()

    (event,) = broker.arrived
    assert (event.traceparent, event.headers) == ("00-a-b-01", {"tenant": "a"})


def test_a_key_keeps_its_order_over_batches(broker, new_relay, settings):
    settings.DEADLETTER["BROKERS"]["default"]["batch"] = 10
    settings.DEADLETTER = dict(settings.DEADLETTER)
    publish_many([OutgoingEvent("t", n, "one") for n in range(300)])
    publish_many([OutgoingEvent("t", 1_000 + n, f"k{n % 7}") for n in range(200)])

    new_relay().turn()

    of_one = [n for n in payloads(broker) if n < 1_000]
    assert of_one == list(range(300))
    for rest in range(7):
        of_key = [n for n in payloads(broker) if n >= 1_000 and (n - 1_000) % 7 == rest]
        assert of_key == sorted(of_key)
    assert len(broker.arrived) == 500
    assert OutboxMessage.objects.count() == 0


def test_another_broker_is_left_alone(broker, relay):
    publish("t", 1, broker="other")

    relay.turn()

    assert broker.arrived == []
    assert OutboxMessage.objects.count() == 1


def test_published_messages_are_counted(broker, relay):
    publish_many([OutgoingEvent("t", n) for n in range(3)])

    relay.turn()

    (row,) = Count.objects.filter(queue="outbox:default")
    assert (row.name, row.kind, row.completed, row.failed) == ("t", "event", 3, 0)


def test_a_refused_message_holds_its_key_and_nobody_else(broker, relay, clock):
    refuse(broker, "bad")
    publish("bad", 1, key="a")
    publish("good", 2, key="b")
    relay.turn()
    publish("good", 3, key="a")
    publish("good", 4, key="b")
    publish("good", 5)

    relay.turn()

    assert sorted(payloads(broker)) == [2, 4, 5]
    bad, behind = OutboxMessage.objects.order_by("id")
    assert (bad.attempts, bad.held, behind.attempts, behind.held) == (1, True, 0, True)
    assert timedelta(seconds=10) <= bad.retry_at - clock.now <= timedelta(seconds=11)
    assert behind.retry_at is None
    (entry,) = bad.history
    assert (entry["reason"], entry["error"], entry["worker"]) == (1, "no queue is bound", "w")


def test_a_refused_message_is_tried_again_before_those_behind_it(broker, relay, clock, monkeypatch):
    monkeypatch.setattr(relays, "REFUSED", -1.0)
    refuse(broker, "bad")
    publish("bad", 1, key="a")
    relay.turn()
    publish("good", 2, key="a")
    relay.turn()
    broker.judge = staticmethod(lambda event: None)

    relay.turn()
    assert payloads(broker) == []
    clock.advance(12)
    relay.turn()

    assert payloads(broker) == [1, 2]
    assert OutboxMessage.objects.count() == 0


def test_another_relay_knows_which_keys_wait(broker, new_relay, clock):
    refuse(broker, "bad")
    publish("bad", 1, key="a")
    first = new_relay("first")
    first.turn()
    first._end()
    publish("good", 2, key="a")

    new_relay("second").turn()

    assert payloads(broker) == []
    assert OutboxMessage.objects.filter(held=True).count() == 2


def test_at_the_limit_it_becomes_poison_and_its_key_goes_on(
    broker, relay, clock, monkeypatch, settings
):
    monkeypatch.setattr(relays, "REFUSED", -1.0)
    monkeypatch.setattr(relays, "SHARING", -1.0)
    refuse(broker, "bad")
    row = publish("bad", {"n": 1}, key="a", headers={"tenant": "x"})
    publish("good", 2, key="b")
    relay.turn()
    publish("good", 3, key="a")
    for _ in range(4):
        relay.turn()
        clock.advance(1_000)
    relay.turn()

    record = PoisonRecord.objects.get()
    assert (record.queue, record.name, record.kind) == ("outbox:default", "bad", "event")
    assert (record.origin, record.source_id, record.stream) == ("topic:bad", row.pk, "a")
    assert (record.payload, record.headers) == ({"n": 1}, {"tenant": "x"})
    assert (record.attempts, record.max_attempts, record.poison_count) == (5, 5, 1)
    assert record.reason == FailureReason.POISON_MESSAGE
    assert record.last_failure_reason == FailureReason.TRANSPORT_UNAVAILABLE
    assert record.last_error == "no queue is bound"
    assert record.verdict == "gave up after 5 of 5 attempts"
    assert [entry["attempt"] for entry in record.history] == [1, 2, 3, 4, 5]
    assert record.original_created_at == row.created_at
    assert payloads(broker) == [2, 3]
    assert OutboxMessage.objects.count() == 0
    totals = Count.objects.filter(queue="outbox:default", name="bad")
    assert sum(total.failed for total in totals) == 5
    assert sum(total.poisoned for total in totals) == 1


def test_a_permanent_refusal_is_poison_at_once(broker, relay):
    refuse(broker, "large", TOO_LARGE)
    publish("large", 1, key="a")
    publish("small", 2, key="a")

    relay.turn()

    record = PoisonRecord.objects.get()
    assert (record.attempts, record.verdict) == (1, "the broker will never accept it")
    assert record.last_failure_reason == FailureReason.VALIDATION_FAILURE
    assert payloads(broker) == [2]


def test_a_retry_publishes_it_under_its_id(broker, relay):
    refuse(broker, "large", TOO_LARGE)
    row = publish("large", 1, key="a", headers={"tenant": "x"})
    relay.turn()
    record = PoisonRecord.objects.get()
    broker.judge = staticmethod(lambda event: None)

    result = operations.retry_poison([record.pk], by="ann")
    again = OutboxMessage.objects.get()
    relay.turn()

    assert result.retried == [record.pk]
    assert (again.pk, again.message_id, again.poison_count) == (row.pk, record.message_id, 1)
    (event,) = broker.arrived
    assert (event.id, event.data, event.headers) == (str(row.pk), "1", {"tenant": "x"})
    assert PoisonRecord.objects.count() == OutboxMessage.objects.count() == 0


def test_an_edit_publishes_the_new_payload(broker, relay):
    refuse(broker, "large", TOO_LARGE)
    publish("large", {"n": 1})
    relay.turn()
    broker.judge = staticmethod(lambda event: None)

    operations.retry_poison([PoisonRecord.objects.get().pk], payload={"n": 2}, by="ann")
    relay.turn()

    assert [event.data for event in broker.arrived] == ['{"n":2}']


def test_an_edit_keeps_the_history_and_the_original_payload(broker, relay):
    refuse(broker, "large", TOO_LARGE)
    publish("large", {"n": 1})
    relay.turn()
    first = PoisonRecord.objects.get()

    operations.retry_poison([first.pk], payload={"n": 2}, by="ann")
    relay.turn()

    before, edit, after = PoisonRecord.objects.get().history
    assert (before["error"], after["error"]) == ("too large", "too large")
    assert (edit["error"], edit["original_payload"]) == ("payload edited by ann", '{"n":1}')


def test_one_that_dies_again_keeps_its_id_and_counts(broker, relay):
    refuse(broker, "large", TOO_LARGE)
    publish("large", 1)
    relay.turn()
    first = PoisonRecord.objects.get()

    operations.retry_poison([first.pk], by="ann")
    relay.turn()

    second = PoisonRecord.objects.get()
    assert (second.message_id, second.poison_count) == (first.message_id, 2)


def test_the_outcome_of_a_retry_is_known_when_it_was_published(broker, relay):
    from deadletter.models import AuditedMessage

    refuse(broker, "large", TOO_LARGE)
    publish("large", 1)
    relay.turn()
    broker.judge = staticmethod(lambda event: None)
    operations.retry_poison([PoisonRecord.objects.get().pk], by="ann")

    sweep()
    waiting = AuditedMessage.objects.get().outcome
    relay.turn()
    sweep()

    assert (waiting, AuditedMessage.objects.get().outcome) == (None, 1)


def test_a_retry_has_not_succeeded_while_it_waits_in_the_outbox(broker, relay):
    from deadletter.models import AuditEntry

    refuse(broker, "large", TOO_LARGE)
    publish("large", 1)
    relay.turn()
    broker.judge = staticmethod(lambda event: None)
    operations.retry_poison([PoisonRecord.objects.get().pk], by="ann")

    waiting = outcomes_of(AuditEntry.objects.get())
    relay.turn()
    published = outcomes_of(AuditEntry.objects.get())

    assert (waiting.open, waiting.succeeded) == (1, 0)
    assert (published.open, published.succeeded) == (0, 1)


def test_a_retry_is_refused_without_the_broker_or_with_a_queue(broker, relay, settings):
    refuse(broker, "large", TOO_LARGE)
    publish("large", 1)
    relay.turn()
    record = PoisonRecord.objects.get()

    with_queue = operations.retry_poison([record.pk], queue="default", by="ann")
    settings.DEADLETTER = {}
    without = operations.retry_poison([record.pk], by="ann")

    assert "name no queue" in with_queue.refused[record.pk]
    assert "no broker 'default'" in without.refused[record.pk]
    assert PoisonRecord.objects.count() == 1


def test_a_broker_that_is_away_counts_nothing(broker, relay, monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    publish("t", 1)
    broker.away = "connection refused"

    relay.turn()
    status = BrokerStatus.objects.get()
    row = OutboxMessage.objects.get()
    assert (status.error, row.attempts, row.held) == ("connection refused", 0, False)
    assert status.unavailable_since is not None
    broker.away = None
    relay.turn()

    assert payloads(broker) == [1]
    assert BrokerStatus.objects.get().unavailable_since is None


def test_a_lost_connection_repeats_only_what_was_not_confirmed(broker, relay, monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    publish_many([OutgoingEvent("t", n, "a") for n in range(5)])
    broker.cut_after = 2

    relay.turn()
    left = list(OutboxMessage.objects.order_by("id").values_list("payload", flat=True))
    relay.turn()

    assert left == [2, 3, 4]
    assert payloads(broker) == [0, 1, 2, 2, 3, 4]
    ids = [event.id for event in broker.arrived]
    assert ids[2] == ids[3]
    assert OutboxMessage.objects.filter(attempts__gt=0).count() == 0


def test_relays_share_the_lanes(broker, new_relay, monkeypatch):
    monkeypatch.setattr(relays, "SHARING", -1.0)
    one, two, three = new_relay("one"), new_relay("two"), new_relay("three")

    one.turn()
    assert len(one._lanes) == 16
    two.turn()
    one.turn()
    two.turn()
    assert (len(one._lanes), len(two._lanes)) == (8, 8)
    three.turn()
    for relay in (one, two, three):
        relay.turn()
    assert [len(relay._lanes) for relay in (one, two, three)] == [6, 6, 4]
    assert len({*one._lanes, *two._lanes, *three._lanes}) == 16
    two._end()
    for relay in (one, three, one):
        relay.turn()
    assert (len(one._lanes), len(three._lanes)) == (8, 8)


def test_lanes_of_a_relay_that_died_are_taken_when_their_lease_ends(broker, new_relay, clock):
    publish("t", 1)
    dead, alive = new_relay("dead"), new_relay("alive")
    dead._share_lanes()

    alive.turn()
    before = list(broker.arrived)
    clock.advance(61)
    alive.turn()

    assert before == []
    assert payloads(broker) == [1]
    assert set(OutboxLane.objects.values_list("worker", flat=True)) == {"alive"}


def test_a_refusal_is_not_noted_by_a_relay_that_lost_its_lanes(broker, new_relay, clock):
    publish("t", 1, key="a")
    slow, quick = new_relay("slow"), new_relay("quick")
    slow._share_lanes()
    slow._connect()
    rows = slow._exchange(None)
    refuse(broker, "t")
    outcome = slow._publish(rows)
    clock.advance(61)
    quick._share_lanes()

    slow._exchange(outcome)
    row = OutboxMessage.objects.get()
    broker.judge = staticmethod(lambda event: None)
    quick.turn()

    assert (row.attempts, row.held, slow._lanes) == (0, False, [])
    assert payloads(broker) == [1]


def test_a_late_confirm_frees_the_key_whoever_holds_the_lane(broker, new_relay, clock, monkeypatch):
    monkeypatch.setattr(relays, "REFUSED", -1.0)
    monkeypatch.setattr(relays, "SHARING", -1.0)
    slow, quick = new_relay("slow"), new_relay("quick")
    refuse(broker, "bad")
    publish("bad", 1, key="a")
    slow.turn()
    publish("good", 2, key="a")
    slow.turn()
    broker.judge = staticmethod(lambda event: None)
    clock.advance(30)
    slow._share_lanes()
    outcome = slow._publish(slow._exchange(None))
    clock.advance(61)
    quick._share_lanes()

    slow._exchange(outcome)
    quick.turn()

    assert payloads(broker) == [1, 2]
    assert not OutboxMessage.objects.exists()


def test_messages_that_wait_behind_nothing_are_freed_by_the_sweep(broker, relay, clock):
    refuse(broker, "bad")
    publish("bad", 1, key="a")
    relay.turn()
    publish("good", 2, key="a")
    publish("good", 3, key="b")
    relay.turn()
    OutboxMessage.objects.filter(topic="bad").delete()
    waiting = OutboxMessage.objects.get().held

    sweep()

    assert (waiting, OutboxMessage.objects.get().held) == (True, False)


def test_a_confirm_is_settled_after_the_database_was_away(broker, relay, monkeypatch):
    from django.db import OperationalError

    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    publish("t", 1)
    whole = relays.settle_batch

    def fail(*args, **kwargs):
        monkeypatch.setattr(relays, "settle_batch", whole)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(relays, "settle_batch", fail)

    relay.turn()
    left = OutboxMessage.objects.count()
    relay.turn()

    assert left == 1
    assert payloads(broker) == [1]
    assert OutboxMessage.objects.count() == 0
