"""Messages of dead queues: find a moved message, and retry it in the queue it died in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ..lifecycle import dead_queues
from ..lifecycle.transaction import Transaction
from ..lifecycle.values import ActResult
from ..models import Act, Message, PoisonRecord, Queue, primary_alias
from . import audit
from .acts import POSSIBLE_IDS, Progress, Total, act_on_ids, act_on_matches, as_ids, pieces
from .poison_records import AS_IT_WAS, RetryOptions
from .queues import require_queue


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
) -> ActResult:
    """
    Move messages of dead queues back to the queue they died in, under the ids they had there.

    Attempts 0, FAILED cleared; stages, keys and history kept. `message_ids` are their ids in the
    dead queue. `queue` moves them to another queue; `payload`, `rate` and `literal` as for
    `retry_poison`. Refused with the reason: active messages, messages whose id or key is in use,
    and messages whose queue is missing or unknown.
    """
    wanted = as_ids(message_ids)
    options = RetryOptions(queue=queue, payload=payload, rate=rate, literal=literal)
    options.check_for(Message.objects.using(primary_alias(using)), wanted)
    selection, detail = audit.of_ids(wanted), options.as_dict()
    new = audit.NewEntry(act=Act.RETRY, by=by, why=why, selection=selection, detail=detail)
    return act_on_ids(new, partial(_retry_piece, options=options, by=by), wanted, using=using)


@dataclass(frozen=True, kw_only=True)
class DeadQueueFilter:
    """A selection of the messages of a dead queue; every field but the queue narrows it."""

    dead_queue: str
    name: str | None = None
    fingerprint: str | None = None

    def messages(self, using: str) -> Any:
        """Return the messages that were moved to the dead queue, oldest first, without payloads."""
        rows = Message.objects.using(using).without_bodies().select_related("queue").order_by("pk")
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
    Move matching messages of a dead queue back to where they died, oldest first.

    Messages that arrive later stay. Raises UnknownQueue before any change.
    """
    alias = primary_alias(using)
    require_queue(wanted.dead_queue, using=alias)
    options = RetryOptions(queue=queue, rate=rate)
    if queue is not None:
        require_queue(queue, using=alias)
    newest = Message.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first() or 0
    selection = {key: value for key, value in asdict(wanted).items() if value is not None}
    detail = options.as_dict()
    new = audit.NewEntry(act=Act.RETRY, by=by, why=why, selection=selection, detail=detail)
    return act_on_matches(
        new,
        partial(_retry_piece, options=options, by=by),
        lambda: wanted.messages(alias).filter(pk__lte=newest),
        limit=limit,
        progress=progress,
        using=alias,
    )


def find_moved(message_id: int, *, using: str | None = None) -> Message | PoisonRecord | None:
    """Return the copy, or its poison record, of a moved message by the id it had before."""
    if message_id not in POSSIBLE_IDS:
        return None
    alias = primary_alias(using)
    # Naming the queues lets the index of moved messages, which begins with the queue, find it.
    queues = list(Queue.objects.using(alias).values_list("pk", flat=True))
    rows = Message.objects.using(alias).select_related("queue").filter(origin=None)
    found = rows.filter(queue_id__in=queues, source_id=message_id).order_by("-pk").first()
    if found is not None:
        return found
    records = PoisonRecord.objects.using(alias).filter(origin=None, source_id=message_id)
    return records.order_by("-pk").first()


def moved(message_ids: Iterable[int], *, using: str) -> dict[int, int]:
    """
    Return the ids of messages in dead queues, by the ids given; other ids are left out.

    An id may be the id in the dead queue, or the one that the message had before.
    """
    queues = list(Queue.objects.using(using).values_list("pk", flat=True))
    found: dict[int, int] = {}
    for piece in pieces(list(message_ids)):
        rows = Message.objects.using(using).filter(origin=None, source_id__isnull=False)
        before = rows.filter(queue_id__in=queues, source_id__in=piece)
        found |= {id: pk for id, pk in before.values_list("source_id", "pk") if id is not None}
        found |= {id: id for id in rows.filter(pk__in=piece).values_list("pk", flat=True)}
    return found


def _retry_piece(
    tx: Transaction, ids: list[int], start: int, *, options: RetryOptions, by: str | None
) -> ActResult:
    return dead_queues.retry_dead_in(
        tx,
        ids,
        queue=options.queue,
        payload=options.payload,
        delays=options.delays(len(ids), start),
        by=audit.person(by),
    )
