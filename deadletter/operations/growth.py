"""Which causes of death are new, and which grow the fastest? Counted up to a limit, per hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import OuterRef

from .. import clock, sql
from ..models import PoisonRecord
from .acting import alias_of
from .bounded import CountUpTo

#: Hours looked back, and deaths counted in each; an hour with more looks like one with this many.
HOURS, COUNTED = 24, 200
#: Groups compared: those that grew last.
REACH = 40
#: What "fast" is measured in: the hour under way alone would hide what stopped a minute before it.
RECENT, RECENT_COUNTED = timedelta(hours=2), 400


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A group and how it grew, an hour at a time, the oldest first; each stops at COUNTED + 1."""

    fingerprint: str
    name: str
    exception: str
    frame: str
    first_seen: datetime
    last_seen: datetime
    hours: tuple[int, ...]

    @property
    def day(self) -> int:
        """At least so many died in the last 24 hours; more, when `capped`."""
        return sum(min(n, COUNTED) for n in self.hours)

    @property
    def capped(self) -> bool:
        return any(n > COUNTED for n in self.hours)


@dataclass(frozen=True)
class Growing:
    """Some of the groups that died in the last 24 hours; one may be in both."""

    #: Those that began last, within that time.
    newest: tuple[Growth, ...] = ()
    #: Those with the most deaths lately.
    fastest: tuple[Growth, ...] = ()


@dataclass(frozen=True)
class _Seen:
    id: int
    first: datetime
    last: datetime


def growing(*, limit: int = 5, using: str | None = None) -> Growing:
    """Look at the REACH groups that grew last; a bounded number of index entries for each."""
    alias = alias_of(using)
    now = clock.now(alias)
    day = now - timedelta(hours=HOURS)
    alive = [seen for seen in _grew_last(alias) if seen.last > day]
    newest = sorted((s for s in alive if s.first > day), key=lambda s: s.first, reverse=True)
    counts = _recent([seen.id for seen in alive], now, alias)
    fastest = sorted(alive, key=lambda s: (counts.get(s.id, 0), s.last), reverse=True)
    chosen = dict.fromkeys((*newest[:limit], *fastest[:limit]))
    found = _read(list(chosen), now, alias)
    return Growing(
        tuple(found[seen.id] for seen in newest[:limit] if seen.id in found),
        tuple(found[seen.id] for seen in fastest[:limit] if seen.id in found),
    )


def _grew_last(alias: str) -> list[_Seen]:
    connection = connections[alias]
    # How many records and halted streams a group has is not asked here: one of each is enough.
    limits = {"limit": REACH, "offset": 0, "counted": 1, "halted": 1}
    found = []
    for row in sql.run(connection, "read_groups", limits):
        first, last = sql.as_datetime(row[1], connection), sql.as_datetime(row[2], connection)
        if first is not None and last is not None:
            found.append(_Seen(row[5], first, last))
    return found


def _recent(ids: Sequence[int], now: datetime, alias: str) -> dict[int, int]:
    deaths = CountUpTo(_same(alias, now - RECENT, now), RECENT_COUNTED)
    return dict(_samples(ids, alias).annotate(n=deaths).values_list("pk", "n"))


def _read(chosen: Sequence[_Seen], now: datetime, alias: str) -> dict[int, Growth]:
    """Read the records that stand for their groups, each with its deaths per hour."""
    ids = [seen.id for seen in chosen]
    columns = ("pk", "fingerprint", "name", "exception", "frame")
    rows = {row["pk"]: row for row in _samples(ids, alias).values(*columns)}
    hours = _hours(ids, now, alias)
    return {
        seen.id: _growth(seen, rows[seen.id], hours[seen.id])
        for seen in chosen
        if seen.id in rows and seen.id in hours
    }


def _hours(ids: list[int], now: datetime, alias: str) -> dict[int, list[int]]:
    connection = connections[alias]
    edges = [now - timedelta(hours=HOURS - n) for n in range(HOURS + 1)]
    texts = [str(connection.ops.adapt_datetimefield_value(at)) for at in edges]
    found: dict[int, list[int]] = {}
    params = {"ids": ids, "edges": texts, "counted": COUNTED + 1}
    for id, n in sql.run(connection, "read_growth", params) if ids else ():
        found.setdefault(id, []).append(n)
    return found


def _growth(seen: _Seen, row: dict[str, Any], hours: Sequence[int]) -> Growth:
    return Growth(
        fingerprint=row["fingerprint"],
        name=row["name"],
        exception=row["exception"],
        frame=row["frame"],
        first_seen=seen.first,
        last_seen=seen.last,
        hours=tuple(hours),
    )


def _samples(ids: Sequence[int], alias: str) -> Any:
    return PoisonRecord.objects.using(alias).filter(pk__in=ids).order_by()


def _same(alias: str, after: datetime, until: datetime) -> Any:
    """The records of the outer row's group of this time, as an index has them."""
    rows = PoisonRecord.objects.using(alias).filter(fingerprint=OuterRef("fingerprint"))
    return rows.filter(poisoned_at__gt=after, poisoned_at__lte=until).values("pk")
