"""
The crontab fields of Celery as a cron expression with the same moments.

Celery differs from Debian's cron: ranges may wrap (22-2, fri-mon), names have any length (monday),
and day of month and day of week must both match, always.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Collection

from ..text import short_repr

#: A field that cron reads as Celery does.
_PLAIN = re.compile(
    r"(?:\*|[0-9]+(?:-[0-9]+)?)(?:,[0-9]+(?:-[0-9]+)?)*|\*/[0-9]+|[0-9]+-[0-9]+/[0-9]+"
)
_RANGE = re.compile(r"(\w+)-(\w+)(?:/([0-9]+))?")
_STAR = re.compile(r"\*(?:/([0-9]+))?")
_MONTHS = [name.lower() for name in calendar.month_abbr]
#: Days of a month that are the first, second, … of their weekday.
_WEEKS = {frozenset(range(7 * n - 6, 7 * n + 1)): n for n in range(1, 5)}


def as_cron(
    *, minute: str, hour: str, day_of_month: str, month_of_year: str, day_of_week: str
) -> str:
    """Return a cron expression. Raises: ValueError if there is none with the same moments."""
    fields = [
        _field("minute", minute, range(60)),
        _field("hour", hour, range(24)),
        _field("day of month", day_of_month, range(1, 32)),
        _field("month", month_of_year, range(1, 13)),
        _field("day of week", day_of_week, range(7)),
    ]
    days, weekdays = fields[2], fields[4]
    if not days.startswith("*") and not weekdays.startswith("*"):
        # cron would fire if one of them matches.
        week = _WEEKS.get(frozenset(_values("day of month", day_of_month, range(1, 32))))
        if week is None:
            raise ValueError(
                f"both day of month ({short_repr(day_of_month)}) and day of week "
                f"({short_repr(day_of_week)}) are limited: Celery wants both to match, cron one "
                "of them. Send it on each of the weekdays, and let the task look at the date"
            )
        numbers = sorted(_values("day of week", day_of_week, range(7)))
        fields[2], fields[4] = "*", ",".join(f"{n}#{week}" for n in numbers)
    return " ".join(fields)


def _field(name: str, text: str, bounds: range) -> str:
    """Return one field. A star at its beginning is kept: it decides what summer time does."""
    text = "".join(text.split()) or "*"
    values = _values(name, text, bounds)
    if len(values) == len(bounds):
        return "*"
    plain = _PLAIN.fullmatch(text) and "*," not in text
    return text if plain and not _wraps(text) else _listed(values)


def _wraps(text: str) -> bool:
    return any(int(first) > int(last) for first, last in re.findall(r"([0-9]+)-([0-9]+)", text))


def _values(name: str, text: str, bounds: range) -> set[int]:
    """Return the values that Celery reads from a field."""
    found: set[int] = set()
    for part in "".join(text.split()).split(",") if text.strip() else ["*"]:
        try:
            found.update(_part(part, bounds))
        except ValueError:
            problem = f"{name}: Celery cannot read {short_repr(text)}"
            raise ValueError(problem) from None
    return found


def _part(part: str, bounds: range) -> list[int]:
    if star := _STAR.fullmatch(part):
        return list(bounds)[:: int(star[1] or 1)]
    if found := _RANGE.fullmatch(part):
        first, last = _number(found[1], bounds), _number(found[2], bounds)
        if first <= last:
            values = list(range(first, last + 1))
        else:
            values = [*range(first, bounds.stop), *range(bounds.start, last + 1)]
        return values[:: int(found[3] or 1)]
    return [_number(part, bounds)]


def _number(text: str, bounds: range) -> int:
    if text.isascii() and text.isdecimal():
        value = int(text[:9])
    else:
        # Celery tries months, then weekdays, in every field.
        short = text.lower()[:3]
        value = _MONTHS.index(short) if short in _MONTHS[1:] else _WEEKDAYS.index(short)
    if value not in bounds:
        raise ValueError(text)
    return value


def _listed(values: Collection[int]) -> str:
    """Return values as numbers and ranges: 1-5,7."""
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
