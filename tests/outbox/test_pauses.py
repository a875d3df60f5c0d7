"""Pauses: what waits, what goes on, and the order of keys across pause and resume."""

from __future__ import annotations

import random

import pytest

from deadletter import MessageRejected, OutgoingEvent, operations, publish, publish_many
from deadletter.lifecycle import sweep
from deadletter.models import AuditEntry, OutboxMessage, OutboxPause
from deadletter.outbox.transports.base import BrokerRefusal
from deadletter.status import FailureReason
from deadletter.worker import relay as relays

pytestmark = pytest.mark.django_db(transaction=True)

UNROUTABLE = BrokerRefusal(FailureReason.TRANSPORT_UNAVAILABLE, "no queue is bound")


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    """Relays look for pauses and refused messages at every turn."""
    monkeypatch.setattr(relays, "SHARING", -1.0)
    monkeypatch.setattr(relays, "REFUSED", -1.0)


def payloads(broker) -> list[int]:
    return [int(event.data) for event in broker.arrived]


def held() -> list[tuple[int, bool, bool]]:
    rows = OutboxMessage.objects.order_by("id")
    return [(row.payload, row.held, row.paused) for row in rows]


def test_a_paused_topic_waits_and_the_others_go_on(broker, relay):
    operations.pause_outbox("mail", by="ann")
    publish_many([OutgoingEvent("mail", 1), OutgoingEvent("orders", 2), OutgoingEvent("mail", 3)])

    relay.turn()

    assert payloads(broker) == [2]
    assert held() == [(1, True, True), (3, True, True)]


def test_what_was_paused_is_published_when_it_is_resumed(broker, relay):
    operations.pause_outbox("mail")
    publish_many([OutgoingEvent("mail", n, "a") for n in range(5)])
    relay.turn()
    assert payloads(broker) == []
    operations.resume_outbox("mail")
    publish("mail", 5, key="a")

    relay.turn()

    assert payloads(broker) == [0, 1, 2, 3, 4, 5]
    assert held() == []


def test_a_pattern_pauses_the_topics_that_it_matches(broker, relay):
    operations.pause_outbox("mail.*")
    for n, topic in enumerate(("mail.sent", "mail", "mail.read")):
        publish(topic, n)

    relay.turn()

    assert payloads(broker) == [1]
    assert operations.resume_outbox("mail.sent") is False
    operations.resume_outbox("mail.*")
    relay.turn()
    assert sorted(payloads(broker)) == [0, 1, 2]


def test_a_topic_stays_paused_while_any_pause_covers_it(broker, relay):
    operations.pause_outbox("mail")
    operations.pause_outbox("m*")
    publish("mail", 1)
    relay.turn()
    operations.resume_outbox("mail")

    relay.turn()

    assert payloads(broker) == []
    operations.resume_outbox("m*")
    relay.turn()
    assert payloads(broker) == [1]


def test_a_paused_broker_gets_nothing_and_nothing_is_updated(broker, new_relay):
    operations.pause_outbox()
    publish("mail", 1)
    publish("mail", 2, broker="other")

    first = new_relay()
    first.turn()
    new_relay(broker="other").turn()

    assert payloads(broker) == [2]
    assert held() == [(1, False, False)]
    operations.resume_outbox()
    first.turn()
    assert payloads(broker) == [2, 1]


def test_messages_of_other_topics_wait_behind_a_paused_one_of_their_key(broker, relay):
    operations.pause_outbox("mail")
    publish("orders", 1, key="a")
    publish("mail", 2, key="a")
    publish("orders", 3, key="a")
    publish("orders", 4, key="b")
    relay.turn()
    publish("orders", 5, key="a")

    relay.turn()

    assert payloads(broker) == [1, 4]
    assert held() == [(2, True, True), (3, True, False), (5, True, False)]
    operations.resume_outbox("mail")
    relay.turn()
    assert payloads(broker) == [1, 4, 2, 3, 5]


def test_a_message_between_two_paused_topics_goes_on_with_the_first(broker, relay):
    operations.pause_outbox("mail")
    operations.pause_outbox("news")
    for n, topic in enumerate(("mail", "orders", "news", "orders", "mail")):
        publish(topic, n, key="a")
    relay.turn()
    operations.resume_outbox("mail")

    relay.turn()

    assert payloads(broker) == [0, 1]
    assert held() == [(2, True, True), (3, True, False), (4, True, False)]
    assert sweep().archive == 0  # the sweep does not free what waits behind a paused message
    relay.turn()
    assert payloads(broker) == [0, 1]
    operations.resume_outbox("news")
    relay.turn()
    assert payloads(broker) == [0, 1, 2, 3, 4]


def test_another_relay_that_takes_the_lanes_knows_what_is_held(broker, new_relay):
    operations.pause_outbox("mail")
    publish("mail", 1, key="a")
    first = new_relay("first")
    first.turn()
    first._end()
    operations.resume_outbox("mail")
    second = new_relay("second")
    publish("orders", 2, key="a")

    second.turn()

    assert payloads(broker) == [1, 2]


def test_resumed_messages_go_on_in_pieces_of_a_batch(broker, new_relay, settings):
    settings.DEADLETTER["BROKERS"]["default"]["batch"] = 10
    settings.DEADLETTER = dict(settings.DEADLETTER)
    operations.pause_outbox("mail")
    relay = new_relay()
    publish_many([OutgoingEvent("mail", n, "a") for n in range(100)])
    publish_many([OutgoingEvent("mail", n) for n in range(100, 200)])
    relay.turn()
    assert OutboxMessage.objects.filter(paused=True).count() == 200
    operations.resume_outbox("mail")

    relay.turn()

    assert [n for n in payloads(broker) if n < 100] == list(range(100))
    assert sorted(payloads(broker)) == list(range(200))
    assert max(broker.batches) <= 20


def test_a_refused_message_whose_topic_is_paused_is_not_tried(broker, relay, clock):
    broker.judge = staticmethod(lambda event: UNROUTABLE if event.topic == "mail" else None)
    publish("mail", 1, key="a")
    publish("mail", 2, key="a")
    relay.turn()
    operations.pause_outbox("mail")
    clock.advance(3600)
    relay.turn()
    assert [row.attempts for row in OutboxMessage.objects.order_by("id")] == [1, 1]
    publish("orders", 3, key="a")
    broker.judge = staticmethod(lambda event: None)

    relay.turn()
    assert payloads(broker) == []
    operations.resume_outbox("mail")
    relay.turn()
    relay.turn()

    assert payloads(broker) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(12))
def test_keys_keep_their_order_whatever_is_paused_resumed_and_refused(
    broker, new_relay, clock, settings, seed
):
    """Histories at random: at the end everything has arrived once, each key in order."""
    chance = random.Random(seed)
    settings.DEADLETTER["BROKERS"]["default"] |= {"batch": 7, "max_attempts": None}
    settings.DEADLETTER = dict(settings.DEADLETTER)
    topics, keys, sent = ("mail", "news", "orders"), ("a", "b", None), 0
    seen: dict[int, str] = {}
    refused: set[str] = set()
    broker.judge = staticmethod(lambda event: UNROUTABLE if event.topic in refused else None)
    relay = new_relay("0")
    for step in range(60):
        act = chance.random()
        topic = chance.choice(topics)
        if act < 0.5:
            for _ in range(chance.randint(1, 8)):
                key = chance.choice(keys)
                publish(chance.choice(topics), sent, key=key)
                seen[sent] = key or ""
                sent += 1
        elif act < 0.6:
            operations.pause_outbox(topic if chance.random() < 0.8 else "")
        elif act < 0.75:
            operations.resume_outbox(topic)
            operations.resume_outbox()
        elif act < 0.8 and seed % 2:
            refused ^= {topic}
        elif act < 0.85:
            relay._end()
            relay = new_relay(str(step))
        clock.advance(chance.randint(0, 700))
        relay.turn()
    refused.clear()
    for pause in operations.list_pauses():
        operations.resume_outbox(pause.topic)
    for _ in range(10):
        clock.advance(700)
        relay.turn()

    assert OutboxMessage.objects.count() == 0
    arrived = payloads(broker)
    assert sorted(arrived) == list(range(sent))
    if not seed % 2:  # a refused message may be passed by those of its own batch
        for key in "ab":
            of_key = [n for n in arrived if seen[n] == key]
            assert of_key == sorted(of_key)


def test_pauses_are_audited_once(relay):
    assert operations.pause_outbox("mail", by="ann", why="they asked") is True
    assert operations.pause_outbox("mail", by="bob") is False
    assert operations.resume_outbox("mail", by="bob") is True
    assert operations.resume_outbox("mail", by="bob") is False

    rows = AuditEntry.objects.order_by("id").values_list("act", "by", "why", "selection", "done")
    about = {"broker": "default", "topic": "mail"}
    assert list(rows) == [
        ("pause_outbox", "ann", "they asked", about, 1),
        ("resume_outbox", "bob", "", about, 1),
    ]
    assert OutboxPause.objects.count() == 0


@pytest.mark.parametrize("topic", ["two words", "\x00*", "*" * 201])
def test_what_is_no_topic_and_no_pattern_is_refused(topic):
    with pytest.raises(MessageRejected, match="topic"):
        operations.pause_outbox(topic)


def test_a_broker_that_does_not_exist_cannot_be_paused():
    with pytest.raises(MessageRejected, match="there is no broker 'gone'"):
        operations.pause_outbox(broker="gone")
