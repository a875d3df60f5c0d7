"""What people do to messages that are still in a queue."""

from __future__ import annotations

import pytest

from deadletter import FailureReason, Outgoing, Status, operations, send, send_many
from deadletter.lifecycle import Failure, abandon, claim, fail
from deadletter.models import AuditEntry, Message


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


def test_only_what_was_tried_can_be_retried_now(clock, counts):  # E8
    active = send("mail")
    claim()
    pending, scheduled = send("mail"), send("mail", delay=60)
    before = list(Message.objects.values())

    outcome = operations.retry_now([active.id, pending.id, scheduled.id, 999_999])

    assert (outcome.retried, outcome.missing) == ([], [999_999])
    assert {id: text.split(";")[0] for id, text in outcome.refused.items()} == {
        active.id: f"message {active.id} is active",
        pending.id: f"message {pending.id} is pending and was never tried",
        scheduled.id: f"message {scheduled.id} is scheduled and was never tried",
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


def abandoned(error: str | None, **options) -> Message:
    message = send("mail", **options)
    batch = claim(limit=1)
    abandon(batch.token, message.id, delay=600, error=error)
    return message


@pytest.mark.parametrize("error", ["gave up", None])
def test_an_abandoned_message_is_retried_now(clock, counts, error):
    message, other = abandoned(error), send("mail", delay=600)
    assert counts() == {"scheduled": 2}

    outcome = operations.retry_now([message.id])

    row = Message.objects.get(pk=message.id)
    assert (outcome.retried, outcome.refused) == ([message.id], {})
    assert (row.available_at, row.attempts, row.error) == (clock.now, 0, error)
    assert counts() == {"pending": 1, "scheduled": 1}
    assert Message.objects.get(pk=other.id).available_at > clock.now


def test_what_is_due_again_counts_from_0_and_keeps_its_place(clock, counts):
    message = failed()
    clock.advance(60)
    due = Message.objects.get().available_at
    clock.advance(60)

    outcome = operations.retry_now([message.id])

    row = Message.objects.get()
    assert outcome.retried == [message.id]
    assert (row.available_at, row.attempts) == (due, 0)
    assert not row.status & Status.FAILED
    assert counts() == {"pending": 1}


def test_now_without_a_fresh_count_is_a_choice(clock, counts):
    message = failed()
    status = Message.objects.get().status

    outcome = operations.retry_now([message.id], by="ann", reset=False)

    row = Message.objects.get()
    assert outcome.retried == [message.id]
    assert (row.available_at, row.attempts, row.status) == (clock.now, 1, status)
    assert AuditEntry.objects.get().detail == {"reset": False}
    assert claim().messages[0].attempt == 2


def test_a_fresh_count_is_one_for_every_reason(clock):
    message = failed()
    Message.objects.update(reason_counts={"2": 1}, unregistered_count=3)

    operations.retry_now([message.id], reset=False)
    row = Message.objects.get()
    assert (row.reason_counts, row.unregistered_count) == ({"2": 1}, 3)

    operations.retry_now([message.id])
    row = Message.objects.get()
    assert (row.reason_counts, row.unregistered_count) == (None, None)


def test_each_refusal_says_what_to_do(clock):
    active = send("mail")
    claim()
    head = failed(stream="a")
    blocked = send("mail", stream="a")
    claim()
    new = send("mail")

    outcome = operations.retry_now([active.id, blocked.id, new.id])

    assert outcome.retried == []
    assert outcome.refused == {
        active.id: f"message {active.id} is active; wait for its worker, or for its lease to end",
        blocked.id: f"message {blocked.id} is blocked; retry what holds its stream, or release it "
        "to let it pass",
        new.id: f"message {new.id} is pending and was never tried; there is nothing to retry",
    }
    assert Message.objects.get(pk=head.id).attempts == 1


def test_a_dead_message_cannot_keep_its_count(clock, counts):
    dead, waiting = failed(), failed()
    operations.poison([dead.id], why="broken")

    outcome = operations.retry_messages([dead.id, waiting.id], reset=False)

    assert outcome.retried == [waiting.id]
    assert outcome.refused == {
        dead.id: f"message {dead.id} is dead; a retry of a dead message always resets its attempts"
    }
    assert counts() == {"dead": 1, "pending": 1}


def failed_of(reason: FailureReason) -> Message:
    message = send("mail")
    fail(claim(limit=1).token, [Failure(message.id, error=reason.name, reason=reason)])
    return message


@pytest.mark.parametrize("given", [FailureReason.TRANSPORT_UNAVAILABLE, 1, "transport_unavailable"])
def test_failed_messages_are_found_and_retried_by_their_reason(clock, counts, given):
    down = failed_of(FailureReason.TRANSPORT_UNAVAILABLE)
    failed_of(FailureReason.TIMEOUT_EXCEEDED)

    assert operations.list_messages("failed", reason=given) == [down]
    total = operations.retry_failed(operations.MessageFilter(reason=given), reset=False)

    assert (total.done, counts()) == (1, {"pending": 1, "failed": 1})
    assert AuditEntry.objects.get().selection == {"reason": 1, "state": "failed"}
    assert Message.objects.get(pk=down.id).attempts == 1


def test_a_reason_that_does_not_exist_is_named():
    for filter in (operations.MessageFilter, operations.PoisonFilter):
        with pytest.raises(ValueError, match="reason: 'bad_luck' is none of TRANSPORT_UNAVAILABLE"):
            filter(reason="bad_luck")
    assert operations.PoisonFilter(reason="Expired").reason == FailureReason.EXPIRED
