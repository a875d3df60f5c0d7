"""`publish`: a row in the caller's transaction, or nothing."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from deadletter import (
    MessageRejected,
    OutgoingEvent,
    PayloadRejected,
    apublish,
    apublish_many,
    publish,
    publish_many,
)
from deadletter.lifecycle.outbox import LANES, lane_of
from deadletter.models import Message, OutboxMessage

pytestmark = pytest.mark.django_db


def test_a_row_has_what_was_published(clock):
    row = publish("orders.shipped", {"order": 7}, key="order-7", headers={"tenant": "a"})

    stored = OutboxMessage.objects.get()
    assert (stored.pk, stored.topic, stored.key, stored.broker) == (
        row.pk,
        "orders.shipped",
        "order-7",
        "default",
    )
    assert (stored.payload, stored.headers) == ({"order": 7}, {"tenant": "a"})
    assert stored.created_at == row.created_at == clock.now
    assert (stored.held, stored.attempts, stored.retry_at) == (False, 0, None)
    assert stored.lane == lane_of("order-7")
    assert Message.objects.count() == 0


def test_a_rollback_undoes_it():
    with transaction.atomic():
        publish("orders.shipped")
        publish_many([OutgoingEvent("orders.shipped")])
        transaction.set_rollback(True)

    assert OutboxMessage.objects.count() == 0


def test_many_are_stored_in_order():
    events = [OutgoingEvent("t", n, f"k{n % 3}", {"n": str(n)}) for n in range(2_500)]

    ids = publish_many(events, broker="other")

    rows = list(OutboxMessage.objects.order_by("id"))
    assert [row.pk for row in rows] == ids == sorted(ids)
    assert [row.payload for row in rows] == list(range(2_500))
    assert rows[7].key == "k1"
    assert rows[7].headers == {"n": "7"}
    assert {row.broker for row in rows} == {"other"}


def test_async_code_publishes_as_well():
    async def work() -> tuple[OutboxMessage, list[int]]:
        row = await apublish("orders.shipped", {"order": 7}, key="order-7", broker="other")
        events = [OutgoingEvent("orders.paid", 8), OutgoingEvent("orders.paid", 9)]
        return row, await apublish_many(events)

    row, ids = async_to_sync(work)()

    stored = OutboxMessage.objects.order_by("id").values_list("id", "broker", "topic", "payload")
    assert list(stored) == [
        (row.pk, "other", "orders.shipped", {"order": 7}),
        (ids[0], "default", "orders.paid", 8),
        (ids[1], "default", "orders.paid", 9),
    ]


def test_one_that_is_refused_refuses_all():
    with pytest.raises(PayloadRejected):
        publish_many([OutgoingEvent("t", 1), OutgoingEvent("t", object())])

    assert OutboxMessage.objects.count() == 0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"topic": "two words"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"payload": {1, 2}}, "payload"),
        ({"key": ""}, "key"),
        ({"key": "a\nb"}, "key"),
        ({"headers": []}, "headers"),
        ({"headers": {"n": 1}}, "headers"),
        ({"headers": {"": "a"}}, "headers"),
        ({"headers": {"cloudEvents:id": "1"}}, "headers"),
        ({"broker": "nowhere"}, "broker"),
    ],
)
def test_bad_input_is_refused_with_nothing_stored(given, field):
    with pytest.raises(MessageRejected) as refused:
        publish(**{"topic": "orders.shipped", **given})

    assert refused.value.field == field
    assert OutboxMessage.objects.count() == 0


def test_without_brokers_the_error_says_what_to_do(settings):
    settings.DEADLETTER = {}

    with pytest.raises(MessageRejected, match=r"add it to DEADLETTER\[\"BROKERS\"\]"):
        publish("orders.shipped")


def test_a_key_has_one_lane_and_others_have_any():
    assert lane_of("order-7") == lane_of("order-7")
    assert {lane_of(None) for _ in range(1_000)} == set(range(LANES))
    assert {lane_of(str(n)) for n in range(1_000)} == set(range(LANES))
