"""The relay: damaged rows, limits of columns, and errors at the wrong moment."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from deadletter import OutgoingEvent, operations, publish, publish_many, signals
from deadletter.exceptions import LockNotAvailable
from deadletter.models import BrokerStatus, Count, OutboxMessage, PoisonRecord
from deadletter.outbox.transports.base import BrokerRefusal, BrokerUnavailable
from deadletter.status import FailureReason
from deadletter.worker import relay as relays

pytestmark = pytest.mark.django_db(transaction=True)

UNROUTABLE = BrokerRefusal(FailureReason.TRANSPORT_UNAVAILABLE, "no queue is bound")
TOO_LARGE = BrokerRefusal(FailureReason.VALIDATION_FAILURE, "too large", is_permanent=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)


def payloads(broker) -> list[object]:
    return [int(event.data) for event in broker.arrived]


def refuse(broker, *topics: str, refusal: BrokerRefusal = UNROUTABLE) -> None:
    broker.judge = staticmethod(lambda event: refusal if event.topic in topics else None)


def write(column: str, value: object, row: OutboxMessage) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE deadletter_outbox SET {column} = %s WHERE id = %s", [value, row.pk])


def test_a_topic_of_200_characters_becomes_poison(broker, relay):
    topic = "t" * 200
    refuse(broker, topic, refusal=TOO_LARGE)
    publish(topic, 1, key="k" * 200)

    relay.turn()

    record = PoisonRecord.objects.get()
    assert (record.name, record.stream, len(record.origin)) == (topic, "k" * 200, 200)
    assert not OutboxMessage.objects.exists()


def test_a_key_waits_for_each_of_its_refused_messages(broker, relay, clock, monkeypatch):
    monkeypatch.setattr(relays, "REFUSED", -1.0)
    refuse(broker, "bad", "worse")
    publish_many([OutgoingEvent("bad", 1, "a"), OutgoingEvent("worse", 2, "a")])
    relay.turn()
    OutboxMessage.objects.filter(topic="worse").update(retry_at=clock.now + timedelta(seconds=30))
    publish("good", 3, key="a")
    relay.turn()

    refuse(broker)
    clock.advance(12)
    relay.turn()
    first = payloads(broker)
    clock.advance(30)
    relay.turn()

    assert (first, payloads(broker)) == ([1], [1, 2, 3])
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("damage", ["{", "[1]", '{"a": 1}'])
def test_damaged_headers_stop_no_other_message(broker, relay, damage):
    row = publish("t", 1, key="a", headers={"tenant": "x"})
    write("headers", damage, row)
    publish("t", 2, key="b")

    relay.turn()

    assert payloads(broker) == [2]
    record = PoisonRecord.objects.get()
    assert (record.source_id, record.last_failure_reason) == (
        row.pk,
        FailureReason.VALIDATION_FAILURE,
    )


def test_a_missing_payload_stops_no_other_message(broker, relay):
    row = publish("t", 1, key="a")
    write("payload", None, row)
    publish("t", 2, key="b")

    relay.turn()

    assert payloads(broker) == [2]
    assert PoisonRecord.objects.get().source_id == row.pk


@pytest.mark.parametrize("damage", ['{"a": 1}', "7", "[7]"])
def test_a_damaged_history_is_replaced(broker, relay, damage):
    refuse(broker, "bad")
    row = publish("bad", 1, key="a")
    write("history", damage, row)
    publish("t", 2, key="b")

    relay.turn()

    assert payloads(broker) == [2]
    assert [entry["attempt"] for entry in OutboxMessage.objects.get().history] == [1]


def test_a_refusal_that_was_settled_before_is_counted_once(broker, relay):
    broker.judge = staticmethod(lambda event: TOO_LARGE if event.topic == "large" else UNROUTABLE)
    publish("bad", 1, key="a")
    publish("large", 2, key="b")
    relay._share_lanes()
    relay._connect()
    outcome = relay._publish(relay._exchange(None))
    relay._exchange(outcome)
    heard = []

    def hear(**about):
        heard.append(about)

    # The commit succeeded, but its answer was lost.
    signals.message_poisoned.connect(hear)
    relay._exchange(outcome)
    signals.message_poisoned.disconnect(hear)

    assert heard == []
    counts = Count.objects.filter(queue="outbox:default")
    assert sum(count.failed for count in counts) == 2
    assert sum(count.poisoned for count in counts) == 1
    assert OutboxMessage.objects.get().attempts == 1


def test_a_relay_that_ends_settles_what_the_broker_has_confirmed(broker, new_relay, monkeypatch):
    publish("t", 1)
    relay = new_relay()
    settle, failures = relays.settle_batch, [LockNotAvailable()]

    def fail(*args, **kwargs):
        if failures:
            relay.stop()
            raise failures.pop()
        return settle(*args, **kwargs)

    monkeypatch.setattr(relays, "settle_batch", fail)

    relay.run()

    assert payloads(broker) == [1]
    assert not OutboxMessage.objects.exists()


def test_a_confirm_is_settled_while_the_broker_is_away(broker, relay, monkeypatch):
    publish("t", 1)
    settle, failures = relays.settle_batch, [LockNotAvailable()]

    def fail(*args, **kwargs):
        if failures:
            raise failures.pop()
        return settle(*args, **kwargs)

    monkeypatch.setattr(relays, "settle_batch", fail)
    relay.turn()
    broker.away = "connection refused"

    relay.turn()

    assert not OutboxMessage.objects.exists()


def test_drain_tries_again_when_a_lock_was_not_available(broker, new_relay, monkeypatch):
    publish("t", 1)
    share, failures = relays.share_lanes, [LockNotAvailable(), OperationalError("connection lost")]

    def fail(*args, **kwargs):
        if failures:
            raise failures.pop()
        return share(*args, **kwargs)

    monkeypatch.setattr(relays, "share_lanes", fail)

    new_relay().run()

    assert payloads(broker) == [1]


def test_drain_ends_when_the_database_stays_away(new_relay, monkeypatch):
    turns = []

    def fail(*args, **kwargs):
        turns.append(1)
        raise OperationalError("connection lost")

    monkeypatch.setattr(relays, "share_lanes", fail)

    new_relay().run()

    assert len(turns) == relays.DRAIN_TRIES


def test_the_text_of_a_broker_that_is_away_may_be_anything(broker, relay):
    publish("t", 1)
    broker.away = "\x00 \ud800"

    relay.turn()

    assert BrokerStatus.objects.get().error == "\ufffd ?"


def test_a_broker_that_connects_and_accepts_nothing_is_one_outage(
    broker, relay, clock, caplog, monkeypatch
):
    publish("t", 1)

    def fail(*args, **kwargs):
        raise BrokerUnavailable("no answer")

    publishes = broker.publish
    monkeypatch.setattr(broker, "publish", fail)
    began = clock.now
    for _ in range(3):
        relay.turn()
        clock.advance(5)
    status = BrokerStatus.objects.get()
    monkeypatch.setattr(broker, "publish", publishes)
    relay.turn()

    assert (status.error, status.unavailable_since) == ("no answer", began)
    assert BrokerStatus.objects.get().unavailable_since is None
    logged = [record.event for record in caplog.records if record.event.startswith("broker_")]
    assert logged == ["broker_unavailable", "broker_available"]
    assert payloads(broker) == [1]


def test_a_broker_that_is_back_is_reported_without_a_message(broker, relay):
    broker.away = "connection refused"
    relay.turn()
    broker.away = None

    relay.turn()

    assert BrokerStatus.objects.get().unavailable_since is None


def test_the_delays_grow_while_a_broker_accepts_nothing(broker, relay, monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.001)
    publish("t", 1)

    def fail(*args, **kwargs):
        raise BrokerUnavailable("no answer")

    monkeypatch.setattr(broker, "publish", fail)
    relay._delay = 0.001

    for _ in range(3):
        relay.turn()

    assert relay._delay == 0.008


@pytest.mark.parametrize("error", [TypeError("secret"), ImportError("secret")])
def test_a_transport_that_fails_is_reported(broker, relay, monkeypatch, error):
    publish("t", 1)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(broker, "publish", fail)

    relay.turn()

    status = BrokerStatus.objects.get()
    assert status.unavailable_since is not None
    assert status.error == f"the relay failed: {type(error).__name__}; its log has the traceback"


def test_a_retry_with_a_delay_holds_nobody(broker, relay, clock, monkeypatch):
    monkeypatch.setattr(relays, "REFUSED", -1.0)
    monkeypatch.setattr(relays, "SHARING", -1.0)
    refuse(broker, "large", refusal=TOO_LARGE)
    publish_many([OutgoingEvent("large", n, "a") for n in (1, 2)])
    relay.turn()
    refuse(broker)
    ids = list(PoisonRecord.objects.order_by("id").values_list("pk", flat=True))
    operations.retry_poison(ids, rate=0.05, by="ann")
    publish("t", 3, key="a")

    relay.turn()
    first = payloads(broker)
    clock.advance(21)
    relay.turn()

    assert (first, payloads(broker)) == ([1, 3], [1, 3, 2])
    assert not OutboxMessage.objects.exists()


def test_a_broker_that_left_the_settings_is_listed_while_messages_wait(settings):
    publish("t", 1, broker="other")
    settings.DEADLETTER = {"BROKERS": {"default": settings.DEADLETTER["BROKERS"]["default"]}}

    found = {report.name: report for report in operations.list_brokers()}

    assert sorted(found) == ["default", "other"]
    assert (found["other"].is_configured, found["other"].waiting) == (False, 1)


def test_a_batch_is_no_larger_than_its_confirms_can_be_waited_for(broker, relay, monkeypatch):
    monkeypatch.setattr(relays, "BATCH_BYTES", 1_000)
    publish_many([OutgoingEvent("t", "x" * 400, "k") for _ in range(7)])
    publish_many([OutgoingEvent("t", "x" * 2_000, "k"), OutgoingEvent("t", 1, "k")])
    ids = [str(id) for id in OutboxMessage.objects.order_by("id").values_list("pk", flat=True)]

    relay.turn()

    assert max(broker.batches) == 2
    assert broker.batches[-2:] == [1, 1]
    assert [event.id for event in broker.arrived] == ids


def test_fewer_messages_are_read_when_they_are_large(broker, relay, monkeypatch):
    monkeypatch.setattr(relays, "BATCH_BYTES", 1_000)
    publish_many([OutgoingEvent("t", "x" * 400, "k") for _ in range(40)])
    read = []
    whole = relays.read_batch

    def count(*args, **kwargs):
        rows = whole(*args, **kwargs)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(relays, "read_batch", count)

    relay.turn()

    assert len(broker.arrived) == 40
    # Not all that wait, again for each batch.
    assert sum(read) < 3 * 40


def test_a_relay_gives_no_lane_back_before_it_has_settled_what_was_confirmed(
    broker, new_relay, monkeypatch
):
    monkeypatch.setattr(relays, "SHARING", -1.0)
    publish_many([OutgoingEvent("t", n, f"k{n}") for n in range(40)])
    first, second = new_relay("first"), new_relay("second")
    settle, failures = relays.settle_batch, [LockNotAvailable()]

    def fail(*args, **kwargs):
        if failures:
            raise failures.pop()
        return settle(*args, **kwargs)

    monkeypatch.setattr(relays, "settle_batch", fail)
    first.turn()
    second.turn()
    real = first._settle

    def settle_late():
        # From now on the first one holds a half of the lanes at most.
        second.turn()
        return real()

    monkeypatch.setattr(first, "_settle", settle_late)
    first.turn()

    assert sorted(payloads(broker)) == list(range(40))
    assert not OutboxMessage.objects.exists()
