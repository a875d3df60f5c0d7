"""What a person calls the situation of a message, and what the table refuses."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from deadletter import send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Damaged, Message, Queue, State


@pytest.fixture
def one_of_each(clock) -> dict[str, Message]:
    """A message in every state."""
    failed = send("failed")
    send("active", stream="a")
    batch = claim()
    fail(batch.token, [Failure(failed.id)])
    send("blocked", stream="a")
    claim()
    send("pending")
    send("scheduled", delay=5)
    return {message.name: message for message in Message.objects.all()}


def test_every_message_is_in_exactly_one_state(clock, one_of_each):
    states = {name: message.state(clock.now) for name, message in one_of_each.items()}

    assert states == {name: name for name in one_of_each}
    assert set(states) == {str(state) for state in State} - {"dead"}


def test_the_rows_of_a_state_are_found_by_the_same_rule(clock, one_of_each):
    for name in one_of_each:
        assert [message.name for message in Message.objects.all().in_state(name)] == [name]


def test_a_state_nobody_knows_is_refused(clock):
    with pytest.raises(ValueError, match="'lost' is not a state of a message"):
        Message.objects.all().in_state("lost")


def test_a_failed_message_whose_retry_is_due_is_pending(clock, one_of_each):
    clock.advance(60)

    assert one_of_each["failed"].state(clock.now) == "pending"


@pytest.mark.parametrize("bad", [{"attempts": -1}, {"priority": 101}, {"priority": -101}], ids=str)
def test_the_table_refuses_impossible_numbers(clock, bad):  # A4
    send("mail")

    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.update(**bad)


def test_the_table_refuses_a_second_message_with_a_key(clock):
    send("a", key="k")
    other = send("b")

    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.filter(pk=other.id).update(key="k")


def test_the_table_refuses_a_second_copy_of_a_dead_message(clock):  # B2
    queue = Queue.objects.get(name="default")
    Message.objects.create(queue=queue, name="a", source_id=7, available_at=clock.now)

    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.create(queue=queue, name="b", source_id=7, available_at=clock.now)


def test_a_row_written_by_hand_gets_the_defaults(clock):  # A4
    queue = Queue.objects.get(name="default")

    message = Message.objects.create(queue=queue, name="mail", available_at=clock.now)

    message.refresh_from_db()
    assert (message.attempts, message.fence, message.status, message.poison_count) == (0, 0, 1, 0)
    assert (message.history, message.payload, message.source_id) == ([], None, None)
    assert claim().ids == [message.id]


def test_one_damaged_payload_does_not_break_a_list(clock):
    send("a", {"n": 1})
    damaged = send("b")
    Message.objects.filter(pk=damaged.id).update(payload=Damaged("{broken", ""))

    payloads = [message.payload for message in Message.objects.all()]

    assert payloads[0] == {"n": 1}
    assert isinstance(payloads[1], Damaged)
    assert payloads[1].text == "{broken"


def test_saving_a_damaged_row_keeps_its_text(clock):
    message = send("mail")
    Message.objects.update(payload=Damaged("{broken", ""))
    message.refresh_from_db()

    message.save()

    assert Message.objects.get().payload.text == "{broken"


def test_lists_leave_out_what_may_be_large(clock, django_assert_num_queries):
    send("mail", {"large": "x" * 1000})

    (message,) = Message.objects.all().without_bodies()

    assert {"payload", "headers", "history", "error"} <= message.get_deferred_fields()
