"""What is counted and announced of a message that was settled?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import signals
from ..models import Message, Queue
from ..sql import Row
from ..status import FailureReason
from ..text import storable_text
from .announce import announce
from .counters import Subject
from .transaction import Transaction
from .values import Failure, Outcome, Scheduled


def count_failure(tx: Transaction, failure: Failure, subject: Subject) -> None:
    reason = FailureReason.read(failure.reason)
    if reason is FailureReason.UNREGISTERED:
        tx.counts.add(subject, "deferred")
    else:
        subject = subject._replace(reason=int(reason))
        tx.counts.add(subject, "failed", seconds=failure.seconds)


def completions_are_heard() -> bool:
    """Whether somebody wants to know which messages are finished."""
    return signals.message_completed.has_listeners(Message)


def announce_completed(
    tx: Transaction, gone: Sequence[Row], seconds: Mapping[int, float | None]
) -> None:
    def each() -> Iterator[dict[str, Any]]:
        queues = _queue_names(tx, (row[1] for row in gone))
        for id, queue_id, name, kind in gone:
            yield {
                "message_id": id,
                "queue": queues[queue_id],
                "name": name,
                "kind": kind,
                "seconds": seconds.get(id),
            }

    announce(tx.using, "message_completed", signals.message_completed, sender=Message, each=each)


def announce_failed(
    tx: Transaction,
    mine: Sequence[Row],
    failures: Mapping[int, Failure],
    outcomes: Mapping[int, Outcome],
) -> None:
    def each() -> Iterator[dict[str, Any]]:
        queues = _queue_names(tx, (row[2] for row in mine))
        for id, attempts, queue_id, name, kind, *_policy in mine:
            outcome = outcomes.get(id)
            yield {
                "message_id": id,
                "queue": queues[queue_id],
                "name": name,
                "kind": kind,
                "attempts": attempts,
                "reason": FailureReason.read(failures[id].reason),
                "error": storable_text(failures[id].error),
                "retry_at": outcome.at if isinstance(outcome, Scheduled) else None,
            }

    announce(tx.using, "message_failed", signals.message_failed, sender=Message, each=each)


def _queue_names(tx: Transaction, ids: Iterable[int]) -> dict[int, str]:
    queues = Queue.objects.using(tx.using).filter(pk__in=set(ids))
    return dict(queues.values_list("pk", "name"))
