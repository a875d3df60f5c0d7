"""The archive: what a broker has confirmed is kept as long as asked, and published again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import MessageRejected, OutgoingEvent, operations, publish, publish_many
from deadletter.lifecycle import sweep, sweeps
from deadletter.models import AuditEntry, OutboxMessage, PublishedMessage
from deadletter.operations import ArchiveFilter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kept(settings) -> None:
    settings.DEADLETTER = {**settings.DEADLETTER, "OUTBOX_KEPT": "3d"}


def test_nothing_is_kept_unless_the_settings_say_so(relay):
    publish("orders", 1)

    relay.turn()

    assert OutboxMessage.objects.count() == PublishedMessage.objects.count() == 0


def test_what_is_confirmed_is_kept_with_its_id(relay, kept, clock):
    row = publish("orders", {"n": 1.10}, key="a", headers={"tenant": "x"})
    stored_at = clock.now
    clock.advance(5)

    relay.turn()

    (found,) = PublishedMessage.objects.all()
    assert (found.pk, found.broker, found.topic, found.key) == (row.pk, "default", "orders", "a")
    assert (found.payload, found.headers) == ({"n": 1.1}, {"tenant": "x"})
    assert (found.created_at, found.published_at) == (stored_at, clock.now)
    assert OutboxMessage.objects.count() == 0


def test_a_broker_may_keep_for_another_time(new_relay, settings):
    settings.DEADLETTER["BROKERS"]["other"]["kept"] = "1h"
    settings.DEADLETTER = dict(settings.DEADLETTER)
    publish("orders", 1)
    publish("orders", 2, broker="other")

    new_relay().turn()
    new_relay(broker="other").turn()

    assert list(PublishedMessage.objects.values_list("broker", flat=True)) == ["other"]


def test_the_sweep_deletes_what_is_past_its_time_in_pieces(
    relay, kept, clock, settings, monkeypatch
):
    monkeypatch.setattr(sweeps, "CHUNK", 2)
    publish_many([OutgoingEvent("orders", n) for n in range(5)])
    relay.turn()
    clock.advance(2 * 86_400)
    publish("orders", 5)
    relay.turn()
    assert sweep().archive == 0
    clock.advance(86_400)

    assert sweep().archive == 5

    assert [row.payload for row in PublishedMessage.objects.all()] == [5]
    settings.DEADLETTER = {**settings.DEADLETTER, "OUTBOX_KEPT": None}
    clock.advance(10**8)
    assert sweep().archive == 0
    settings.DEADLETTER = {**settings.DEADLETTER, "OUTBOX_KEPT": "never"}
    assert sweep().archive == 1


def test_a_message_is_published_again_with_a_new_id(broker, relay, kept, clock):
    row = publish("orders", {"n": 1.10}, key="a", headers={"tenant": "x"})
    relay.turn()
    first = clock.now
    clock.advance(60)

    result = operations.publish_again([row.pk, 10**9], by="ann", why="lost")

    assert (result.done, result.missing) == (1, 1)
    relay.turn()
    before, after = broker.arrived
    assert (after.topic, after.key, after.data) == (before.topic, before.key, before.data)
    assert after.id != before.id
    assert after.time == clock.now
    assert after.headers == {
        "tenant": "x",
        "original-id": before.id,
        "original-time": first.isoformat(),
    }
    entry = AuditEntry.objects.get(pk=result.entry_id)
    assert (entry.act, entry.by, entry.why) == ("publish_again", "ann", "lost")
    assert (entry.done, entry.missing) == (1, 1)
    assert PublishedMessage.objects.count() == 2


def test_messages_of_a_topic_and_time_are_published_again_in_order(
    broker, relay, kept, clock, monkeypatch
):
    monkeypatch.setattr(operations.outbox, "PIECE", 2)
    start = clock.now
    for n in range(7):
        publish("orders", n, key="a")
        publish("mail", 100 + n, key="a")
        relay.turn()
        clock.advance(60)
    broker.arrived.clear()
    wanted = ArchiveFilter(
        topic="orders", since=start + timedelta(minutes=1), until=start + timedelta(minutes=6)
    )

    result = operations.publish_again_matching(wanted, by="ann")

    relay.turn()
    assert [int(event.data) for event in broker.arrived] == [1, 2, 3, 4, 5]
    assert (result.done, result.missing) == (5, 0)
    (entry,) = AuditEntry.objects.all()
    assert entry.selection == wanted.as_dict()
    assert entry.done == 5


def test_nothing_selected_writes_no_entry(kept):
    assert operations.publish_again_matching(ArchiveFilter(topic="orders")).entry_id == 0
    assert operations.publish_again([]).entry_id == 0
    assert AuditEntry.objects.count() == 0


def test_a_broker_that_is_gone_is_refused_and_nothing_is_stored(new_relay, kept, settings):
    row = publish("orders", 1, broker="other")
    new_relay(broker="other").turn()
    brokers = {"default": settings.DEADLETTER["BROKERS"]["default"]}
    settings.DEADLETTER = {**settings.DEADLETTER, "BROKERS": brokers}

    with pytest.raises(MessageRejected, match="there is no broker 'other'"):
        operations.publish_again([row.pk])

    assert OutboxMessage.objects.count() == AuditEntry.objects.count() == 0


def test_published_messages_are_found_by_topic_key_and_broker(relay, kept):
    publish("orders", 1, key="a")
    publish("mail", 2, key="a")
    publish("mail", 3)
    relay.turn()

    def found(**wanted):
        return [row.payload for row in operations.list_published(**wanted)]

    assert found() == [3, 2, 1]
    assert found(topic="mail") == [3, 2]
    assert found(key="a") == [2, 1]
    assert found(key="a", topic="mail") == [2]
    assert found(broker="other") == []
    assert found(limit=1) == [3]
