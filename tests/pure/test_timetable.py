"""Timetables: the moments of expressions, intervals and single times, also when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from deadletter.timetable import (
    Timetable,
    TimetableError,
    check_cron,
    next_of_cron,
    offset,
    read_cron,
    read_zone,
)

HOUR = timedelta(hours=1)
#: Clocks go forward on 29 March and back on 25 October 2026.
BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 29, tzinfo=BERLIN)
AUTUMN = datetime(2026, 10, 25, tzinfo=BERLIN)


def local(cron: str, after: datetime, count: int) -> list[str]:
    """Return moments in the zone of `after`: day, time and offset from UTC."""
    zone = str(after.tzinfo)
    moments = Timetable(cron=cron, time_zone=zone).first(count, after)
    return [moment.astimezone(after.tzinfo).strftime("%d %H:%M %z") for moment in moments]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("0,30 2 * * *", ["29 03:00 +0200", "30 02:00 +0200"]),
        ("*/30 2 * * *", ["30 02:00 +0200", "30 02:30 +0200"]),
        ("0 */2 * * *", ["29 00:00 +0100", "29 04:00 +0200"]),
    ],
)
def test_an_hour_that_does_not_exist(cron, expected):
    assert local(cron, SPRING - timedelta(seconds=1), 2) == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["25 02:30 +0200", "26 02:30 +0100"]),
        (
            "*/30 2 * * *",
            ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100"],
        ),
        ("0 */3 * * *", ["25 00:00 +0200", "25 03:00 +0100"]),
    ],
)
def test_an_hour_that_exists_twice(cron, expected):
    assert local(cron, AUTUMN - timedelta(seconds=1), len(expected)) == expected


def test_a_moment_is_later_than_the_one_before_in_the_second_of_two_equal_hours():
    second = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)

    found = next_of_cron("45 2 * * *", "Europe/Berlin", second.astimezone(UTC))

    assert found == datetime(2026, 10, 26, 2, 45, tzinfo=BERLIN).astimezone(UTC)


def test_intervals_are_real_time_from_their_anchor():
    anchor = AUTUMN.astimezone(UTC)
    day = Timetable(interval=timedelta(days=1), anchor=anchor)

    assert day.first(2, anchor) == [anchor + timedelta(days=1), anchor + timedelta(days=2)]
    assert day.after(anchor + timedelta(days=1000, hours=5)) == anchor + timedelta(days=1001)
    assert day.after(anchor - HOUR) == anchor


def test_intervals_from_a_local_time_are_real_time_as_well():
    times = Timetable(interval=HOUR, start=SPRING)

    found = times.first(6, SPRING)

    assert [b - a for a, b in pairwise(found)] == [HOUR] * 5
    assert found[0].tzinfo is UTC


def test_start_and_end_may_be_moments():
    start = datetime(2026, 6, 1, tzinfo=UTC)
    hourly = Timetable(cron="0 * * * *", start=start, end=start + 2 * HOUR)
    interval = Timetable(interval=HOUR, start=start, end=start + 2 * HOUR)

    for times in (hourly, interval):
        assert times.first(9, start - timedelta(days=9)) == [start, start + HOUR, start + 2 * HOUR]


def test_a_single_time_is_one_moment():
    at = datetime(2026, 6, 1, tzinfo=UTC)

    assert Timetable(at=at).first(5, at - HOUR) == [at]
    assert Timetable(at=at).after(at) is None


def test_the_calendar_ends_without_an_error():
    end = datetime(9999, 12, 28, 23, tzinfo=UTC)

    assert Timetable(cron="0 0 1 1 *").after(end) is None
    assert Timetable(interval=timedelta(days=30), anchor=end).after(end) is None


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "0 0 30 2 *",
        "@reboot",
        "* * * * * ; DROP",
        "0 0 * * " + ",".join(["1"] * 200),
        "*/0 * * * *",
        "٣ * * * *",
    ],
)
def test_what_is_no_expression_is_refused(cron):
    with pytest.raises(TimetableError) as refused:
        check_cron(cron)

    assert refused.value.field == "cron"


def test_names_stand_for_expressions():
    assert read_cron("@daily") == "0 0 * * *"
    assert read_cron("  0   3 * * MON-FRI ") == "0 3 * * MON-FRI"


@pytest.mark.parametrize(
    "name", ["", "Berlin", "../../etc/passwd", "/etc/localtime", "Europe", "a\0"]
)
def test_what_is_no_time_zone_is_refused(name):
    with pytest.raises(TimetableError, match="is no time zone"):
        read_zone(name)


def test_jitter_is_the_same_for_a_moment_and_spread_over_moments():
    moments = Timetable(interval=HOUR, anchor=SPRING).first(200, SPRING)
    jitter = timedelta(minutes=10)

    found = [offset("s", moment, jitter) for moment in moments]

    assert found == [offset("s", moment.astimezone(BERLIN), jitter) for moment in moments]
    assert timedelta(0) <= min(found) < timedelta(minutes=1)
    assert timedelta(minutes=9) < max(found) <= jitter
    assert offset("s", moments[0], timedelta(0)) == timedelta(0)
