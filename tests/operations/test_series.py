"""What happened, step by step, from counters of any span."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from deadletter import FailureReason
from deadletter.models import Count, Span
from deadletter.operations import series
from deadletter.operations.series import DAY, HOUR, WEEK, Rates, read_rates, read_series

NOON = datetime(2030, 5, 14, 12, 30, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def noon(clock):
    clock.set(NOON)
    return clock


def counted(at: datetime, span: int = Span.MINUTE, *, queue: str = "mail", **fields) -> Count:
    key = {"name": "mail.send", "kind": "message", **fields}
    return Count.objects.create(span=span, at=at, queue=queue, **key)


@pytest.mark.parametrize(
    ("window", "first", "last"),
    [
        (HOUR, "2030-05-14T11:31:00+00:00", "2030-05-14T12:30:00+00:00"),
        (DAY, "2030-05-13T13:00:00+00:00", "2030-05-14T12:00:00+00:00"),
        (WEEK, "2030-05-07T16:00:00+00:00", "2030-05-14T12:00:00+00:00"),
    ],
)
def test_a_window_ends_with_the_step_under_way(noon, window, first, last):
    points = read_series(window).points

    assert (points[0].at.isoformat(), points[-1].at.isoformat()) == (first, last)
    assert all(a.until == b.at for a, b in pairwise(points))


def test_rows_of_all_writers_names_and_queues_are_added_up(noon):
    at = NOON.replace(second=0)
    counted(at, sent=2, completed=1, writer="a")
    counted(at, sent=3, writer="b")
    counted(at, queue="orders", sent=5, poisoned=1)
    counted(at - MINUTE, sent=7)

    found = read_series()

    assert [point.sent for point in found.points[-3:]] == [0, 7, 10]
    assert (found.total("sent"), found.total("completed"), found.total("poisoned")) == (17, 1, 1)
    assert read_series(queue="orders").total("sent") == 5


def test_minutes_hours_and_days_are_added_each_in_the_step_in_which_it_begins(noon):
    counted(NOON.replace(second=0), sent=1)
    counted(datetime(2030, 5, 13, 17, tzinfo=UTC), Span.HOUR, sent=10)
    counted(datetime(2030, 5, 9, tzinfo=UTC), Span.DAY, sent=100)

    assert read_series(HOUR).total("sent") == 1
    assert read_series(DAY).total("sent") == 11
    week = read_series(WEEK)
    assert {point.at.isoformat()[:13]: point.sent for point in week.points if point.sent} == {
        "2030-05-09T00": 100,
        "2030-05-13T16": 10,
        "2030-05-14T12": 1,
    }


def test_what_is_older_than_the_window_is_left_out(noon):
    counted(datetime(2030, 5, 14, 11, 30, tzinfo=UTC), sent=1)
    counted(datetime(2030, 5, 14, 11, 31, tzinfo=UTC), sent=2)

    assert read_series(HOUR).total("sent") == 2


def test_a_writer_whose_clock_is_ahead_counts_into_the_last_step(noon):
    counted(NOON.replace(second=0) + 3 * MINUTE, sent=4)

    assert read_series(HOUR).points[-1].sent == 4


def test_failures_are_told_apart_by_reason_the_most_frequent_first(noon):
    at = NOON.replace(second=0)
    counted(at, failed=2, reason=FailureReason.TIMEOUT_EXCEEDED)
    counted(at, failed=3, reason=FailureReason.HANDLER_EXCEPTION)
    counted(at - MINUTE, failed=2, reason=FailureReason.TIMEOUT_EXCEEDED)
    counted(at, failed=1, reason=1234)  # written by a newer version

    found = read_series()

    assert list(found.reasons().items()) == [
        (FailureReason.TIMEOUT_EXCEEDED, 4),
        (FailureReason.HANDLER_EXCEPTION, 3),
        (FailureReason.UNKNOWN, 1),
    ]
    assert found.total("failed") == 8


def test_rates_are_per_minute_of_the_last_five_and_the_one_under_way(noon):
    noon.set(datetime(2030, 5, 14, 12, 30, tzinfo=UTC))
    for n in range(1, 6):
        counted(noon.now - n * MINUTE, sent=10, completed=5)
    counted(noon.now - MINUTE, failed=10, reason=2)
    counted(noon.now - 6 * MINUTE, sent=1_000)
    counted(noon.now - MINUTE, queue="orders", sent=1)

    assert series.RATE_MINUTES == 5
    assert read_rates() == {"mail": Rates(10.0, 5.0, 2.0), "orders": Rates(0.2, 0.0, 0.0)}
