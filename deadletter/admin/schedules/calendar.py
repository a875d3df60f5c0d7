"""The next 24 hours of all schedules, hour by hour, in the reader's time zone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext

from ... import clock
from ...models import Schedule, primary_alias
from ...operations.upcoming_runs import FREQUENT, SCHEDULES, UpcomingRuns, list_upcoming
from ..base import AdminView
from ..lookups import refuse_others
from .shown import at_home, reader_zone, rule_text, zone_of

HOURS = 24
#: Lines of an hour that are shown at once; the others are unfolded.
SHOWN = 12


@dataclass(frozen=True)
class CalendarEntry:
    """The moments of one schedule in one hour."""

    schedule: Schedule
    url: str
    times: list[str]
    home: str
    at: datetime


@dataclass(frozen=True)
class CalendarHour:
    at: datetime
    #: Set for the first hour of a day.
    day: datetime | None
    entries: list[CalendarEntry] = field(default_factory=list)

    @property
    def shown(self) -> list[CalendarEntry]:
        return self.entries[:SHOWN]

    @property
    def others(self) -> list[CalendarEntry]:
        return self.entries[SHOWN:]


class CalendarView(AdminView):
    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        refuse_others(request, ())
        alias = primary_alias()
        now = clock.now(alias)
        found = list_upcoming(now, within=timedelta(hours=HOURS), using=alias)
        frequent = [
            {"name": row.name, "rule": rule_text(row), "url": self._url(row)}
            for row in found.frequent
        ]
        return self.page(
            "schedule/calendar",
            gettext("The next 24 hours"),
            hours=self._hours(found),
            frequent=frequent[: 2 * SHOWN],
            frequent_others=frequent[2 * SHOWN :],
            is_part=found.is_part,
            limit=SCHEDULES,
            most=FREQUENT,
            zone=reader_zone(),
            now=now,
        )

    def _hours(self, found: UpcomingRuns) -> list[CalendarHour]:
        by_hour: dict[datetime, list[CalendarEntry]] = {}
        for hour, runs in groupby(found.runs, key=lambda run: _hour(run[0])):
            moments: dict[str, list[datetime]] = {}
            rows: dict[str, Schedule] = {}
            for moment, row in runs:
                moments.setdefault(row.name, []).append(moment)
                rows[row.name] = row
            by_hour[hour] = [
                CalendarEntry(
                    schedule=rows[name],
                    url=self._url(rows[name]),
                    times=[f"{timezone.localtime(moment):%H:%M}" for moment in times],
                    home=at_home(times[0], zone_of(rows[name])),
                    at=times[0],
                )
                for name, times in moments.items()
            ]
        first, hours, day = _hour(found.start), [], None
        while first < found.end:
            local = timezone.localtime(first)
            is_new = day is None or local.date() != day
            hours.append(CalendarHour(local, local if is_new else None, by_hour.get(first, [])))
            first, day = first + timedelta(hours=1), local.date()
        return hours

    def _url(self, row: Schedule) -> str:
        return self.link("schedule_change", row.pk)


def _hour(at: datetime) -> datetime:
    """Return the beginning of its hour in the reader's zone; some zones are off by 30 minutes."""
    local = timezone.localtime(at)
    back = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    return at.astimezone(UTC) - back
