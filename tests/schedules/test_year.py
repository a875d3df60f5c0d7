"""A year in three time zones: every moment equals that of a second implementation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest

from deadletter.models import ScheduleRun
from deadletter.timetable import Timetable

from .minute_walk import gaps, moments

#: The clocks of Lord Howe Island change by half an hour.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
YEAR = 2026
BEGIN, END = datetime(YEAR, 1, 1, tzinfo=UTC), datetime(YEAR + 1, 1, 1, tzinfo=UTC)
EXPRESSIONS = [
    "0 3 * * *",
    "30 2 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "45 1 * * *",
    "59 23 * * *",
    "0 0 * * *",
    "0,30 1-3 * * *",
    pytest.param("5-55/10 1-2 * * *", marks=pytest.mark.slow),
    "0 */6 * * *",
    pytest.param("30 */2 * * *", marks=pytest.mark.slow),
    pytest.param("*/15 * * * *", marks=pytest.mark.slow),
    "*/30 2 * * *",
    pytest.param("*/7 1-3 * * *", marks=pytest.mark.slow),
    pytest.param("0 * * * *", marks=pytest.mark.slow),
    "30 2 * * 0",
    "0 2 29 3 *",
    "0 0 13 * 5",
    "0 12 1-7 * 1",
    "0 9 */2 * 1-5",
    "30 1 * 3,4,10,11 0",
    "0 8-18/2 * * 1-5",
    "0 0 31 * *",
    "0 6 1 1,4,7,10 *",
    "10 3 * * 7",
]


def runs(times: Timetable, begin: datetime = BEGIN, end: datetime = END) -> list[datetime]:
    found = times.moments(begin - timedelta(microseconds=1))
    return list(takewhile(lambda moment: moment < end, found))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_year_of_moments_equals_that_of_a_second_implementation(expression, zone):
    found = runs(Timetable(cron=expression, time_zone=zone))

    assert found == list(moments(expression, zone, YEAR))
    assert found


@pytest.mark.parametrize("zone", ZONES)
def test_every_year_has_a_gap_and_an_hour_that_exists_twice(zone):
    (times,) = [entry for entries in gaps(zone, YEAR).values() for entry in entries]

    every_minute = len(list(moments("* * * * *", zone, YEAR)))
    once = len(list(moments("0-59 0-23 * * *", zone, YEAR)))
    assert every_minute == 365 * 24 * 60
    # What exists twice is fired once, and a gap adds nothing to the moment at its end.
    assert every_minute - once == len(times[0]) == (30 if zone == "Australia/Lord_Howe" else 60)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("interval", [timedelta(minutes=7), timedelta(hours=6), timedelta(days=1)])
def test_a_year_of_an_interval_is_real_time(interval, zone):
    begin = datetime(YEAR, 1, 1, 3, tzinfo=ZoneInfo(zone))

    found = runs(Timetable(interval=interval, start=begin, time_zone=zone))

    expected, moment = [], begin.astimezone(UTC)
    while moment < END:
        expected += [moment] if moment >= BEGIN else []
        moment += interval
    assert found == expected


@pytest.mark.django_db
@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_firings_is_one_message_for_each_moment(zone, make, fire_at, clock):
    clock.set(BEGIN - timedelta(minutes=1))
    schedule = make(cron="30 2 * * *", time_zone=zone, overlap="allow")
    fired = []

    for hours in range(0, 365 * 24, 8):
        at = BEGIN + timedelta(hours=hours, minutes=59)
        sent = fire_at(at)
        runs_now = ScheduleRun.objects.filter(schedule=schedule, fired_at=at)
        found = list(runs_now.values_list("moment", flat=True))
        assert len(found) == sent
        fired += found

    expected = list(moments("30 2 * * *", zone, YEAR))
    assert fired == [moment for moment in expected if moment <= at]
    assert len(fired) == 365
