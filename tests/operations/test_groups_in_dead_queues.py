"""What lies in dead queues is in its group, once, however often it dies there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import FailureReason, operations, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Message, PoisonRecord, Queue


@pytest.fixture
def dead(policy) -> Queue:
    queue = policy("dead")
    policy(on_poison="dead_queue", dead_queue=queue)
    policy("other")
    return queue


def die(name: str = "mail", *, queue: str = "default", error: str = "boom") -> int:
    message = send(name, queue=queue)
    batch = claim(queues=[queue])
    fail(batch.token, [Failure(message.id, permanent=True, error=error)])
    return message.id


def test_a_group_may_lie_in_a_dead_queue_alone(clock, dead):
    at = clock.now
    die()
    clock.advance(60)
    die(error="bang")

    (group,) = operations.list_groups()

    assert (group.name, group.count, group.buried) == ("mail", 2, 2)
    assert (group.sample_id, group.sample_error) == (0, "bang")
    assert (group.first_seen, group.last_seen) == (at, clock.now)
    assert Message.objects.get(pk=group.buried_id).died_at == clock.now
    assert operations.get_group(group.fingerprint) == group


def test_records_and_what_was_moved_are_one_group(clock, dead):
    at = clock.now
    die()
    clock.advance(60)
    die(queue="other", error="newer")
    clock.advance(60)
    die("bill")

    bill, mail = operations.list_groups()

    assert (bill.name, mail.name) == ("bill", "mail")
    assert (mail.count, mail.buried) == (2, 1)
    assert mail.sample_id == PoisonRecord.objects.get().pk
    assert mail.sample_error == "newer"
    assert (mail.first_seen, mail.last_seen) == (at, at + timedelta(seconds=60))
    assert operations.get_group(mail.fingerprint) == mail


def test_a_death_in_the_dead_queue_changes_neither_count_nor_time(clock, dead):
    die()
    (before,) = operations.list_groups()
    clock.advance(7200)
    batch = claim(queues=["dead"])
    other = FailureReason.TIMEOUT_EXCEEDED
    fail(batch.token, [Failure(batch.ids[0], permanent=True, error="other", reason=other)])

    (after,) = operations.list_groups()

    assert (after.fingerprint, after.count, after.buried) == (before.fingerprint, 1, 0)
    assert (after.first_seen, after.last_seen) == (before.first_seen, before.last_seen)


def test_what_was_retried_is_in_no_group(clock, dead):
    die()
    operations.retry_dead(Message.objects.get().pk)

    assert operations.list_groups() == []
