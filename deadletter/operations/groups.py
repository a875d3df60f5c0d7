"""What died of the same? Groups first, then records; never a count of the whole table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections

from .. import clock, sql
from ..models import PoisonRecord
from .acting import alias_of

#: Counts stop here; more is shown as "10,000+".
COUNTED = 10_000
#: Cells of the matrix stop earlier: there are many.
CELL = 1_000
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
    rows = sql.run(connections[alias], "read_groups", {"limit": limit, "offset": offset})
    return [group for row in rows if (group := _group(row, alias)) is not None]


def get_group(fingerprint: str, *, using: str | None = None) -> Group | None:
    alias = alias_of(using)
    rows = PoisonRecord.objects.using(alias).filter(fingerprint=fingerprint)
    times = rows.order_by("poisoned_at").values_list("poisoned_at", flat=True)
    first, last = times.first(), times.last()
    if first is None or last is None:
        return None
    return _group((fingerprint, first, last), alias)


def matrix(by: str, *, limit: int = 20, using: str | None = None) -> list[Row]:
    """Count deaths per `name` or `exception` and window; a line for each of the first `limit`."""
    statement = {"name": "read_names", "exception": "read_exceptions"}[by]
    alias = alias_of(using)
    now = clock.now(alias)
    values = [row[0] for row in sql.run(connections[alias], statement, {"limit": limit})]
    lines = [Row(value, _windows(by, value, now, alias)) for value in values]
    return sorted(lines, key=lambda line: line.counts, reverse=True)


def _group(row: sql.Row, alias: str) -> Group | None:
    fingerprint, first, last = row
    rows = PoisonRecord.objects.using(alias).filter(fingerprint=fingerprint).order_by()
    sample = rows.light().order_by("-poisoned_at").first()
    if sample is None:
        return None
    connection = connections[alias]
    return Group(
        fingerprint=fingerprint,
        name=sample.name,
        exception=sample.exception,
        frame=sample.frame,
        sample_id=sample.pk,
        sample_error=sample.last_error or sample.verdict,
        count=rows.values("pk")[: COUNTED + 1].count(),
        first_seen=sql.as_datetime(first, connection) or sample.poisoned_at,
        last_seen=sql.as_datetime(last, connection) or sample.poisoned_at,
        halted=rows.filter(halts=True).values("pk")[: CELL + 1].count(),
    )


def _windows(by: str, value: str, now: datetime, alias: str) -> tuple[int, ...]:
    rows = PoisonRecord.objects.using(alias).filter(**{by: value}).order_by()
    counts: list[int] = []
    for _label, window in WINDOWS:
        if counts and counts[-1] > CELL:
            counts.append(counts[-1])  # a longer window has no fewer
            continue
        inside = rows if window is None else rows.filter(poisoned_at__gte=now - window)
        counts.append(inside.values("pk")[: CELL + 1].count())
    return tuple(counts)
