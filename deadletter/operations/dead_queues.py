"""What people do to messages of dead queues: find what was moved, and retry it where it died."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..lifecycle import dead_queues
from ..lifecycle.act_results import ActResult
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, Message, PoisonRecord, Queue
from . import audit
from .acting import PIECE, Verb, after_pieces, alias_of, carry_out, several, step
from .bulk import Progress, Total
from .poison_records import AS_IT_WAS, Retrial, Terms
from .queue_names import require_queue


def retry_dead(
    message_ids: int | Iterable[int],
    by: str | None = None,
    queue: str | None = None,
    payload: Any = AS_IT_WAS,
    rate: float | None = None,
    *,
    why: str = "",
    literal: bool = False,
    using: str | None = None,
) -> Retrial:
    """
    Move messages of dead queues back where they died: attempts 0, FAILED cleared, their own ids.

    `message_ids` are the ids that they have in the dead queue; their stages, keys and history are
    as they were. `queue` sends them elsewhere; `payload`, `rate` and `literal` as for
    `retry_poison`. Refused with the reason: a message that is being handled, one whose id or key is
    in use, and one whose queue is gone or not known.
    """
    wanted = several(message_ids)
    terms = Terms(queue=queue, payload=payload, rate=rate, literal=literal)
    opening = audit.Opening(
        act=Act.RETRY, by=by, why=why, selection=audit.of_ids(wanted), detail=terms.as_dict()
    )
    found, entry = carry_out(opening, _retrial(terms, by), wanted, using=using)
    return Retrial(found.done, found.missing, found.refused, entry)


@dataclass(frozen=True, kw_only=True)
class DeadQueueFilter:
    """Which messages of a dead queue; every field but the queue narrows."""

    dead_queue: str
    name: str | None = None
    fingerprint: str | None = None

    def messages(self, using: str) -> Any:
        """Return the messages that were moved there, oldest first, without their payloads."""
        rows = Message.objects.using(using).light().select_related("queue").order_by("pk")
        rows = rows.filter(queue__name=self.dead_queue, source_id__isnull=False, origin=None)
        if self.name is not None:
            rows = rows.filter(name=self.name)
        return rows if self.fingerprint is None else rows.filter(fingerprint=self.fingerprint)


def retry_dead_queue(
    wanted: DeadQueueFilter,
    *,
    by: str | None = None,
    why: str = "",
    queue: str | None = None,
    rate: float | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """
    Move what matches in a dead queue back where it died, oldest first; what comes later stays.

    Raises UnknownQueue before anything is touched.
    """
    alias = alias_of(using)
    require_queue(wanted.dead_queue, using=alias)
    terms = Terms(queue=queue, rate=rate)
    if queue is not None:
        require_queue(queue, using=alias)
    newest = Message.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first() or 0
    selection = {key: value for key, value in asdict(wanted).items() if value is not None}
    opening = audit.Opening(
        act=Act.RETRY, by=by, why=why, selection=selection, detail=terms.as_dict()
    )
    verb = _retrial(terms, by)
    total, entry, after, looked_at = Total(), None, 0, 0

    def piece(tx: Transaction) -> tuple[list[int], ActResult, AuditEntry | None]:
        rows = wanted.messages(alias).filter(pk__gt=after, pk__lte=newest)
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


def find_moved(message_id: int, *, using: str | None = None) -> Message | PoisonRecord | None:
    """Return what became of a message that was moved to a dead queue, by the id it had before."""
    if not 0 < message_id < 2**63:
        return None
    alias = alias_of(using)
    # By the index of what was moved, which begins with the queue.
    queues = list(Queue.objects.using(alias).values_list("pk", flat=True))
    rows = Message.objects.using(alias).select_related("queue").filter(origin=None)
    found = rows.filter(queue_id__in=queues, source_id=message_id).order_by("-pk").first()
    if found is not None:
        return found
    records = PoisonRecord.objects.using(alias).filter(origin=None, source_id=message_id)
    return records.order_by("-pk").first()


def moved(message_ids: Iterable[int], *, using: str) -> dict[int, int]:
    """
    Return which of these ids are of messages in dead queues: the ids there, by the ids given.

    An id may be the one in the dead queue, or the one that the message had before.
    """
    ids = list(message_ids)
    queues = list(Queue.objects.using(using).values_list("pk", flat=True))
    found: dict[int, int] = {}
    for first in range(0, len(ids), PIECE):
        piece = ids[first : first + PIECE]
        rows = Message.objects.using(using).filter(origin=None, source_id__isnull=False)
        before = rows.filter(queue_id__in=queues, source_id__in=piece)
        found |= {id: pk for id, pk in before.values_list("source_id", "pk") if id is not None}
        found |= {id: id for id in rows.filter(pk__in=piece).values_list("pk", flat=True)}
    return found


def _retrial(terms: Terms, by: str | None) -> Verb:
    def verb(tx: Transaction, ids: list[int], start: int) -> tuple[ActResult, list[PoisonRecord]]:
        return dead_queues.retry_dead_in(
            tx,
            ids,
            queue=terms.queue,
            payload=terms.text,
            delays=terms.delays(len(ids), start),
            by=audit.person(by),
        )

    return verb
