"""The history of a schedule is bounded, and what overlap must know is kept in it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import operations
from deadletter.models import Message, ScheduleRun
from deadletter.schedules import run_history

from .conftest import NOON

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
KEPT, SLACK = run_history.KEPT, run_history.SLACK


def test_runs_by_hand_of_a_paused_schedule_are_bounded(make):
    make(paused=True)

    for _ in range(2 * KEPT + 30):
        operations.run_schedule("hourly")

    # The newest hundred, and as many older ones whose message is unfinished.
    assert ScheduleRun.objects.count() == 2 * KEPT
    Message.objects.all().delete()
    operations.run_schedule("hourly")
    assert ScheduleRun.objects.count() == KEPT


def test_the_newest_hundred_runs_are_kept(make, fire_at):
    make(overlap="allow")

    for n in range(1, KEPT + SLACK):
        fire_at(NOON + n * HOUR)
        Message.objects.all().delete()
    assert ScheduleRun.objects.count() == KEPT + SLACK - 1
    fire_at(NOON + (KEPT + SLACK) * HOUR)

    rows = ScheduleRun.objects.order_by("id")
    expected = [NOON + n * HOUR for n in range(SLACK + 1, KEPT + SLACK + 1)]
    assert [row.moment for row in rows] == expected


def test_a_message_that_waits_for_long_hinders_the_next_one_although_its_run_is_old(make, fire_at):
    make(overlap="skip")
    fire_at(NOON + HOUR)
    first = Message.objects.get()

    for n in range(2, 2 * KEPT):
        assert fire_at(NOON + n * HOUR) == 0

    assert ScheduleRun.objects.count() <= KEPT + SLACK
    assert ScheduleRun.objects.get(message_id=first.pk).moment == NOON + HOUR
    assert Message.objects.get() == first


def test_runs_of_other_schedules_are_left_alone(make):
    make("a", paused=True)
    make("b", paused=True)
    operations.run_schedule("b")

    for _ in range(KEPT + SLACK):
        operations.run_schedule("a")
        Message.objects.filter(name="report").delete()

    assert ScheduleRun.objects.filter(schedule__name="b").count() == 1
