"""What people do to poison: list, look, retry, remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import router

from ..conf import get_settings
from ..lifecycle import recover
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, PoisonRecord
from ..payload import accept
from ..status import FailureReason
from . import audit
from .filters import PoisonFilter

AS_IT_WAS: Any = object()


@dataclass(frozen=True)
class Retrial:
    """What became of each id; `refused` says why."""

    retried: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Removal:
    removed: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def list_poison(
    queue: str | None = None,
    instance: str | None = None,
    name: str | None = None,
    kind: str | None = None,
    reason: FailureReason | int | None = None,
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

    def work(tx: Transaction) -> Removal:
        entry = audit.record(tx, Act.REMOVE, by=by, why=why, selection=audit.of_ids(wanted))
        return removing(tx, entry, wanted, by=by)

    return in_transaction(work, using=alias_of(using))


def retry_poison(
    ids: int | Iterable[int],
    by: str | None = None,
    queue: str | None = None,
    payload: Any = AS_IT_WAS,
    rate: float | None = None,
    *,
    why: str = "",
    using: str | None = None,
) -> Retrial:
    """
    Put poisoned messages back: attempts 0, FAILED cleared; id, stages and history kept.

    `queue` sends them elsewhere, `payload` (checked as in `send`) replaces theirs, `rate` spreads
    them over time, so many per second. An id that is not there any more is `missing`: somebody
    else has retried or removed it.
    """
    wanted = several(ids)
    terms = Terms(queue=queue, payload=payload, rate=rate)

    def work(tx: Transaction) -> Retrial:
        entry = audit.record(
            tx,
            Act.RETRY,
            by=by,
            why=why,
            selection=audit.of_ids(wanted),
            detail=terms.as_dict(),
        )
        return retrying(tx, entry, wanted, terms, by=by)

    return in_transaction(work, using=alias_of(using))


class Terms:
    """How to retry: where to, with which payload, how fast. Checked when made."""

    def __init__(
        self, *, queue: str | None = None, payload: Any = AS_IT_WAS, rate: float | None = None
    ) -> None:
        if rate is not None and not 0 < rate <= 1_000_000:
            raise ValueError(f"rate: expected a positive number per second, got {rate!r}")
        self.queue = queue
        self.rate = rate
        self.text: str | None = None
        if payload is not AS_IT_WAS:
            self.text = accept(payload, limit=get_settings().payload_limit)

    def as_dict(self) -> dict[str, Any]:
        """Return what the audit trail keeps; payloads stay out of it."""
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


def retrying(
    tx: Transaction,
    entry: AuditEntry,
    ids: Sequence[int],
    terms: Terms,
    *,
    by: str | None,
    start: int = 0,
) -> Retrial:
    """Retry under an open entry; `start` is how many of the same act went before."""
    verdicts, records = recover.retry(
        tx,
        ids,
        queue=terms.queue,
        payload=terms.text,
        delays=terms.delays(len(ids), start),
        by=by or "",
    )
    audit.name_messages(tx, entry, records, follow=True)
    audit.count(
        tx,
        entry,
        done=len(verdicts.done),
        missing=len(verdicts.missing),
        refused=len(verdicts.refused),
    )
    return Retrial(verdicts.done, verdicts.missing, verdicts.refused)


def removing(tx: Transaction, entry: AuditEntry, ids: Sequence[int], *, by: str | None) -> Removal:
    """Remove under an open entry."""
    verdicts, records = recover.remove(tx, ids, by=by or "")
    audit.name_messages(tx, entry, records)
    audit.count(tx, entry, done=len(verdicts.done), missing=len(verdicts.missing))
    return Removal(verdicts.done, verdicts.missing)


def several(ids: int | Iterable[int]) -> list[int]:
    return [ids] if isinstance(ids, int) else list(dict.fromkeys(ids))


def alias_of(using: str | None) -> str:
    # Decisions are made from the primary: a replica may show what is already gone.
    return using or router.db_for_write(PoisonRecord)
