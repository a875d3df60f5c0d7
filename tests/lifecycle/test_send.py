from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from deadletter import Outgoing, Status, UnknownQueue, asend, asend_many, send, send_many
from deadletter.lifecycle import Failure, claim, complete, fail
from deadletter.models import Message, PoisonRecord


def test_a_message_is_stored_as_it_was_sent(clock, counts):
    message = send("orders.ship", {"order": 7}, stream="c1", key="o7", priority=2, headers={"t": 1})

    row = Message.objects.get()
    assert row == message
    assert (row.queue.name, row.name, row.kind) == ("default", "orders.ship", "message")
    assert (row.payload, row.headers) == ({"order": 7}, {"t": 1})
    assert (row.stream, row.key, row.priority) == ("c1", "o7", 2)
    assert (row.status, row.attempts, row.fence, row.poison_count) == (Status.STORED, 0, 0, 0)
    assert (row.lease_token, row.worker, row.released_at, row.source_id) == (None,) * 4
    assert (row.failure_reason, row.error, row.history) == (None, None, [])
    assert row.available_at == row.created_at == clock.now
    assert counts() == {"pending": 1}


def test_the_returned_row_is_the_stored_row(clock):
    message = send("mail", {"a": [1]}, stream="s", key="k", delay=5, expires_in=9, headers={"h": 1})

    stored = Message.objects.get()
    for field in Message._meta.concrete_fields:
        assert getattr(message, field.attname) == getattr(stored, field.attname), field.name


def test_sending_joins_the_callers_transaction(clock, counts):
    with transaction.atomic():
        send("mail")
        assert counts() == {"pending": 1}
        transaction.set_rollback(True)

    assert counts() == {}


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_never_existed(counts):
    with transaction.atomic():
        send("mail", key="k")
        transaction.set_rollback(True)
    again = send("mail", key="k")

    assert Message.objects.get() == again
    assert counts() == {"pending": 1}


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_schedules_from_now(clock, counts, delay):
    message = send("mail", delay=delay)

    assert message.available_at == clock.now + timedelta(seconds=90)
    assert counts() == {"scheduled": 1}


def test_a_time_schedules_wherever_its_clock_hangs(clock, counts):
    at = (clock.now + timedelta(hours=1)).astimezone(timezone(timedelta(hours=9)))

    send("mail", at=at)

    assert Message.objects.get().available_at == at
    assert counts() == {"scheduled": 1}


def test_a_time_in_the_past_is_due(clock, counts):  # B19
    message = send("mail", at=datetime(2000, 1, 1, tzinfo=UTC))

    assert claim().ids == [message.id]


def test_an_expiry_is_counted_from_now(clock):
    assert send("mail", expires_in=60).expires_at == clock.now + timedelta(seconds=60)


def test_an_unknown_queue_is_refused_with_the_names_that_exist(clock, counts, policy):
    policy("mail")

    with pytest.raises(UnknownQueue) as refused:
        send("mail", queue="maill")

    text = str(refused.value)
    assert text.startswith("queue: there is no queue 'maill' (existing: default, mail)")
    assert "Queue.objects.create(name='maill')" in text
    assert counts() == {}


def test_a_key_returns_the_unfinished_message_instead_of_a_second(clock, counts):
    first = send("mail", {"n": 1}, key="k")

    second = send("mail", {"n": 2}, key="k")

    assert second == first
    assert second.payload == {"n": 1}
    assert counts() == {"pending": 1}


def test_a_key_is_taken_while_its_message_is_leased_waiting_or_parked(clock, counts):
    first = send("mail", key="k")
    batch = claim()
    leased = send("mail", key="k")
    fail(batch.token, [Failure(first.id)])
    waiting = send("mail", key="k")

    assert first == leased == waiting
    assert counts() == {"failed": 1}


def test_a_key_is_free_again_when_its_message_is_finished(clock, counts):
    first = send("mail", key="k")
    batch = claim()
    complete(batch.token, [first.id])

    second = send("mail", key="k")

    assert second.id != first.id
    assert counts() == {"pending": 1}


def test_a_key_is_free_again_when_its_message_is_poison(clock, counts):
    first = send("mail", key="k")
    batch = claim()
    fail(batch.token, [Failure(first.id, permanent=True)])

    second = send("mail", key="k")

    assert second.id != first.id
    assert PoisonRecord.objects.get().key == "k"
    assert counts() == {"pending": 1, "dead": 1}


def test_the_same_key_in_two_queues_is_two_keys(clock, counts, policy):
    policy("other")

    assert send("mail", key="k") != send("mail", key="k", queue="other")
    assert counts() == {"pending": 2}


def test_messages_without_a_key_never_meet(clock, counts):
    assert send("mail") != send("mail")
    assert counts() == {"pending": 2}


def test_sending_costs_one_round_trip(clock, django_assert_num_queries):
    # SQLite counts in a statement of its own: it has no round trips to save.
    with django_assert_num_queries(2 if connection.vendor == "sqlite" else 1):
        send("mail", {"to": 1}, stream="a")


def test_the_async_twins_do_the_same(clock, counts):
    message = async_to_sync(asend)("mail", {"to": 1}, delay=5)
    ids = async_to_sync(asend_many)([Outgoing("mail", n) for n in range(2)])

    assert Message.objects.get(pk=message.id).payload == {"to": 1}
    assert ids == [message.id + 1, message.id + 2]
    assert counts() == {"scheduled": 1, "pending": 2}


@pytest.mark.django_db(databases=["default", "second"])
def test_another_database_may_be_named(counts):
    message = send("mail", {"to": 1}, using="second")
    batch = claim(using="second")

    assert message._state.db == "second"
    assert batch.ids == [message.id]
    assert counts() == {}
    complete(batch.token, batch.ids, using="second")
    assert Message.objects.using("second").count() == 0


def test_dates_numbers_and_ids_are_stored_as_text_and_come_back_as_text(clock):
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    payload = {
        "at": at,
        "day": at.date(),
        "order": UUID(int=7),
        "lines": [{"price": Decimal("9.90")}],
    }
    headers = {"sent": at, "for": timedelta(minutes=5)}

    message = send("mail", payload, headers=headers, key="k")
    [id] = send_many([Outgoing("mail", payload, headers=headers)])

    text = {
        "at": "2026-01-31T12:00:00Z",
        "day": "2026-01-31",
        "order": "00000000-0000-0000-0000-000000000007",
        "lines": [{"price": "9.90"}],
    }
    for row in (message, *Message.objects.filter(pk__in=[message.pk, id]), send("mail", key="k")):
        assert row.payload == text
        assert row.headers == {"sent": "2026-01-31T12:00:00Z", "for": "P0DT00H05M00S"}
    assert claim().messages[0].payload == text
