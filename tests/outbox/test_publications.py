"""Handlers whose return values are published, with the completion of their messages."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import transaction

from deadletter import Publication, Status, handler, lifecycle, send, sql, testing
from deadletter.checks import check_handlers
from deadletter.lifecycle import ClaimRequest, Completion, KeptResult, process_batch
from deadletter.lifecycle.publications import prepare_event, read_publication
from deadletter.lifecycle.values import PreparedEvent
from deadletter.models import Message, OutboxMessage, PoisonRecord, Result
from deadletter.tasks import task
from deadletter.worker.registry import registry
from tests.sample.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)

SHIPPED = Publication("orders.shipped")


@task(publish=Publication("numbers.added", key="{sum}", broker="other"))
def add_and_tell(a: int, b: int) -> dict[str, int]:
    return {"sum": a + b}


def events() -> list[tuple[str, str | None, object]]:
    rows = OutboxMessage.objects.order_by("id")
    return [(row.topic, row.key, row.payload) for row in rows]


@pytest.fixture
def statements(monkeypatch) -> list[str]:
    """The named statements that are run from now on."""
    names: list[str] = []
    real = sql.run

    def noting(connection, name, params, **options):
        names.append(name)
        return real(connection, name, params, **options)

    monkeypatch.setattr(sql, "run", noting)
    return names


@pytest.mark.parametrize("atomic", [False, True])
def test_what_a_handler_returns_is_published_when_its_message_ends(handles, counts, atomic):
    handles("ship", lambda message: {"order": message.payload}, publication=SHIPPED, atomic=atomic)
    send("ship", 7)

    testing.drain()

    assert events() == [("orders.shipped", None, {"order": 7})]
    assert counts() == {}


def test_an_async_handler_publishes_as_well(handles):
    async def ship(message):
        return [message.payload]

    handles("ship", ship, publication=SHIPPED)
    send("ship", 7)

    testing.drain()

    assert events() == [("orders.shipped", None, [7])]


def test_none_publishes_nothing(handles, counts):
    handles("ship", lambda message: None, publication=SHIPPED)
    send("ship", 7)

    testing.drain()

    assert (events(), counts()) == ([], {})


def test_a_failure_publishes_nothing_and_the_retry_once(handles, clock):
    def ship(message):
        if message.attempt == 1:
            raise ValueError("no")
        return message.attempt

    handles("ship", ship, publication=SHIPPED)
    send("ship", 7)

    testing.drain()
    assert events() == []
    clock.advance(3600)
    testing.drain()

    assert events() == [("orders.shipped", None, 2)]


def test_an_atomic_handler_that_is_rolled_back_publishes_nothing(handles):
    def ship(message):
        Effect.objects.create(message=message.id, note="shipped")
        return object()

    handles("ship", ship, publication=SHIPPED, atomic=True, max_attempts=1)
    send("ship", 7)

    testing.drain()

    (record,) = PoisonRecord.objects.all()
    assert "return value" in record.last_error
    assert (events(), Effect.objects.count()) == ([], 0)


@pytest.mark.parametrize(
    ("publication", "value", "text"),
    [
        (SHIPPED, object(), "return value: object is not JSON"),
        (SHIPPED, {"a": float("nan")}, "return value.a"),
        (Publication("t", key="order-{id}"), {"no": 1}, "the return value has no field 'id'"),
        (Publication("t", key="order-{id}"), 7, "the return value has no field 'id'"),
        (Publication("t", key="{a.b}"), {"a": {"b": None}}, "a.b: expected text or a whole number"),
        (Publication("t", broker="gone"), 7, "there is no broker 'gone'"),
    ],
)
def test_what_cannot_be_published_is_a_failure_of_the_message(handles, publication, value, text):
    handles("ship", lambda message: value, publication=publication, max_attempts=1)
    handles("other", lambda message: 1, publication=SHIPPED)
    send("ship")
    send("other")

    testing.drain()

    (record,) = PoisonRecord.objects.all()
    assert text in record.last_error
    assert record.last_failure_reason == 3  # VALIDATION_FAILURE
    assert events() == [("orders.shipped", None, 1)]


def test_a_key_is_a_template_over_the_value(handles):
    by_order = Publication("orders.shipped", key="order-{order.id}/{shop}")
    handles("ship", lambda message: message.payload, publication=by_order)
    send("ship", {"order": {"id": 7}, "shop": "a"}, stream="not used")

    testing.drain()

    ((_topic, key, _payload),) = events()
    assert key == "order-7/a"


@pytest.mark.parametrize(
    ("publish", "text"),
    [
        (7, "expected a topic or a Publication"),
        ("two words", "topic"),
    ],
)
def test_wrong_options_are_refused_at_the_definition(publish, text):
    with pytest.raises(ValueError, match=text):
        handler("ship", publish=publish)


@pytest.mark.parametrize("key", ["{", "{a!r}", "{a:>9}", "{}", "{a[0]}", "{a..b}", "", 7])
def test_wrong_templates_are_refused_at_the_definition(key):
    with pytest.raises(ValueError, match="key: "):
        Publication("t", key=key)


def test_a_topic_is_enough():
    try:
        handler("ship", publish="orders.shipped")(lambda message: 1)

        assert registry.get("ship").publication == SHIPPED
    finally:
        registry.remove("ship")


def test_a_broker_that_is_not_in_the_settings_is_an_error_of_check(handles):
    handles("ship", lambda message: 1, publication=Publication("t", broker="gone"))

    (found,) = [item for item in check_handlers(None) if item.id == "deadletter.E017"]

    assert "handler ship publishes to broker 'gone'" in found.msg


def test_a_task_publishes_what_it_returns_and_keeps_its_result():
    result = add_and_tell.enqueue(1, 2)

    testing.drain()

    (row,) = OutboxMessage.objects.all()
    assert (row.broker, row.topic, row.key) == ("other", "numbers.added", "3")
    assert row.payload == {"sum": 3}
    result.refresh()
    assert result.return_value == {"sum": 3}


def test_the_publication_of_a_task_is_checked():
    problem = "publish: expected a topic or a Publication, got 7"
    with pytest.raises(Exception, match=problem):
        task(publish=7)(add_and_tell.func)


def test_a_kept_result_is_stored_and_published(handles):
    handles(
        "ship",
        lambda message: 7,
        publication=SHIPPED,
        encode=json.dumps,
        keep_result=timedelta(days=1),
    )
    send("ship")

    testing.drain()

    assert events() == [("orders.shipped", None, 7)]
    assert Result.objects.count() == 1


def test_a_batch_is_published_by_one_statement(handles, statements):
    ids = [send("ship", n).pk for n in range(20)]
    batch = process_batch(worker="w", claim=ClaimRequest(limit=100))
    done = [
        Completion(item.id, Status.PUBLISHED, batch.token, 0.1, item, returned(item))
        for item in batch.messages
    ]
    statements.clear()

    process_batch(worker="w", token=batch.token, completions=done)

    assert [payload for _topic, _key, payload in events()] == ids
    published = [name for name in statements if name.startswith("publish")]
    assert published in (["publish_many"], ["publish"] * 20)  # SQLite has no round trips


def returned(item) -> KeptResult:
    return KeptResult(None, None, None, prepare_event(SHIPPED, item, item.id))


def test_a_lost_lease_publishes_nothing_and_the_rest_of_the_batch_does(clock):
    send("ship", 1)
    send("ship", 2)
    first = lifecycle.claim(worker="w1", lease=60)
    clock.advance(61)
    second = lifecycle.claim(worker="w2", lease=60, limit=1)
    assert len(second) == 1
    done = [
        Completion(item.id, Status.PUBLISHED, first.token, 0.1, item, returned(item))
        for item in first.messages
    ]
    clock.advance(-2)  # the lease of the second message holds again

    batch = process_batch(worker="w1", token=first.token, completions=done)

    (lost,) = second.ids
    assert batch.lost == [lost]
    assert [payload for _topic, _key, payload in events()] == [id for id in first.ids if id != lost]


def test_handlers_without_publish_cost_no_statement(handles, statements):
    handles("ship", lambda message: 7)
    send("ship")

    testing.drain()

    assert not [name for name in statements if name.startswith("publish")]


# Stages: EVENT_STORED is what the word says.


@pytest.mark.parametrize("atomic", [False, True])
def test_the_stage_event_stored_stores_the_event_and_the_end_does_not_repeat_it(
    handles, clock, atomic
):
    seen: list[Status] = []

    def ship(message):
        seen.append(message.status)
        if not message.status & Status.EVENT_STORED:
            message.next_stage(Status.EVENT_STORED)
        else:
            assert events() == [("orders.shipped", None, 7)]
            if message.attempt == 1:
                raise ValueError("once")
        return 7

    handles("ship", ship, publication=SHIPPED, atomic=atomic)
    send("ship")

    testing.drain()
    clock.advance(3600)
    testing.drain()

    assert events() == [("orders.shipped", None, 7)]
    assert [bool(status & Status.EVENT_STORED) for status in seen] == [False, True, True]
    assert not Message.objects.exists()


def test_other_stages_publish_nothing(handles):
    def ship(message):
        if not message.status & 8:
            message.next_stage(8)
            return "stage"
        return "end"

    handles("ship", ship, publication=SHIPPED)
    send("ship")

    testing.drain()

    assert events() == [("orders.shipped", None, "end")]


def test_event_stored_without_an_event_is_refused(handles):
    handles(
        "ship",
        lambda message: message.next_stage(Status.EVENT_STORED),
        publication=SHIPPED,
        max_attempts=1,
    )
    send("ship")

    testing.drain()

    (record,) = PoisonRecord.objects.all()
    assert "the stage EVENT_STORED needs the event" in record.last_error
    assert not record.status & Status.EVENT_STORED
    assert events() == []


@pytest.mark.parametrize("atomic", [False, True])
def test_a_failure_after_next_stage_does_not_lose_the_event(handles, clock, atomic):
    def ship(message):
        if not message.status & Status.EVENT_STORED:
            message.next_stage(Status.EVENT_STORED)
            if message.attempt == 1:
                raise ValueError("once")
        return message.attempt

    handles("ship", ship, publication=SHIPPED, atomic=atomic)
    send("ship")

    testing.drain()
    assert events() == []
    clock.advance(3600)
    testing.drain()

    assert events() == [("orders.shipped", None, 2)]
    assert not Message.objects.exists()


def test_a_handler_that_has_stored_its_event_itself_says_so(handles):
    def ship(message):
        message.done(Status.EVENT_STORED)
        return 7

    handles("ship", ship, publication=SHIPPED)
    send("ship")

    testing.drain()

    assert events() == []


def test_an_event_is_part_of_the_transaction_of_the_completion(handles):
    send("ship")
    batch = lifecycle.claim(worker="w", lease=60)
    event = PreparedEvent("default", {"topic": "t", "payload": "1", "key": None, "headers": None})
    columns = {**event.columns, "lane": 0}
    kept = KeptResult(None, None, None, PreparedEvent("default", columns))

    with transaction.atomic():
        lifecycle.complete_last(
            batch.token, batch.ids[0], seconds=0.1, wait=60, result=kept, message=batch.messages[0]
        )
        assert OutboxMessage.objects.count() == 1
        transaction.set_rollback(True)

    assert OutboxMessage.objects.count() == 0
    assert Message.objects.count() == 1


def test_nothing_is_no_publication():
    assert read_publication(None) is None
