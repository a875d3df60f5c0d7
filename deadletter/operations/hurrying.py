"""How are all failed messages of a queue retried now? Piece by piece, as poison is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .. import clock
from ..lifecycle import recover
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, Message, State
from ..patterns import is_pattern
from . import audit
from .acting import PIECE, after_pieces, alias_of, step
from .bulk import Progress, Total
from .queue_names import matching_queues


@dataclass(frozen=True, kw_only=True)
class MessageFilter:
    """Every field narrows; None leaves it open. `queue` is a name, or a pattern (`tenant-a/*`)."""

    queue: str | None = None
    name: str | None = None
    kind: str | None = None
    instance: str | None = None
    stream: str | None = None

    def messages(self, state: str, using: str) -> Any:
        """Return the messages in a state, oldest first, without their payloads."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if self.queue is not None:
            del given["queue"]
            if is_pattern(self.queue):
                given["queue__name__in"] = matching_queues(self.queue, using=using)
            else:
                given["queue__name"] = self.queue
        rows = Message.objects.using(using).light().select_related("queue").order_by("pk")
        return rows.in_state(state, clock.now(using)).filter(**given)


def retry_failed(
    wanted: MessageFilter,
    *,
    by: str | None = None,
    why: str = "",
    limit: int | None = None,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """
    Retry failed messages now instead of at the end of their backoff, oldest first.

    What was sent after the call began is left to its own backoff, so a handler that goes on failing
    cannot make it run for ever.
    """
    alias = alias_of(using)
    newest = Message.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first() or 0
    selection = {key: value for key, value in asdict(wanted).items() if value is not None}
    if wanted.queue is not None and is_pattern(wanted.queue):
        selection["queues"] = matching_queues(wanted.queue, using=alias)
    opening = audit.Opening(
        act=Act.RETRY_NOW, by=by, why=why, selection={**selection, "state": "failed"}
    )
    total, entry, after, looked_at = Total(), None, 0, 0

    def piece(tx: Transaction) -> tuple[list[int], recover.Verdicts, AuditEntry | None]:
        rows = wanted.messages(State.FAILED, alias).filter(pk__gt=after, pk__lte=newest)
        size = PIECE if limit is None else min(PIECE, limit - looked_at)
        ids = list(rows.values_list("pk", flat=True)[:size])
        if not ids:
            return ids, recover.Verdicts(), entry
        return ids, *step(tx, opening, _hurry, ids, start=looked_at, entry=entry)

    while limit is None or looked_at < limit:
        with after_pieces(total.done):
            ids, verdicts, entry = in_transaction(piece, using=alias)
        if not ids:
            break
        after, looked_at = ids[-1], total.add(verdicts)
        if progress is not None:
            progress(looked_at)
    total.entry_id = entry.pk if entry else 0
    return total


def _hurry(tx: Transaction, ids: list[int], start: int) -> tuple[recover.Verdicts, None]:
    return recover.hurry(tx, ids), None
