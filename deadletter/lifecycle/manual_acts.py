"""
The acts of people on messages in a queue: retry now, release by name, poison, discard.

Each act has a function that tells without locks whether a message would be refused; pages ask it
before they offer the act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.db.models import F

from ..models import Kind, Message, ResultOutcome, State, is_moved
from ..status import FailureReason, Status
from . import results, retry_outcomes, streams
from .notify import notify_after_commit
from .quarantine import MessageDeath, quarantine
from .refusals import Refusal, RefusalReason
from .transaction import Transaction
from .values import ActResult

#: Everything that counts failures since the last retry by a person, as it is for a new message.
_FRESH: dict[str, Any] = {
    "attempts": 0,
    "status": F("status").bitand(~int(Status.FAILED)),
    "reason_counts": None,
    "unregistered_count": None,
    "unregistered_at": None,
}


def retry_now_in(tx: Transaction, message_ids: Iterable[int], *, reset: bool = True) -> ActResult:
    """
    Retry messages that were tried before, now instead of at the end of their delay.

    With `reset` attempts are counted from 0 again, as for every retry by a person. Without it the
    next attempt is the one that would have come later.
    """

    def change(tx: Transaction, message: Message, state: str) -> None:
        changes: dict[str, Any] = {}
        if state != State.PENDING:  # a due message keeps its place in the queue
            changes["available_at"] = tx.time()
        if reset:
            changes |= _FRESH
        if changes:
            _row(tx, message).update(**changes)

    return _each(tx, message_ids, refuse_retry_now, change)


def release_by_name_in(tx: Transaction, message_ids: Iterable[int]) -> ActResult:
    """Release messages by name: each may pass a waiting or poisoned predecessor of its stream."""

    def change(tx: Transaction, message: Message, state: str) -> None:
        changes: dict[str, Any] = {"released_at": tx.time()}
        if state == State.BLOCKED:
            changes["available_at"] = tx.time()
        _row(tx, message).update(**changes)

    return _each(tx, message_ids, refuse_release, change)


def poison_in(
    tx: Transaction, message_ids: Iterable[int], *, why: str, by: str = "operator"
) -> ActResult:
    """Quarantine messages by hand. Active messages are refused."""

    def change(tx: Transaction, message: Message, state: str) -> None:
        quarantine(tx, [MessageDeath(message.pk, FailureReason.OPERATOR, why)], by=by)

    return _each(tx, message_ids, refuse_poison, change)


def discard_in(tx: Transaction, message_ids: Iterable[int]) -> ActResult:
    """Delete messages for good. Active messages and messages of instances are refused."""

    def change(tx: Transaction, message: Message, state: str) -> None:
        if message.kind == Kind.TASK:
            outcome = ResultOutcome.REMOVED if is_moved(message) else ResultOutcome.CANCELLED
            results.keep_results_of_messages(tx, [message.pk], outcome=outcome)
        tx.run("delete", ids=[message.pk])
        retry_outcomes.mark_removed(tx, [message.pk])

    return _each(tx, message_ids, refuse_discard, change)


def refuse_retry_now(message: Message, state: str) -> Refusal | None:
    """Return why a message in this state cannot be retried now, or None."""
    if state == State.ACTIVE:
        return Refusal(RefusalReason.ACTIVE_RETRY, id=message.pk)
    if state == State.BLOCKED:
        return Refusal(RefusalReason.BLOCKED, id=message.pk)
    if not message.was_tried:
        return Refusal(RefusalReason.NEVER_TRIED, id=message.pk, state=State(state))
    return None


def refuse_release(message: Message, state: str) -> Refusal | None:
    """Return why a message in this state cannot be released by name, or None."""
    if message.stream is None:
        return Refusal(RefusalReason.NO_STREAM, id=message.pk)
    if state == State.ACTIVE:
        return Refusal(RefusalReason.ACTIVE_RELEASE, id=message.pk)
    return None


def refuse_poison(message: Message, state: str) -> Refusal | None:
    """Return why a message in this state cannot be poisoned by hand, or None."""
    return Refusal(RefusalReason.ACTIVE, id=message.pk) if state == State.ACTIVE else None


def refuse_discard(message: Message, state: str) -> Refusal | None:
    """Return why a message in this state cannot be deleted, or None."""
    if state == State.ACTIVE:
        return Refusal(RefusalReason.ACTIVE, id=message.pk)
    if message.instance is not None:
        return Refusal(RefusalReason.INSTANCE_WAITS, id=message.pk, instance=message.instance)
    return None


def _each(
    tx: Transaction,
    message_ids: Iterable[int],
    refuse: Callable[[Message, str], Refusal | None],
    change: Callable[[Transaction, Message, str], None],
) -> ActResult:
    """Lock streams, then rows in id order; change each message or note why it is refused."""
    ids = list(dict.fromkeys(message_ids))
    streams.lock(tx, ids)
    rows = Message.objects.using(tx.using).without_bodies().select_for_update().order_by("pk")
    found = {message.pk: message for message in rows.filter(pk__in=ids)}
    now = tx.time()
    result = ActResult(missing=[id for id in ids if id not in found])
    for id, message in found.items():
        state = message.state(now)
        if refusal := refuse(message, state):
            result.refused[id] = refusal
        else:
            change(tx, message, state)
            result.done.append(id)
    streams.wake(tx, {(m.queue_id, m.stream) for m in found.values() if m.stream is not None})
    if result.done:
        notify_after_commit(tx.using)
    return result


def _row(tx: Transaction, message: Message) -> Any:
    return Message.objects.using(tx.using).filter(pk=message.pk)
