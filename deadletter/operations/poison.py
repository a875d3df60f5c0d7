"""What people do to poison: list, look, retry, remove."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import router

from ..conf import get_settings
from ..lifecycle import recover
from ..models import PoisonRecord
from ..payload import accept
from ..status import FailureReason

_AS_IT_WAS: Any = object()


@dataclass(frozen=True)
class Retrial:
    """What became of each id; `refused` says why."""

    retried: list[int]
    missing: list[int]
    refused: dict[int, str]


@dataclass(frozen=True)
class Removal:
    removed: list[int]
    missing: list[int]


def list_poison(
    queue: str | None = None,
    instance: str | None = None,
    name: str | None = None,
    kind: str | None = None,
    reason: FailureReason | int | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    *,
    using: str | None = None,
) -> list[PoisonRecord]:
    """List poison records, newest first, without their payloads."""
    given = {
        "queue": queue,
        "instance": instance,
        "name": name,
        "kind": kind,
        "reason": reason,
        "poisoned_at__gte": since,
    }
    wanted = {key: value for key, value in given.items() if value is not None}
    return list(PoisonRecord.objects.using(_alias(using)).light().filter(**wanted)[:limit])


def get_poison(poison_id: int, *, using: str | None = None) -> PoisonRecord | None:
    """Return one record with everything that was kept of it, or None."""
    return PoisonRecord.objects.using(_alias(using)).filter(pk=poison_id).first()


def remove_poison(
    ids: int | Iterable[int], by: str | None = None, why: str = "", *, using: str | None = None
) -> Removal:
    """Remove poison records for good."""
    verdicts = recover.remove(_several(ids), by=by or "", using=using)
    return Removal(verdicts.done, verdicts.missing)


def retry_poison(
    ids: int | Iterable[int],
    by: str | None = None,
    queue: str | None = None,
    payload: Any = _AS_IT_WAS,
    rate: float | None = None,
    *,
    using: str | None = None,
) -> Retrial:
    """
    Put poisoned messages back: attempts 0, FAILED cleared; id, stages and history kept.

    `queue` sends them elsewhere, `payload` (checked as in `send`) replaces theirs, `rate` spreads
    them over time, so many per second.
    """
    wanted = _several(ids)
    if rate is not None and rate <= 0:
        raise ValueError(f"rate: expected a positive number per second, got {rate!r}")
    text = None
    if payload is not _AS_IT_WAS:
        text = accept(payload, limit=get_settings().payload_limit)
    delays = [timedelta(seconds=n / rate) for n in range(len(wanted))] if rate else None
    verdicts = recover.retry(
        wanted, queue=queue, payload=text, delays=delays, by=by or "", using=using
    )
    return Retrial(verdicts.done, verdicts.missing, verdicts.refused)


def _several(ids: int | Iterable[int]) -> list[int]:
    return [ids] if isinstance(ids, int) else list(dict.fromkeys(ids))


def _alias(using: str | None) -> str:
    # Decisions are made from the primary: a replica may show what is already gone.
    return using or router.db_for_write(PoisonRecord)
