"""Poison records: list, read, preview, retry and remove them by id; their effect on instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from .. import clock, payload_types
from ..conf import NAME, get_settings
from ..lifecycle import retries
from ..lifecycle.instances import on_retry
from ..lifecycle.transaction import Transaction, in_transaction
from ..lifecycle.values import ActResult
from ..models import Act, AuditEntry, Instance, Kind, PoisonRecord, primary_alias
from ..payload import accept, decode
from ..status import FailureReason
from ..text import short_repr
from . import audit
from .acts import POSSIBLE_IDS, act_in, act_on_ids, after_pieces, as_ids, pieces
from .filters import PoisonFilter
from .hidden_values import refuse_markers

#: The payload of a retry that keeps the payload of each message.
AS_IT_WAS: Any = object()
#: Messages per second. At a slower rate a large retry would end centuries from now.
SLOWEST, FASTEST = 0.001, 1_000_000
#: Records shown as an example.
SAMPLE = 5

# Public names of the result of a retry and of a removal.
Retrial = ActResult
Removal = ActResult


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The records that an act would touch. `wanted` is fixed: later deaths do not match."""

    wanted: PoisonFilter
    count: int
    #: The first of them, without their payloads.
    sample: list[PoisonRecord]
    #: How many of them halt a stream, which would go on.
    halting: int


@dataclass(frozen=True)
class Effect:
    """What poison did to its instance (None: it belongs to none), and what a retry would do."""

    instance: Instance | None
    #: True if this message failed the instance.
    failed_it: bool = False
    #: Instances a retry would reopen, the lowest first.
    reopens: list[str] = field(default_factory=list)
    #: Why a retry would be refused, or "".
    refusal: str = ""


def list_poison(
    queue: str | None = None,
    instance: str | None = None,
    name: str | None = None,
    kind: str | None = None,
    reason: FailureReason | int | str | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    *,
    fingerprint: str | None = None,
    exception: str | None = None,
    stream: str | None = None,
    text: str | None = None,
    until: datetime | None = None,
    using: str | None = None,
) -> list[PoisonRecord]:
    """List poison records, newest first, without their payloads."""
    wanted = PoisonFilter(
        queue=queue,
        instance=instance,
        name=name,
        kind=kind,
        reason=reason,
        since=since,
        until=until,
        fingerprint=fingerprint,
        exception=exception,
        stream=stream,
        text=text,
    )
    return list(wanted.records(primary_alias(using)).order_by("-pk")[:limit])


def get_poison(poison_id: int, *, using: str | None = None) -> PoisonRecord | None:
    """Return one record with all its columns, or None."""
    return PoisonRecord.objects.using(primary_alias(using)).filter(pk=poison_id).first()


def preview(wanted: PoisonFilter, *, limit: int | None = None, using: str | None = None) -> Preview:
    """Count the records that match (with `limit`, at most the first so many) and read a sample."""
    alias = primary_alias(using)
    fixed = wanted if wanted.up_to is not None else wanted.fixed(alias)
    rows = fixed.records(alias)
    halting = rows.filter(halts=True).order_by().values("pk")
    return Preview(
        wanted=fixed,
        count=rows.order_by().values("pk")[:limit].count(),
        sample=list(rows[: SAMPLE if limit is None else min(limit, SAMPLE)]),
        halting=min(halting[:limit].count(), limit or 2**63),
    )


def effect_of(record: PoisonRecord, *, using: str | None = None) -> Effect:
    """Return what a poison record did to its instance, and what its retry would do now."""
    if record.kind == Kind.EVENT:
        return Effect(None, refusal=retries.refuse_without_broker(record) or "")
    if record.instance is None:
        return Effect(None)
    alias = primary_alias(using)
    owner = Instance.objects.using(alias).without_bodies().filter(pk=record.instance).first()
    failed_it = owner is not None and on_retry.has_failed(record, owner)
    plan = on_retry.preview_retry(record, using=alias, now=clock.now(alias))
    if isinstance(plan, str):
        return Effect(owner, failed_it, refusal=plan)
    return Effect(owner, failed_it, reopens=[instance.id for instance in plan.reopened])


def remove_poison(
    ids: int | Iterable[int], by: str | None = None, why: str = "", *, using: str | None = None
) -> ActResult:
    """Remove poison records for good; streams that they halted go on."""
    wanted = as_ids(ids)
    new = audit.NewEntry(act=Act.REMOVE, by=by, why=why, selection=audit.of_ids(wanted))
    return act_on_ids(new, partial(remove_piece, by=by), wanted, using=using)


def retry_poison(
    ids: int | Iterable[int],
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
    Put poisoned messages back: attempts 0, FAILED cleared; id, stages and history kept.

    `queue` sends them to another queue, `payload` (checked as in `send`, also against the payload
    class of each handler) replaces theirs, `rate` spreads them over time, so many per second. A
    missing id was retried or removed before.

    A payload that contains "[redacted]" is refused (PayloadRejected): it was read from a page or an
    export, and would replace secrets by that text. `hidden_values.restore` puts them back;
    `literal` stores the payload as it is given. The audit entry keeps the payload before and after;
    with several ids each has an entry of its own, and the result names the last.
    """
    wanted = as_ids(ids)
    options = RetryOptions(queue=queue, payload=payload, rate=rate, literal=literal)
    if options.payload is not None:
        return _retry_edited(wanted, options, by=by, why=why, using=using)
    selection, detail = audit.of_ids(wanted), options.as_dict()
    new = audit.NewEntry(act=Act.RETRY, by=by, why=why, selection=selection, detail=detail)
    return act_on_ids(new, partial(retry_piece, options=options, by=by), wanted, using=using)


class RetryOptions:
    """The queue, payload and rate of a retry, checked when the options are made."""

    def __init__(
        self,
        *,
        queue: str | None = None,
        payload: Any = AS_IT_WAS,
        rate: float | None = None,
        literal: bool = False,
    ) -> None:
        if rate is not None and not SLOWEST <= rate <= FASTEST:
            raise ValueError(
                f"rate: expected {SLOWEST:g} to {FASTEST:,} per second, got {short_repr(rate)}"
            )
        if queue is not None and not NAME.fullmatch(queue):
            raise ValueError(f"queue: {short_repr(queue)} is not the name of a queue")
        self.queue = queue
        self.rate = rate
        #: JSON text, or None if every message keeps its payload.
        self.payload: str | None = None
        if payload is not AS_IT_WAS:
            self.payload = accept(payload, limit=get_settings().payload_limit)
            if not literal:
                refuse_markers(payload)

    def check_for(self, rows: QuerySet[Any], ids: Sequence[int]) -> None:
        """
        Check the payload against the classes that the handlers of these rows expect.

        Raises PayloadMismatch. Handlers that this process has not imported are not known.
        """
        if self.payload is None:
            return
        value = decode(self.payload)
        names = rows.order_by().values_list("kind", "name").distinct()
        for piece in pieces([id for id in ids if id in POSSIBLE_IDS]):
            for kind, name in names.filter(pk__in=piece):
                payload_types.check(kind, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return what the audit entry keeps of the options; it keeps the payload elsewhere."""
        found: dict[str, Any] = {"queue": self.queue, "rate": self.rate}
        found["edited"] = self.payload is not None or None
        return {key: value for key, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> RetryOptions:
        """Read the options back from an audit entry."""
        return cls(queue=given.get("queue"), rate=given.get("rate"))

    def delays(self, count: int, start: int) -> list[timedelta] | None:
        """Return the delay of each of `count` messages behind the first `start` of the act."""
        if self.rate is None:
            return None
        return [timedelta(seconds=(start + n) / self.rate) for n in range(count)]


def retry_piece(
    tx: Transaction, ids: list[int], start: int, *, options: RetryOptions, by: str | None
) -> ActResult:
    """Retry one piece of poison records; `start` ids of the act went before it."""
    return retries.retry_in(
        tx,
        ids,
        queue=options.queue,
        payload=options.payload,
        delays=options.delays(len(ids), start),
        by=audit.person(by),
    )


def remove_piece(tx: Transaction, ids: list[int], start: int, *, by: str | None) -> ActResult:
    """Remove one piece of poison records."""
    return retries.remove_in(tx, ids, by=audit.person(by))


def _retry_edited(
    ids: list[int], options: RetryOptions, *, by: str | None, why: str, using: str | None
) -> ActResult:
    """Retry records with another payload, one by one: an audit entry has room for one edit."""
    total, entry_id = ActResult(missing=[id for id in ids if id not in POSSIBLE_IDS]), 0
    verb = partial(retry_piece, options=options, by=by)
    # All before the first: a mismatch changes nothing.
    options.check_for(PoisonRecord.objects.using(primary_alias(using)), ids)
    for id in (id for id in ids if id in POSSIBLE_IDS):
        selection, detail = audit.of_ids([id]), options.as_dict()
        new = audit.NewEntry(act=Act.RETRY, by=by, why=why, selection=selection, detail=detail)

        def work(tx: Transaction) -> tuple[ActResult, AuditEntry | None]:
            before = _stored_payload(tx, id)  # noqa: B023 - called before the loop goes on
            start = len(total.done)
            result, entry = act_in(tx, new, verb, [id], start=start, entry=None)  # noqa: B023
            if entry is not None and result.done:
                audit.keep_edit(tx, entry, before=before, after=options.payload or "")
            return result, entry

        with after_pieces(len(total.done)):
            result, entry = in_transaction(work, using=primary_alias(using))
        total.add(result)
        entry_id = entry.pk if entry else entry_id
    return replace(total, entry_id=entry_id)


def _stored_payload(tx: Transaction, id: int) -> str | None:
    """Return the payload as the text that is stored, or None for a damaged one that is no text."""
    rows = PoisonRecord.objects.using(tx.using).filter(pk=id)
    try:
        return rows.values_list(Cast("payload", TextField()), flat=True).first()
    except (DatabaseError, UnicodeError):
        return None
