"""The moments of all schedules in the next hours, computed for a bounded number of schedules."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from ..models import Schedule, primary_alias
from ..timetable import TimetableError

#: A schedule with more moments in these hours is named once, not at each of them.
FREQUENT = 12
#: Schedules that are read, and moments that are computed for all of them together.
SCHEDULES, MOMENTS = 500, 3_000
#: The longest time that is looked ahead.
LONGEST = timedelta(days=2)


@dataclass(frozen=True, kw_only=True)
class UpcomingRuns:
    """The moments from `start` until `end`; those of frequent schedules are left out."""

    start: datetime
    end: datetime
    #: In order of time, then by name.
    runs: list[tuple[datetime, Schedule]] = field(default_factory=list)
    #: Schedules with more than FREQUENT moments, by name.
    frequent: list[Schedule] = field(default_factory=list)
    #: True if there are more schedules than were read or computed.
    is_part: bool = False


def list_upcoming(
    start: datetime, *, within: timedelta = timedelta(hours=24), using: str | None = None
) -> UpcomingRuns:
    """List the moments of the schedules that are due next, the earliest first."""
    if not timedelta(0) < within <= LONGEST:
        raise ValueError("within: at most two days")
    end = start + within
    rows = Schedule.objects.using(primary_alias(using)).without_bodies()
    # The index of due schedules. Jitter puts a moment off, but never by more than the hours shown.
    due = rows.filter(due_at__isnull=False, due_at__lt=end).order_by("due_at", "id")
    schedules = list(due[: SCHEDULES + 1])
    runs: list[tuple[datetime, Schedule]] = []
    frequent: list[Schedule] = []
    computed, is_part = 0, len(schedules) > SCHEDULES
    for schedule in schedules[:SCHEDULES]:
        if computed >= MOMENTS:
            is_part = True
            break
        moments = _moments(schedule, start, end)
        computed += len(moments)
        if len(moments) > FREQUENT:
            frequent.append(schedule)
        else:
            runs += [(moment, schedule) for moment in moments]
    runs.sort(key=lambda run: (run[0], run[1].name))
    frequent.sort(key=lambda schedule: schedule.name)
    return UpcomingRuns(start=start, end=end, runs=runs, frequent=frequent, is_part=is_part)


def _moments(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    """Return its moments, FREQUENT and one more at most; none for one that cannot be read."""
    assert schedule.next_at is not None  # noqa: S101 - it is due
    limit = FREQUENT + 1
    if schedule.max_runs is not None:
        limit = min(limit, max(schedule.max_runs - schedule.run_count, 0))
    # A moment that is overdue is fired now: it is not in the hours to come.
    after = max(start, schedule.next_at) - timedelta(microseconds=1)
    found: list[datetime] = []
    try:
        for moment in islice(schedule.timetable().moments(after), limit):
            if moment >= end:
                break
            found.append(moment)
    except TimetableError:
        # An expression that this release cannot read any more: the list of schedules shows why.
        return []
    return found
