"""Dead and failed messages for tests of what people do to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connection
from django.utils import timezone

from deadletter import FailureReason, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import AuditEntry, Message, PoisonRecord, Queue


def dead(name: str = "mail", payload: Any = None, *, error: str = "boom", **options: Any):
    """Send, claim and fail for good; return the record."""
    failure = options.pop("failure", {})
    message = send(name, payload, **options)
    batch = claim(limit=1, queues=[options.get("queue", "default")])
    assert batch.ids == [message.id]
    fail(batch.token, [Failure(message.id, permanent=True, error=error, **failure)])
    return PoisonRecord.objects.get(message_id=message.id)


def failed(
    name: str = "mail",
    payload: Any = None,
    *,
    error: str = "boom",
    reason: FailureReason = FailureReason.HANDLER_EXCEPTION,
    **options: Any,
) -> Message:
    message = send(name, payload, **options)
    batch = claim(limit=1, queues=[options.get("queue", "default")])
    fail(batch.token, [Failure(message.id, error=error, reason=reason)])
    return Message.objects.get(pk=message.id)


def many_dead(count: int, *, payload: Any = None, first: int = 1_000_000, **fields: Any) -> None:
    """Write records directly: what matters is their number."""
    fields = {
        "queue": "default",
        "name": "mail",
        "attempts": 5,
        "max_attempts": 5,
        "reason": FailureReason.POISON_MESSAGE,
        "verdict": "gave up",
        "last_failure_reason": FailureReason.HANDLER_EXCEPTION,
        "last_error": "boom",
        "fingerprint": "0" * 16,
        "exception": "Boom",
        "original_created_at": timezone.now(),
        "poisoned_at": timezone.now(),
        "poisoned_by": "w",
        **fields,
    }
    # These ids were given out, as far as SQLite's sequence is concerned.
    Message.objects.create(pk=first + count, queue=Queue.objects.get(name="default"), name="last")
    Message.objects.filter(pk=first + count).delete()
    for start in range(first, first + count, 5_000):
        PoisonRecord.objects.bulk_create(
            PoisonRecord(message_id=id, payload=payload, **fields)
            for id in range(start, min(start + 5_000, first + count))
        )
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE deadletter_poison")


def entries() -> list[tuple[Any, ...]]:
    """Return the audit trail: act, by, why, done, missing, refused."""
    rows = AuditEntry.objects.order_by("pk")
    return list(rows.values_list("act", "by", "why", "done", "missing", "refused"))


def pks(records: Iterable[PoisonRecord]) -> list[int]:
    return [record.pk for record in records]
