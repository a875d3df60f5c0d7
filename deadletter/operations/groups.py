"""What died of the same? Groups first, then records; never a count of the whole table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import Count, F, Q
from django.db.models.functions import Left

from .. import clock, sql
from ..models import PoisonRecord
from .acting import alias_of

#: Counts stop here; more is shown as "10,000+".
COUNTED = 10_000
#: Cells of the matrix stop earlier: there are many.
CELL = 1_000
#: Characters of a sample of the error.
SAMPLE = 1_000
WINDOWS: tuple[tuple[str, timedelta | None], ...] = (
    ("1 h", timedelta(hours=1)),
    ("3 h", timedelta(hours=3)),
    ("24 h", timedelta(hours=24)),
    ("3 d", timedelta(days=3)),
    ("7 d", timedelta(days=7)),
    ("all", None),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Records with one fingerprint: message name, exception and place."""

    fingerprint: str
    name: str
    exception: str
    frame: str
    sample_id: int
    sample_error: str
    #: Stops at COUNTED + 1.
    count: int
    first_seen: datetime
    last_seen: datetime
    #: Streams that stand still because of it.
    halted: int


@dataclass(frozen=True)
class Row:
    """A line of the matrix: counts per window, each stopping at CELL + 1."""

    value: str
    counts: tuple[int, ...]


def list_groups(*, limit: int = 50, offset: int = 0, using: str | None = None) -> list[Group]:
    """List groups, the one that grew last first."""
    alias = alias_of(using)
    limits = {"limit": limit, "offset": offset, "counted": COUNTED + 1, "halted": CELL + 1}
    rows = sql.run(connections[alias], "read_groups", limits)
    samples = _samples([row[5] for row in rows], alias)
    return [_group(row, samples[row[5]], alias) for row in rows if row[5] in samples]


def get_group(fingerprint: str, *, using: str | None = None) -> Group | None:
    alias = alias_of(using)
    rows = PoisonRecord.objects.using(alias).filter(fingerprint=fingerprint).order_by()
    times = rows.order_by("poisoned_at").values_list(F("poisoned_at"), "pk")
    first, last = times.first(), times.last()
    if first is None or last is None:
        return None
    count = rows.values("pk")[: COUNTED + 1].count()
    halted = rows.filter(halts=True).values("pk")[: CELL + 1].count()
    samples = _samples([last[1]], alias)
    row = (fingerprint, first[0], last[0], count, halted, last[1])
    return _group(row, samples[last[1]], alias) if samples else None


def matrix(by: str, *, limit: int = 20, using: str | None = None) -> list[Row]:
    """Count deaths per `name` or `exception` and window; a line for each of the first `limit`."""
    statement = {"name": "read_names", "exception": "read_exceptions"}[by]
    alias = alias_of(using)
    now = clock.now(alias)
    values = [row[0] for row in sql.run(connections[alias], statement, {"limit": limit})]
    lines = [Row(value, _windows(by, value, now, alias)) for value in values]
    return sorted(lines, key=lambda line: line.counts, reverse=True)


def _samples(ids: list[int], alias: str) -> dict[int, Any]:
    """Read the records that stand for their groups, with the beginnings of their errors."""
    rows: Any = PoisonRecord.objects.using(alias).light().defer("last_error", "verdict")
    starts = {"error": Left("last_error", SAMPLE), "said": Left("verdict", SAMPLE)}
    return {record.pk: record for record in rows.filter(pk__in=ids).annotate(**starts)}


def _group(row: sql.Row, sample: Any, alias: str) -> Group:
    fingerprint, first, last, count, halted, _id = row
    connection = connections[alias]
    return Group(
        fingerprint=fingerprint,
        name=sample.name,
        exception=sample.exception,
        frame=sample.frame,
        sample_id=sample.pk,
        sample_error=sample.error or sample.said,
        count=count,
        first_seen=sql.as_datetime(first, connection) or sample.poisoned_at,
        last_seen=sql.as_datetime(last, connection) or sample.poisoned_at,
        halted=halted,
    )


def _windows(by: str, value: str, now: datetime, alias: str) -> tuple[int, ...]:
    """Count all windows at once, among the newest CELL + 1: no window holds more that is shown."""
    rows = PoisonRecord.objects.using(alias).filter(**{by: value}).order_by("-poisoned_at")
    inside = {
        f"window_{n}": Count("died", filter=_since(now, window))
        for n, (_label, window) in enumerate(WINDOWS)
    }
    found = rows.values(died=F("poisoned_at"))[: CELL + 1].aggregate(**inside)
    return tuple(found[f"window_{n}"] for n in range(len(WINDOWS)))


def _since(now: datetime, window: timedelta | None) -> Q | None:
    return None if window is None else Q(died__gte=now - window)
