"""How are all failed messages of a queue retried now? Piece by piece, as poison is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .. import clock
from ..lifecycle import manual_acts
from ..lifecycle.act_results import ActResult
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, Message, State
from ..patterns import is_pattern
from ..status import FailureReason, Status
from . import audit
from .acting import PIECE, Verb, after_pieces, alias_of, step
from .bulk import Progress, Total
from .filters import as_reason
from .queue_names import matching_queues


@dataclass(frozen=True, kw_only=True)
class MessageFilter:
    """
    Every field narrows; None leaves it open. `queue` is a name, or a pattern (`tenant-a/*`).

    `kind` and `reason` have no index. Raises ValueError for a reason that does not exist.
    """

    queue: str | None = None
    name: str | None = None
    kind: str | None = None
    instance: str | None = None
    stream: str | None = None
    #: What its last failure was: a FailureReason, its number or its name.
    reason: FailureReason | int | str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            # Frozen: this is the only moment at which a field may be written.
            object.__setattr__(self, "reason", as_reason(self.reason))

    def messages(self, state: str, using: str) -> Any:
        """Return the messages in a state, oldest first, without their payloads."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if self.queue is not None:
            del given["queue"]
            if is_pattern(self.queue):
                given["queue__name__in"] = matching_queues(self.queue, using=using)
            else:
                given["queue__name"] = self.queue
        if "reason" in given:
            given["failure_reason"] = given.pop("reason")
        if state == State.FAILED:
            # Implied by the bit, and unlike it known to an index.
            given["status__gte"] = int(Status.FAILED)
        rows = Message.objects.using(using).light().select_related("queue").order_by("pk")
        return rows.in_state(state, clock.now(using)).filter(**given)


def retry_failed(
    wanted: MessageFilter,
    *,
    by: str | None = None,
    why: str = "",
    limit: int | None = None,
    reset: bool = True,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """
    Retry failed messages now instead of at the end of their backoff, oldest first.

    Their attempts are counted from 0 again, unless `reset` is False. What was sent after the call
    began is left to its own backoff, so a handler that goes on failing cannot make it run for ever.
    """
    alias = alias_of(using)
    newest = Message.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first() or 0
    selection = {key: value for key, value in asdict(wanted).items() if value is not None}
    if wanted.queue is not None and is_pattern(wanted.queue):
        selection["queues"] = matching_queues(wanted.queue, using=alias)
    opening = audit.Opening(
        act=Act.RETRY_NOW,
        by=by,
        why=why,
        selection={**selection, "state": "failed"},
        detail=in_detail(reset),
    )
    verb = _hurry(reset)
    total, entry, after, looked_at = Total(), None, 0, 0

    def piece(tx: Transaction) -> tuple[list[int], ActResult, AuditEntry | None]:
        rows = wanted.messages(State.FAILED, alias).filter(pk__gt=after, pk__lte=newest)
        size = PIECE if limit is None else min(PIECE, limit - looked_at)
        ids = list(rows.values_list("pk", flat=True)[:size])
        if not ids:
            return ids, ActResult(), entry
        return ids, *step(tx, opening, verb, ids, start=looked_at, entry=entry)

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


def in_detail(reset: bool) -> dict[str, bool]:
    """Return what the audit entry says beside who, which and why: only what is not the rule."""
    return {} if reset else {"reset": False}


def _hurry(reset: bool) -> Verb:
    return lambda tx, ids, start: (manual_acts.retry_now_in(tx, ids, reset=reset), None)
