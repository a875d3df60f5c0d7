"""
A second implementation of the moments of cron expressions, for comparison.

It knows no shortcut: it walks all minutes of a year in UTC, looks at the local time of each, and
applies the rules of docs/schedules.md. It shares no code with the package or with cronsim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def read_field(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        body, _, step = part.partition("/")
        first, sign, last = body.partition("-")
        if body == "*":
            values = range(low, high + 1)
        elif sign:
            values = range(int(first), int(last) + 1)
        else:
            values = range(int(first), (high if step else int(first)) + 1)
        found.update(values[:: int(step or 1)])
    return found


@cache
def local_minutes(zone: str, year: int) -> dict[date, list[tuple[int, int, int, datetime]]]:
    """The minutes of a UTC year by local day: hour, minute, fold, UTC."""
    tz = ZoneInfo(zone)
    days = defaultdict(list)
    moment = datetime(year, 1, 1, tzinfo=UTC)
    while moment.year == year:
        # No zone of today changes its clocks within a quarter of an hour of UTC.
        local = moment.astimezone(tz)
        day = days[local.date()]
        for n in range(15):
            day.append((local.hour, local.minute + n, local.fold, moment + n * MINUTE))
        moment += 15 * MINUTE
    return days


@cache
def gaps(zone: str, year: int) -> dict[date, list[tuple[set[tuple[int, int]], datetime]]]:
    """The local times that do not exist, and the moment at which their gap ends, by local day."""
    found = defaultdict(list)
    for day, walked in local_minutes(zone, year).items():
        for (hour, minute, *_), (after_hour, after_minute, _, end) in pairwise(walked):
            missing = range(60 * hour + minute + 1, 60 * after_hour + after_minute)
            if missing:
                found[day].append(({divmod(n, 60) for n in missing}, end))
    return found


def moments(expression: str, zone: str, year: int) -> Iterator[datetime]:
    """The moments of a year in UTC, in order."""
    fields = expression.split()
    minutes, hours, days, months, weekdays = (
        read_field(text, *bounds) for text, bounds in zip(fields, BOUNDS, strict=True)
    )
    weekdays = {n % 7 for n in weekdays}
    both = fields[2].startswith("*") or fields[4].startswith("*")
    real_time = fields[0].startswith("*") or fields[1].startswith("*")
    for day, walked in sorted(local_minutes(zone, year).items()):
        in_month = day.day in days
        in_week = day.isoweekday() % 7 in weekdays
        if day.month not in months or not (
            (in_month and in_week) if both else (in_month or in_week)
        ):
            continue
        found = {
            moment
            for hour, minute, fold, moment in walked
            if hour in hours and minute in minutes and (real_time or fold == 0)
        }
        if not real_time:
            for times, end in gaps(zone, year)[day]:
                if any(hour in hours and minute in minutes for hour, minute in times):
                    found.add(end)
        yield from sorted(found)
