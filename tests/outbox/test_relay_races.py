"""Two relays, a retry and a confirm that comes late; the order of messages that were refused."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections

from deadletter import OutgoingEvent, operations, publish, publish_many
from deadletter.exceptions import LockNotAvailable
from deadletter.lifecycle import outbox_batches
from deadletter.lifecycle.outbox_batches import settle_batch
from deadletter.lifecycle.transaction import SHORT_WAIT, in_transaction
from deadletter.models import OutboxMessage, PoisonRecord
from deadletter.outbox.transports.base import BrokerRefusal
from deadletter.status import FailureReason
from deadletter.worker import relay as relays

pytestmark = pytest.mark.django_db(transaction=True)

UNROUTABLE = BrokerRefusal(FailureReason.TRANSPORT_UNAVAILABLE, "no queue is bound")
TOO_LARGE = BrokerRefusal(FailureReason.VALIDATION_FAILURE, "too large", is_permanent=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(relays, "REFUSED", -1.0)


def refuse(broker, refusal: BrokerRefusal | None) -> None:
    broker.judge = staticmethod(lambda event: refusal)


def read_and_publish(relay):
    """Do what a relay does until the confirms are there."""
    relay._share_lanes()
    relay._connect()
    return relay._publish(relay._exchange(None))


def test_refused_messages_of_a_key_are_tried_again_in_their_order(broker, relay, clock):
    refuse(broker, UNROUTABLE)
    publish_many([OutgoingEvent("t", n, f"k{n % 2}") for n in range(60)])
    relay.turn()
    refuse(broker, None)

    for _ in range(200):
        clock.advance(0.02)
        relay.turn()
    assert broker.arrived == []
    for _ in range(200):
        clock.advance(0.05)
        relay.turn()

    for rest in (0, 1):
        of_key = [int(event.data) for event in broker.arrived if int(event.data) % 2 == rest]
        assert of_key == list(range(rest, 60, 2))


def test_refused_messages_of_a_key_keep_their_order_when_they_are_many(
    broker, new_relay, clock, settings
):
    settings.DEADLETTER["BROKERS"]["default"] |= {"batch": 64, "max_attempts": None}
    settings.DEADLETTER = dict(settings.DEADLETTER)
    refuse(broker, UNROUTABLE)
    publish_many([OutgoingEvent("t", n, "k") for n in range(40)])
    relay = new_relay()
    relay._share_lanes()
    relay._share = 40
    relay.turn()
    assert OutboxMessage.objects.filter(attempts=1).count() == 40
    relay._share = 4
    clock.advance(12)
    relay.turn()  # some of them are refused once more
    refuse(broker, None)

    for _ in range(60):
        relay._share = 4
        clock.advance(1)
        relay.turn()

    assert [int(event.data) for event in broker.arrived] == list(range(40))


def test_a_late_confirm_does_not_delete_a_retry(broker, new_relay, clock):
    row = publish("t", {"n": 1}, key="a")
    slow, quick = new_relay("slow"), new_relay("quick")
    confirmed = read_and_publish(slow)
    clock.advance(61)
    refuse(broker, TOO_LARGE)
    quick.turn()
    operations.retry_poison([PoisonRecord.objects.get().pk], payload={"n": 2}, by="ann")

    slow._exchange(confirmed)
    again = OutboxMessage.objects.get()
    refuse(broker, None)
    clock.advance(61)
    quick.turn()

    assert (again.pk, again.poison_count) == (row.pk, 1)
    assert [event.data for event in broker.arrived] == ['{"n":1}', '{"n":2}']


def test_a_late_refusal_does_not_count_for_a_retry(broker, new_relay, clock, monkeypatch):
    monkeypatch.setattr(relays, "SHARING", -1.0)
    publish("t", {"n": 1}, key="a")
    slow, quick = new_relay("slow"), new_relay("quick")
    refuse(broker, TOO_LARGE)
    refused = read_and_publish(slow)
    clock.advance(61)
    quick.turn()
    operations.retry_poison([PoisonRecord.objects.get().pk], payload={"n": 2}, by="ann")
    clock.advance(61)
    slow._share_lanes()

    slow._exchange(refused)

    assert not PoisonRecord.objects.exists()
    assert OutboxMessage.objects.get().attempts == 0


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
def test_a_message_that_dies_cannot_be_confirmed_meanwhile(broker, relay, clock, monkeypatch):
    publish("t", 1, key="a")
    refuse(broker, TOO_LARGE)
    refused = read_and_publish(relay)
    confirmed = outbox_batches.BatchOutcome(published=[refused.refused[0][0]])
    whole, errors = outbox_batches._quarantine, []

    def confirm() -> None:
        try:
            in_transaction(
                lambda tx: settle_batch(tx, relay.broker, confirmed, lanes=(), by="other"),
                wait=SHORT_WAIT,
            )
        except LockNotAvailable as error:
            errors.append(error)
        finally:
            connections.close_all()

    def quarantine(*args, **kwargs):
        other = threading.Thread(target=confirm)
        other.start()
        other.join()
        whole(*args, **kwargs)

    monkeypatch.setattr(outbox_batches, "_quarantine", quarantine)

    relay._exchange(refused)

    assert len(errors) == 1
    assert PoisonRecord.objects.count() == 1
