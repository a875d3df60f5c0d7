"""What people do to poison: list, look, retry, remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError
from django.db.models import TextField
from django.db.models.functions import Cast

from ..conf import NAME, get_settings
from ..error_details import shown
from ..lifecycle import retries
from ..lifecycle.act_results import ActResult
from ..lifecycle.transaction import Transaction
from ..models import Act, PoisonRecord
from ..payload import accept
from ..status import FailureReason
from . import audit
from .acting import Verb, after_pieces, alias_of, carry_out, several
from .filters import PoisonFilter
from .hidden_values import refuse_markers

AS_IT_WAS: Any = object()
#: Messages per second. Slower, a large retry would end centuries from now.
SLOWEST, FASTEST = 0.001, 1_000_000


@dataclass(frozen=True)
class Retrial:
    """What became of each id; `refused` says why."""

    retried: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    #: The audit entry; 0 when nothing was done.
    entry_id: int = 0


@dataclass(frozen=True)
class Removal:
    removed: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    entry_id: int = 0


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
    return list(wanted.records(alias_of(using)).order_by("-pk")[:limit])


def get_poison(poison_id: int, *, using: str | None = None) -> PoisonRecord | None:
    """Return one record with everything that was kept of it, or None."""
    return PoisonRecord.objects.using(alias_of(using)).filter(pk=poison_id).first()


def remove_poison(
    ids: int | Iterable[int], by: str | None = None, why: str = "", *, using: str | None = None
) -> Removal:
    """Remove poison records for good; streams they halted go on."""
    wanted = several(ids)
    opening = audit.Opening(act=Act.REMOVE, by=by, why=why, selection=audit.of_ids(wanted))
    found, entry = carry_out(opening, removal(by), wanted, using=using)
    return Removal(found.done, found.missing, found.refused, entry)


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
) -> Retrial:
    """
    Put poisoned messages back: attempts 0, FAILED cleared; id, stages and history kept.

    `queue` sends them elsewhere, `payload` (checked as in `send`) replaces theirs, `rate` spreads
    them over time, so many per second. An id that is not there any more is `missing`: somebody
    else has retried or removed it.

    A payload that contains "[redacted]" is refused (PayloadRejected): it was read from a page or an
    export, and would replace secrets by that text. `hidden_values.restore` puts them back;
    `literal` stores the payload as it is given. The audit entry keeps the payload before and after;
    with several ids each has an entry of its own, and the result names the last.
    """
    wanted = several(ids)
    terms = Terms(queue=queue, payload=payload, rate=rate, literal=literal)
    total = Retrial([], [], {}, 0)
    # An entry has room for one edit.
    for some in [wanted] if terms.text is None else [[id] for id in wanted]:
        opening = audit.Opening(
            act=Act.RETRY,
            by=by,
            why=why,
            selection=audit.of_ids(some),
            detail=terms.as_dict(),
            payload=terms.text,
        )
        verb = retrial(terms, by, before=len(total.retried))
        with after_pieces(len(total.retried)):
            found, entry = carry_out(opening, verb, some, using=using)
        total = Retrial(
            [*total.retried, *found.done],
            [*total.missing, *found.missing],
            {**total.refused, **found.refused},
            entry or total.entry_id,
        )
    return total


class Terms:
    """How to retry: where to, with which payload, how fast. Checked when made."""

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
                f"rate: expected {SLOWEST:g} to {FASTEST:,} per second, got {shown(rate)}"
            )
        if queue is not None and not NAME.fullmatch(queue):
            raise ValueError(f"queue: {shown(queue)} is not the name of a queue")
        self.queue = queue
        self.rate = rate
        self.text: str | None = None
        if payload is not AS_IT_WAS:
            self.text = accept(payload, limit=get_settings().payload_limit)
            if not literal:
                refuse_markers(payload)

    def as_dict(self) -> dict[str, Any]:
        """Return what the audit trail keeps besides the payload."""
        found: dict[str, Any] = {"queue": self.queue, "rate": self.rate}
        found["edited"] = self.text is not None or None
        return {key: value for key, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Terms:
        return cls(queue=given.get("queue"), rate=given.get("rate"))

    def delays(self, count: int, start: int) -> list[timedelta] | None:
        if self.rate is None:
            return None
        return [timedelta(seconds=(start + n) / self.rate) for n in range(count)]


def retrial(terms: Terms, by: str | None, *, before: int = 0) -> Verb:
    """Return the verb that retries on these terms; so many were retried before."""

    def verb(tx: Transaction, ids: list[int], start: int) -> Acted:
        stored = _stored_payloads(tx, ids) if terms.text is not None else {}
        verdicts, records = retries.retry_in(
            tx,
            ids,
            queue=terms.queue,
            payload=terms.text,
            delays=terms.delays(len(ids), before + start),
            by=audit.person(by),
        )
        for record in records:
            record.stored_payload = stored.get(record.pk)  # type: ignore[attr-defined]
        return verdicts, records

    return verb


def _stored_payloads(tx: Transaction, ids: list[int]) -> dict[int, str | None]:
    """Read payloads as the text that is stored; a damaged one that is no text is left out."""
    rows = PoisonRecord.objects.using(tx.using).filter(pk__in=ids)
    try:
        return dict(rows.values_list("pk", Cast("payload", TextField())))
    except (DatabaseError, UnicodeError):
        return {}


def removal(by: str | None) -> Verb:
    def verb(tx: Transaction, ids: list[int], start: int) -> Acted:
        return retries.remove_in(tx, ids, by=audit.person(by))

    return verb


Acted = tuple[ActResult, list[PoisonRecord]]
