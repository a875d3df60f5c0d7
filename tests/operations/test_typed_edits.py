"""An edited payload is checked against the class of its handler; a mismatch changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from deadletter import operations, send, testing
from deadletter.exceptions import PayloadMismatch
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import AuditEntry, Message, PoisonRecord
from tests.sample import tasks
from tests.sample.payloads import BAD, GOOD, PLACE, TYPED

from .records import dead


@pytest.fixture
def moved(clock, policy) -> Message:
    """A message "orders.ship" of "default" in its dead queue."""
    policy(on_poison="dead_queue", dead_queue=policy("dead"))
    message = send("orders.ship", BAD)
    batch = claim(queues=["default"])
    fail(batch.token, [Failure(message.id, error="boom", permanent=True)])
    policy(on_poison="quarantine", dead_queue=None)
    return Message.objects.get(source_id=message.id)


def refused(act: Any, ids: Any, payload: Any) -> str:
    with pytest.raises(PayloadMismatch) as refusal:
        act(ids, payload=payload)
    assert not AuditEntry.objects.exists()
    return str(refusal.value)


def test_a_retry_of_poison_is_checked_and_quotes_no_value(clock, counts, handles):
    record = dead("orders.ship", {"order": "x"})
    handles("orders.ship", print, payload=TYPED)

    assert refused(operations.retry_poison, record.pk, BAD) == PLACE
    assert counts() == {"dead": 1}
    assert operations.retry_poison(record.pk, payload=GOOD).retried == [record.pk]
    assert Message.objects.get().payload == GOOD


def test_one_mismatch_among_several_records_changes_none(clock, counts, handles):
    records = [dead("mail"), dead("orders.ship")]
    handles("orders.ship", print, payload=TYPED)

    refused(operations.retry_poison, [record.pk for record in records], BAD)

    assert counts() == {"dead": 2}


def test_a_retry_without_an_edit_is_not_checked(clock, counts, handles):
    record = dead("orders.ship", BAD)
    handles("orders.ship", print, payload=TYPED)

    assert operations.retry_poison(record.pk).retried == [record.pk]
    assert counts() == {"pending": 1}


def test_a_retry_from_a_dead_queue_is_checked(moved, counts, handles):
    handles("orders.ship", print, payload=TYPED)

    assert refused(operations.retry_dead, moved.pk, BAD) == PLACE
    assert Message.objects.get().pk == moved.pk
    assert operations.retry_dead(moved.pk, payload=GOOD).retried == [moved.pk]
    assert Message.objects.get(pk=moved.source_id).payload == GOOD


def test_a_retry_by_message_ids_is_checked_before_either_kind_is_retried(moved, counts, handles):
    record = dead("mail")
    handles("orders.ship", print, payload=TYPED)
    ids = [record.message_id, moved.source_id]

    assert refused(operations.retry_messages, ids, BAD) == PLACE
    assert counts() == {"pending": 1, "dead": 1}
    assert operations.retry_messages(ids, payload=GOOD).retried == sorted(ids)


def test_messages_of_an_instance_are_checked_by_their_kind(clock, handles):
    record = dead("orders.ship", {"order": "x"})
    type(record).objects.update(kind="orchestration")
    handles("orders.ship", print, payload=TYPED)

    # The message of a flow is an event, not the payload of a handler.
    operations.retry_poison(record.pk, payload=BAD)

    assert Message.objects.get().payload == BAD


def test_a_payload_that_a_task_cannot_be_called_with_is_refused(clock, counts):
    result = tasks.fail_for_good.enqueue()
    testing.drain()
    record = PoisonRecord.objects.get()

    problem = "payload: fail_for_good: got an unexpected keyword argument 'user_id'"
    assert refused(operations.retry_poison, record.pk, {"kwargs": {"user_id": 7}}) == problem
    assert refused(operations.retry_messages, int(result.id), [7]).startswith("payload: expected")
    assert counts() == {"dead": 1}
    assert operations.retry_poison(record.pk, payload={"args": []}).retried == [record.pk]
