"""Totals are sums over rows, and never go backwards."""

from __future__ import annotations

import pytest

from deadletter import FailureReason
from deadletter.metrics.process_counters import OTHER
from deadletter.metrics.totals import MonotonicTotals
from deadletter.models import Count, Kind, Span

from .rows import counted

pytestmark = pytest.mark.django_db

NONE = dict.fromkeys(Kind.values, 0)


@pytest.fixture(autouse=True)
def empty(db: None) -> None:
    Count.objects.all().delete()


def test_nothing_has_happened_yet():
    found = MonotonicTotals().read("default")

    assert (found.sent, found.completed, found.failed) == ({}, {}, {})
    assert found.poisoned == found.retried == found.removed == found.deferred == NONE


def test_rows_of_all_spans_and_writers_are_added_up():
    counted(sent=1, completed=2, writer="a")
    counted(sent=10, completed=20, writer="b")
    counted(sent=100, span=Span.HOUR)
    counted(sent=1_000, span=Span.DAY)
    counted(sent=5, queue="mail")

    found = MonotonicTotals().read("default")

    assert found.sent == {("default", "job"): 1_111, ("mail", "job"): 5}
    assert found.completed == {("default", "job"): 22, ("mail", "job"): 0}


def test_failures_are_told_apart_by_reason():
    counted(failed=1, reason=FailureReason.TIMEOUT_EXCEEDED)
    counted(failed=2, reason=FailureReason.TIMEOUT_EXCEEDED, minute=1)
    counted(failed=4, reason=FailureReason.HANDLER_EXCEPTION)
    counted(failed=8, reason=12345)

    assert MonotonicTotals().read("default").failed == {
        ("default", "job", "TIMEOUT_EXCEEDED"): 3,
        ("default", "job", "HANDLER_EXCEPTION"): 4,
        ("default", "job", "UNKNOWN"): 8,
    }


def test_deaths_and_what_people_did_are_told_apart_by_kind():
    counted(kind="message", poisoned=1, retried=2, removed=3, deferred=4)
    counted(kind="activity", poisoned=10, retried=20, removed=30, deferred=40)
    counted(kind="strange", poisoned=100)

    found = MonotonicTotals().read("default")

    assert found.poisoned == {
        "message": 1,
        "orchestration": 0,
        "activity": 10,
        "task": 0,
        "event": 0,
        OTHER: 100,
    }
    assert found.retried == {
        "message": 2,
        "orchestration": 0,
        "activity": 20,
        "task": 0,
        "event": 0,
        OTHER: 0,
    }
    assert found.removed == {
        "message": 3,
        "orchestration": 0,
        "activity": 30,
        "task": 0,
        "event": 0,
        OTHER: 0,
    }
    assert found.deferred == {
        "message": 4,
        "orchestration": 0,
        "activity": 40,
        "task": 0,
        "event": 0,
        OTHER: 0,
    }


def test_rows_that_are_forgotten_take_nothing_away():
    memory = MonotonicTotals()
    old = counted(sent=100, poisoned=7)
    counted(sent=10, minute=5)
    assert memory.read("default").sent == {("default", "job"): 110}

    old.delete()
    after = memory.read("default")
    counted(sent=5, minute=9)
    later = memory.read("default")
    Count.objects.all().delete()
    nothing_left = memory.read("default")

    assert after.sent == {("default", "job"): 110}
    assert after.poisoned == NONE | {"message": 7}
    assert later.sent == {("default", "job"): 115}
    assert nothing_left.sent == {("default", "job"): 115}


def test_names_beyond_the_limit_are_added_up_under_one():
    counted("first", minute=0, sent=1)
    counted("second", minute=1, sent=2)
    counted("third", minute=2, sent=4)
    counted("fourth", minute=3, sent=8, failed=1, reason=FailureReason.EXPIRED)

    found = MonotonicTotals(series=2).read("default")

    assert found.sent == {("default", "first"): 1, ("default", "second"): 2, (OTHER, OTHER): 12}
    assert found.failed == {(OTHER, OTHER, "EXPIRED"): 1}


def test_a_series_stays_with_its_name():
    memory = MonotonicTotals(series=1)
    counted("late", minute=9, sent=1)
    memory.read("default")

    counted("early", minute=0, sent=2)

    assert memory.read("default").sent == {("default", "late"): 1, (OTHER, OTHER): 2}
