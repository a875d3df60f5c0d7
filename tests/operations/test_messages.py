"""What people do to messages that are still in a queue."""

from __future__ import annotations

import pytest

from deadletter import FailureReason, Outgoing, Status, operations, send, send_many
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Message


def failed(**options) -> Message:
    message = send("mail", **options)
    batch = claim(limit=1)
    fail(batch.token, [Failure(message.id, error="boom", completed=Status.EVENT_STORED)])
    return message


def test_a_failed_message_is_retried_now_with_a_fresh_count(clock, counts):  # C20, E6
    message = failed()

    outcome = operations.retry_now([message.id])

    row = Message.objects.get()
    assert outcome.retried == [message.id]
    assert (row.attempts, row.status) == (0, Status.STORED | Status.EVENT_STORED)
    assert (row.available_at, len(row.history)) == (clock.now, 1)
    assert counts() == {"pending": 1}
    assert claim().messages[0].attempt == 1


def test_an_automatic_retry_keeps_the_count(clock):  # E7, D16
    failed()
    clock.advance(60)

    assert claim().messages[0].attempt == 2


def test_only_a_failed_message_can_be_retried_now(clock, counts):  # E8
    active = send("mail")
    claim()
    pending, scheduled = send("mail"), send("mail", delay=60)
    before = list(Message.objects.values())

    outcome = operations.retry_now([active.id, pending.id, scheduled.id, 999_999])

    assert (outcome.retried, outcome.missing) == ([], [999_999])
    assert {id: text.split(";")[0] for id, text in outcome.refused.items()} == {
        active.id: f"message {active.id} is active",
        pending.id: f"message {pending.id} is pending",
        scheduled.id: f"message {scheduled.id} is scheduled",
    }
    assert list(Message.objects.values()) == before


def test_retrying_the_head_now_lets_its_stream_go_on(clock, counts):
    head = failed(stream="a")
    follower = send("mail", stream="a")
    assert claim().ids == []

    operations.retry_now(head.id)

    assert claim().ids == [head.id, follower.id]


def test_a_waiting_message_can_be_removed(clock, counts):
    waiting, other = send("mail"), send("mail")

    outcome = operations.remove([waiting.id, 999_999])

    assert (outcome.removed, outcome.missing) == ([waiting.id], [999_999])
    assert Message.objects.get() == other


def test_an_active_message_cannot_be_removed(clock, counts):
    message = send("mail")
    claim()

    outcome = operations.remove([message.id])

    assert outcome.removed == []
    assert counts() == {"active": 1}


def test_candidates_for_poison_are_the_often_tried_worst_first(clock):  # C16
    ids = send_many([Outgoing("mail") for _ in range(5)])
    for id, attempts in zip(ids, (10, 9, 12, 10, 50), strict=True):
        Message.objects.filter(pk=id).update(attempts=attempts, status=32769)
    Message.objects.filter(pk=ids[4]).update(status=Status.STORED)

    assert [message.id for message in operations.poison_candidates()] == [ids[2], ids[0], ids[3]]
    assert len(operations.poison_candidates(attempts=9)) == 4
    assert operations.poison_candidates(attempts=13) == []


def test_the_counts_are_given_per_queue_and_in_total(clock, policy):  # A20, C19
    policy("other")
    policy("empty")
    failed()
    send("mail", queue="other", delay=5)
    dead = send("mail", queue="other")
    operations.poison([dead.id], why="-")

    stats = operations.stats()

    assert stats.queues["default"].failed == 1
    assert (stats.queues["other"].scheduled, stats.queues["other"].dead) == (1, 1)
    assert stats.queues["empty"].pending == 0
    assert (stats.total.failed, stats.total.scheduled, stats.total.dead) == (1, 1, 1)
    assert (stats.total.pending, stats.total.active, stats.total.blocked) == (0, 0, 0)
    assert stats.kinds["message"] == {"waiting": 2, "dead": 1}
    assert stats.retries == {1: 1}
    assert stats.reasons == {FailureReason.UNKNOWN.name: 1}


@pytest.mark.parametrize("verb", ["retry_now", "release", "remove"])
def test_one_id_or_many_will_do(clock, verb):
    assert getattr(operations, verb)(999_999).missing == [999_999]
    assert getattr(operations, verb)(iter([999_999])).missing == [999_999]
    assert getattr(operations, verb)([]).missing == []
