"""Growth of groups: the newest, and those with the most deaths lately, counted per hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections

from .. import clock, sql
from ..models import primary_alias
from .groups import Place, Sample, read_samples

#: Hours that are read, and the limit of deaths counted in each hour.
HOURS, COUNTED = 24, 200
#: Groups compared: those with the latest deaths.
REACH = 40
#: The time in which "fastest" is measured. The current hour alone would hide a group that stopped
#: a minute before the hour began.
RECENT, RECENT_COUNTED = timedelta(hours=2), 400


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A group and its deaths per hour, oldest hour first, each at most COUNTED + 1."""

    fingerprint: str
    name: str
    exception: str
    frame: str
    first_seen: datetime
    last_seen: datetime
    hours: tuple[int, ...]
    #: True if all messages are in dead queues: there are no records.
    is_moved: bool = False

    @property
    def day(self) -> int:
        """Deaths in the last 24 hours; a lower bound if `capped`."""
        return sum(min(n, COUNTED) for n in self.hours)

    @property
    def capped(self) -> bool:
        return any(n > COUNTED for n in self.hours)


@dataclass(frozen=True)
class Growing:
    """Groups with deaths in the last 24 hours; a group may be in both lists."""

    #: The groups whose first death is the latest, within that time.
    newest: tuple[Growth, ...] = ()
    #: The groups with the most deaths lately.
    fastest: tuple[Growth, ...] = ()


@dataclass(frozen=True)
class _Seen:
    fingerprint: str
    #: Its sample: a record, a message in a dead queue, or both.
    place: Place
    first: datetime
    last: datetime


def growing(*, limit: int = 5, using: str | None = None) -> Growing:
    """Compare the REACH groups with the latest deaths, at a bounded cost for each."""
    alias = primary_alias(using)
    now = clock.now(alias)
    day = now - timedelta(hours=HOURS)
    alive = [seen for seen in _grew_last(alias) if seen.last > day]
    newest = sorted((s for s in alive if s.first > day), key=lambda s: s.first, reverse=True)
    counts = _recent([seen.fingerprint for seen in alive], now, alias)
    fastest = sorted(alive, key=lambda s: (counts.get(s.fingerprint, 0), s.last), reverse=True)
    chosen = dict.fromkeys((*newest[:limit], *fastest[:limit]))
    found = _read(list(chosen), now, alias)
    return Growing(
        tuple(found[seen] for seen in newest[:limit] if seen in found),
        tuple(found[seen] for seen in fastest[:limit] if seen in found),
    )


def _grew_last(alias: str) -> list[_Seen]:
    connection = connections[alias]
    # The numbers of records and halted streams are not needed here: a limit of 1 is enough.
    limits = {"limit": REACH, "offset": 0, "counted": 1, "halted": 1}
    found = []
    for row in sql.run(connection, "read_groups", limits):
        first, last = sql.as_datetime(row[1], connection), sql.as_datetime(row[2], connection)
        if first is not None and last is not None:
            found.append(_Seen(row[0], (row[5], row[7]), first, last))
    return found


def _recent(fingerprints: Sequence[str], now: datetime, alias: str) -> dict[str, int]:
    edges = [now - RECENT, now]
    counts = _counts(fingerprints, edges, RECENT_COUNTED, alias)
    return {fingerprint: n for fingerprint, (n,) in counts.items()}


def _read(chosen: Sequence[_Seen], now: datetime, alias: str) -> dict[_Seen, Growth]:
    """Read the sample of each group and its deaths per hour."""
    samples = read_samples([seen.place for seen in chosen], alias)
    edges = [now - timedelta(hours=HOURS - n) for n in range(HOURS + 1)]
    hours = _counts([seen.fingerprint for seen in chosen], edges, COUNTED + 1, alias)
    return {
        seen: _growth(seen, samples[seen.place], hours[seen.fingerprint])
        for seen in chosen
        if seen.place in samples and seen.fingerprint in hours
    }


def _counts(
    fingerprints: Sequence[str], edges: Sequence[datetime], limit: int, alias: str
) -> dict[str, list[int]]:
    """Count the deaths of groups between each pair of adjacent edges, up to a limit."""
    connection = connections[alias]
    texts = [str(connection.ops.adapt_datetimefield_value(at)) for at in edges]
    found: dict[str, list[int]] = {}
    params = {"fingerprints": list(fingerprints), "edges": texts, "counted": limit}
    for fingerprint, n in sql.run(connection, "read_growth", params) if fingerprints else ():
        found.setdefault(fingerprint, []).append(min(n, limit))
    return found


def _growth(seen: _Seen, sample: Sample, hours: Sequence[int]) -> Growth:
    return Growth(
        fingerprint=seen.fingerprint,
        name=sample.name,
        exception=sample.exception,
        frame=sample.frame,
        first_seen=seen.first,
        last_seen=seen.last,
        hours=tuple(hours),
        is_moved=seen.place[0] is None,
    )
