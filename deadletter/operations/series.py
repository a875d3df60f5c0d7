"""Time series and rates, from the counters; messages are never read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Sum

from .. import clock
from ..models import Count, Span, primary_alias
from ..status import FailureReason

#: The counters that are added up. Each costs time: a busy week has hundreds of thousands of rows.
SUMS = ("sent", "completed", "failed", "poisoned")
#: Rates are taken over the current minute and so many minutes before it.
RATE_MINUTES = 5

_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The time up to now, in equal steps; the last step is the current one."""

    name: str
    step: timedelta
    steps: int

    def starts(self, now: datetime) -> list[datetime]:
        """Return the start of each step, oldest first; steps start at multiples of their length."""
        last = now - (now - _EPOCH) % self.step
        return [last - self.step * (self.steps - 1 - n) for n in range(self.steps)]


HOUR = Window(name="hour", step=_MINUTE, steps=60)
# Whole hours: counters older than the minutes that are kept exist per hour only.
DAY = Window(name="day", step=timedelta(hours=1), steps=24)
WEEK = Window(name="week", step=timedelta(hours=4), steps=42)
WINDOWS: Mapping[str, Window] = {window.name: window for window in (HOUR, DAY, WEEK)}


@dataclass
class Point:
    """The sums of one step."""

    at: datetime
    until: datetime
    sent: int = 0
    completed: int = 0
    failed: int = 0
    poisoned: int = 0
    #: Failed attempts by reason.
    reasons: dict[FailureReason, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    window: Window
    points: tuple[Point, ...]

    def values(self, name: str) -> list[int]:
        return [getattr(point, name) for point in self.points]

    def total(self, name: str) -> int:
        return sum(self.values(name))

    def reasons(self) -> dict[FailureReason, int]:
        """Return failed attempts by reason, the most frequent first."""
        found: dict[FailureReason, int] = {}
        for point in self.points:
            for reason, n in point.reasons.items():
                found[reason] = found.get(reason, 0) + n
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class Rates:
    """Messages per minute."""

    sent: float = 0.0
    completed: float = 0.0
    failed: float = 0.0


def read_series(
    window: Window = HOUR,
    *,
    queue: str | None = None,
    now: datetime | None = None,
    using: str | None = None,
) -> Series:
    """
    Add up the counters of a window, for one queue or for all.

    Every time is kept in exactly one span (minute, hour, …), so all spans are summed. A row longer
    than a step belongs to the step in which it begins.
    """
    alias = primary_alias(using)
    now = now or clock.now(alias)
    starts = window.starts(now)
    points = tuple(Point(at, at + window.step) for at in starts)
    rows = _since(starts[0], alias)
    if queue is not None:
        rows = rows.filter(queue=queue)
    names = [f"n_{name}" for name in SUMS]
    sums = rows.values("at", "reason").annotate(**_sums(SUMS)).values_list("at", "reason", *names)
    for at, reason, *values in sums:
        place = (at - starts[0]) // window.step
        # A writer whose clock runs ahead counts into the last step.
        _add(points[min(place, len(points) - 1)], reason, values)
    return Series(window, points)


def read_rates(*, now: datetime | None = None, using: str | None = None) -> dict[str, Rates]:
    """Return the rates of each queue over the last minutes; queues without any are left out."""
    alias = primary_alias(using)
    now = now or clock.now(alias)
    start = rates_since(now)
    minutes = (now - start) / _MINUTE
    names = ("sent", "completed", "failed")
    rows = _since(start, alias).values("queue").annotate(**_sums(names))
    return {
        row["queue"]: Rates(*(round(row[f"n_{name}"] / minutes, 2) for name in names))
        for row in rows
    }


def rates_since(now: datetime) -> datetime:
    """Return the start of the time over which rates are taken."""
    return now - (now - _EPOCH) % _MINUTE - _MINUTE * RATE_MINUTES


def _since(start: datetime, alias: str) -> Any:
    # Naming the spans lets the index, which begins with the span, find the time.
    return Count.objects.using(alias).filter(span__in=Span.values, at__gte=start).order_by()


def _sums(names: Sequence[str]) -> dict[str, Any]:
    return {f"n_{name}": Sum(name) for name in names}


def _add(point: Point, reason: int, values: Sequence[int]) -> None:
    sent, completed, failed, poisoned = values
    point.sent += sent
    point.completed += completed
    point.failed += failed
    point.poisoned += poisoned
    if failed:
        found = FailureReason.read(reason)
        point.reasons[found] = point.reasons.get(found, 0) + failed
