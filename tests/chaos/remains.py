"""What the database says in the end, for the checker."""

from __future__ import annotations

from collections import Counter
from typing import Any

from deadletter.models import Kind, Message, OutboxMessage, PoisonRecord, Result
from deadletter.tasks.frameworks import primary
from tests.sample.models import Effect

from .checker import Remains, StoredResult
from .event_checker import EventRemains
from .tasks import DEAD, tag_of


def read_remains(**known: Any) -> Remains:
    """Read messages, poison, effects and results; a message of a dead queue counts as poison."""
    queued = [(row.pk, row) for row in Message.objects.exclude(queue__name=DEAD)]
    poison: list[tuple[int, Any]] = [(row.message_id, row) for row in _poison(is_event=False)]
    moved = Message.objects.filter(queue__name=DEAD)
    poison += [(row.source_id or row.pk, row) for row in moved]
    results = [
        StoredResult(row.pk, tag_of(row.payload), row.outcome, (row.value or {}).get("fence"))
        for row in Result.objects.all()
    ]
    tasks = {id for id, row in (*queued, *poison) if row.kind == Kind.TASK}
    return Remains(
        queued=[(id, tag_of(row.payload)) for id, row in queued],
        poison=[(id, tag_of(row.payload)) for id, row in poison],
        effects=dict(Counter(Effect.objects.values_list("message", flat=True))),
        results=results,
        statuses={id: _status(id) for id in tasks | {result.id for result in results}},
        **known,
    )


def read_event_remains() -> EventRemains:
    """Read what is left in the outbox, and what the broker has refused."""
    return EventRemains(
        outbox=[(row.pk, row.payload["tag"]) for row in OutboxMessage.objects.all()],
        poison=[(row.source_id or 0, row.payload["tag"]) for row in _poison(is_event=True)],
    )


def _poison(*, is_event: bool) -> list[PoisonRecord]:
    return [row for row in PoisonRecord.objects.all() if (row.kind == Kind.EVENT) == is_event]


def _status(id: int) -> str | None:
    """Return what an application reads, or None if it finds no result."""
    try:
        return str(primary().backends["default"].get_result(str(id)).status)
    except primary().result_does_not_exist:
        return None
