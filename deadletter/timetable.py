"""
The moments of a schedule: a cron expression, an interval or one time, between a start and an end.

The module is not in `schedules` because the model checks its fields with it. Everything is computed
in UTC; only cron expressions know a time zone. cronsim reads them; it is imported on first use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from .durations import LATEST
from .text import short_repr

if TYPE_CHECKING:
    from cronsim import CronSim

#: What a cron expression needs.
REQUIREMENT = 'pip install "django-deadletter[schedules]"'
#: Characters of a cron expression.
CRON_LENGTH = 200
#: Schedules are looked at once a second.
SHORTEST_INTERVAL = timedelta(seconds=1)
#: Expressions by name, as in crontab(5).
NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_SECOND, _HOUR, _DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
#: Letters, digits and * , - / # L W; spaces between the fields.
_CRON = re.compile(r"[A-Za-z0-9*,/#\-]+(?: +[A-Za-z0-9*,/#\-]+){4}")
_ZONE = re.compile(r"[A-Za-z0-9_+\-]+(?:/[A-Za-z0-9_+\-]+)*")
#: Not names of IANA, but files beside them: the zone of the machine, and zones with leap seconds.
_NO_ZONE = re.compile(r"(?:right|posix)/.*|localtime|posixrules|Factory")


class TimetableError(ValueError):
    """A cron expression or a time zone cannot be used here. `field` is the one that is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """
    The moments of one schedule: exactly one of `cron`, `interval` and `at`.

    The moments of an interval are `anchor`, `anchor` + interval, …; they depend on no clock, so
    every worker computes the same.
    """

    cron: str = ""
    interval: timedelta | None = None
    at: datetime | None = None
    time_zone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    #: Where the moments of an interval begin, if there is no start.
    anchor: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """
        Return the first moment later than another; None: there is none.

        Raises: TimetableError.
        """
        if self.start is not None:
            # A start that is itself a moment counts.
            moment = max(moment, self.start - timedelta(microseconds=1))
        found = self._after(moment.astimezone(UTC))
        if found is None or found > LATEST or (self.end is not None and found > self.end):
            return None
        return found

    def moments(self, after: datetime) -> Iterator[datetime]:
        """Yield the moments later than a time, in order, without end. Raises: TimetableError."""
        found = self.after(after)
        while found is not None:
            yield found
            found = self.after(found)

    def first(self, n: int, after: datetime) -> list[datetime]:
        return list(islice(self.moments(after), n))

    def _after(self, moment: datetime) -> datetime | None:
        if self.at is not None:
            return self.at.astimezone(UTC) if self.at > moment else None
        if self.interval is not None:
            # In UTC: adding to a local time moves its clock, which is set forward and back.
            begin = (self.start or self.anchor or moment).astimezone(UTC)
            if moment < begin:
                return begin
            try:
                return begin + ((moment - begin) // self.interval + 1) * self.interval
            except OverflowError:  # the end of the calendar
                return None
        return next_of_cron(self.cron, self.time_zone, moment)


def next_of_cron(cron: str, time_zone: str, moment: datetime) -> datetime | None:
    """
    Return the first moment of a cron expression later than another, in UTC; None: there is none.

    Raises: TimetableError.
    """
    zone = read_zone(time_zone)
    found = _first_of_cron(cron, zone, moment)
    if found is not None and _is_real_time(cron):
        for change in _clock_changes(zone, moment, found):
            # cronsim steps over whole hours. Where the clocks change by half an hour (Lord Howe
            # Island) it would leave out the first moments after the change. Until the next change
            # local times follow each other as those of UTC.
            local = change.astimezone(zone).replace(tzinfo=UTC)
            candidate = _first_of_cron(cron, UTC, local - _SECOND)
            if candidate is None:
                continue
            candidate = change + (candidate - local)
            is_same = _utc_offset(zone, candidate) == _utc_offset(zone, change)
            if is_same and moment < candidate < found:
                return candidate
    return found


def _first_of_cron(cron: str, zone: tzinfo, moment: datetime) -> datetime | None:
    for found in _simulate(cron, moment.astimezone(zone)):
        found = found.astimezone(UTC)
        # In an hour that occurs twice cronsim may begin with its first occurrence, which is over.
        if found > moment:
            return found
    return None


def _is_real_time(cron: str) -> bool:
    """Return whether hours that occur twice count twice: minute or hour begins with a star."""
    return any(field.startswith("*") for field in read_cron(cron).split()[:2])


def _clock_changes(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the moments, to the second, at which the clocks of a zone change by part of an hour."""
    while begin < end:
        day = begin + min(_DAY, end - begin)
        before = _utc_offset(zone, begin)
        if (_utc_offset(zone, day) - before) % _HOUR:
            first, last = begin, day
            while last - first > _SECOND:
                middle = first + (last - first) / 2
                is_before = _utc_offset(zone, middle) == before
                first, last = (middle, last) if is_before else (first, middle)
            yield last.replace(microsecond=0)
        begin = day


def _utc_offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def check_cron(cron: str) -> None:
    """Raise TimetableError unless a text is a cron expression that has moments."""
    if next_of_cron(cron, "UTC", datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise TimetableError("cron", f"{short_repr(cron)} never occurs.")


def read_cron(cron: str) -> str:
    """
    Return the five fields of an expression or of a name such as @daily.

    Raises: TimetableError for a text of another form.
    """
    text = " ".join(cron.split())
    if text.startswith("@"):
        if text.lower() not in NAMED:
            raise TimetableError(
                "cron", f"{short_repr(cron)} is unknown; there are {', '.join(NAMED)}."
            )
        return NAMED[text.lower()]
    if len(text) > CRON_LENGTH or not _CRON.fullmatch(text):
        raise TimetableError(
            "cron",
            f"{short_repr(cron)} is no cron expression: five fields are expected (minute, hour, "
            'day of month, month, day of week), for example "0 3 * * *".',
        )
    return text


@lru_cache(maxsize=256)
def read_zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name. Raises: TimetableError."""
    try:
        if _ZONE.fullmatch(name) and not _NO_ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (OSError, ValueError):  # OSError: a directory of the database, such as "Europe"
        pass
    except KeyError:  # ZoneInfoNotFoundError
        pass
    raise TimetableError(
        "time_zone", f"{short_repr(name)} is no time zone; give an IANA name such as Europe/Berlin."
    )


def is_cron_available() -> bool:
    """Return whether cron expressions can be read here."""
    return find_spec("cronsim") is not None


def offset(name: str, moment: datetime, jitter: timedelta) -> timedelta:
    """
    Return by how much a moment of a schedule is put off: 0 to `jitter`, in whole milliseconds.

    It depends on name and moment only: whichever worker looks, and however often, it is the same.
    """
    milliseconds = jitter // timedelta(milliseconds=1)
    if milliseconds <= 0:
        return timedelta(0)
    text = f"{name} {moment.astimezone(UTC).isoformat()}"
    # Not a checksum, whose values are close together for texts that are.
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return timedelta(milliseconds=number % (milliseconds + 1))


def _simulate(cron: str, start: datetime) -> Iterator[datetime]:
    fields = read_cron(cron)
    simulator, error_class = _simulator()
    try:
        simulated = simulator(fields, start)
    except error_class as error:
        raise TimetableError("cron", f"{short_repr(cron)}: {error}.") from None
    return _guard(simulated)


def _guard(simulated: CronSim) -> Iterator[datetime]:
    try:
        yield from simulated
    except (OverflowError, ValueError):  # the end of the calendar
        return


@lru_cache(maxsize=1)
def _simulator() -> tuple[type[CronSim], Any]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise TimetableError(
            "cron", f"cron expressions need the package cronsim: {REQUIREMENT}."
        ) from None
    return CronSim, CronSimError
