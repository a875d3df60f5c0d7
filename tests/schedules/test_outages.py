"""After a long outage: what was missed is brought up to date in bounded steps, by all policies."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import Sum

from deadletter import operations
from deadletter.models import Message, Schedule, ScheduleRun
from deadletter.schedules import fire_due
from deadletter.schedules.firings import MOST_MOMENTS

from .conftest import NOON

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def moments_of_messages() -> list[str]:
    return [row.headers["schedule-moment"] for row in Message.objects.order_by("id")]


@pytest.mark.parametrize("late", [MOST_MOMENTS - 1, MOST_MOMENTS, MOST_MOMENTS + 1, 2_050, 4_500])
@pytest.mark.parametrize(("policy", "sent"), [("once", 1), ("all", 100)])
def test_the_latest_moments_are_fired_however_many_were_missed(make, clock, late, policy, sent):
    make(interval="1m", missed=policy, overlap="allow")
    clock.set(NOON + late * MINUTE)

    while fire_due().schedules:
        pass

    expected = [NOON + n * MINUTE for n in range(late - sent + 1, late + 1)]
    assert moments_of_messages() == [moment.isoformat() for moment in expected]
    rows = ScheduleRun.objects.order_by("moment")
    # Each moment is in one row of the history, of those that are kept.
    end = NOON + MINUTE
    for row in rows:
        assert row.moment == end
        end += row.count * MINUTE
    assert rows.aggregate(n=Sum("count"))["n"] == late
    assert Schedule.objects.get().next_at == end


def test_a_transaction_computes_a_bounded_number_of_moments(make, clock):
    for n in range(4):
        make(f"s{n}", interval="1m")
    clock.set(NOON + 900 * MINUTE)

    done = [fire_due() for _ in range(3)]

    assert [(one.schedules, one.moments, one.is_part) for one in done] == [
        (3, 2_700, True),
        (1, 900, False),
        (0, 0, False),
    ]


def test_schedules_that_catch_up_for_long_do_not_keep_the_others_waiting(make, clock):
    for n in range(3):
        make(f"behind{n}", interval="1m")
    clock.set(NOON + 9_000 * MINUTE)
    make("current", interval="1s")

    steps = 0
    while not ScheduleRun.objects.filter(schedule__name="current").exists():
        clock.advance(1)
        assert fire_due().moments >= MOST_MOMENTS
        steps += 1

    # A step of each that is behind, one more of the first, and the current one behind a second
    # step. To bring all three up to date takes fifteen.
    assert steps == 5
    assert not Message.objects.filter(headers__contains="behind").exists()


def test_a_schedule_for_one_time_is_fired_after_an_outage_or_missed_as_it_says(make, fire_at):
    at = NOON + MINUTE
    make("late", at=at)
    make("strict", at=at, missed="skip")

    assert fire_at(NOON + timedelta(days=30)) == 1

    rows = ScheduleRun.objects.order_by("schedule__name").values_list("schedule__name", "outcome")
    assert list(rows) == [("late", "sent"), ("strict", "missed")]
    assert [row.is_ended for row in Schedule.objects.all()] == [True, True]


def test_an_outage_over_the_end_fires_the_last_moment_before_it(make, fire_at):
    make(interval="10m", end=NOON + 25 * MINUTE)

    assert fire_at(NOON + timedelta(days=1)) == 1

    assert moments_of_messages() == [(NOON + 20 * MINUTE).isoformat()]
    assert Schedule.objects.get().is_ended


def test_an_outage_fires_no_more_messages_than_are_left(make, fire_at):
    make(interval="10m", missed="all", overlap="allow", max_runs=2)

    assert fire_at(NOON + timedelta(hours=5)) == 2

    assert moments_of_messages() == [(NOON + n * 10 * MINUTE).isoformat() for n in (1, 2)]
    assert Schedule.objects.get().is_ended


@pytest.mark.parametrize(("late", "outcomes"), [(60, ["sent"]), (61, ["missed"])])
def test_the_grace_decides_to_the_second(make, fire_at, late, outcomes):
    make(missed="skip", grace="1m")

    fire_at(NOON + timedelta(hours=1, seconds=late))

    assert list(ScheduleRun.objects.values_list("outcome", flat=True)) == outcomes


def test_the_grace_counts_from_the_end_of_the_jitter(make, fire_at):
    row = make(missed="skip", grace="1m", jitter="30m")

    assert fire_at(row.due_at + MINUTE) == 1


def test_jitter_moves_no_moment(make, fire_at, clock):
    row = make(jitter="30m", overlap="allow")

    while clock.now < NOON + timedelta(hours=24):
        row.refresh_from_db()
        assert timedelta(0) <= row.due_at - row.next_at <= timedelta(minutes=30)
        assert fire_at(row.due_at - timedelta(microseconds=1)) == 0
        assert fire_at(row.due_at) == 1

    hours = [NOON + timedelta(hours=n) for n in range(1, Message.objects.count() + 1)]
    assert moments_of_messages() == [moment.isoformat() for moment in hours]


def test_a_clock_set_back_between_a_moment_and_its_firing_fires_it_once(make, fire_at):
    make(interval="10m", overlap="allow")
    fire_at(NOON + 10 * MINUTE)

    # Ten minutes back, then forward again over three moments.
    sent = [fire_at(NOON + n * MINUTE) for n in (0, 9, 10, 19, 20, 30, 40)]

    assert sent == [0, 0, 0, 0, 1, 1, 1]
    assert moments_of_messages() == [(NOON + n * MINUTE).isoformat() for n in (10, 20, 30, 40)]


def test_a_schedule_that_fired_while_the_clock_was_a_year_ahead_continues_after_a_pause(
    make, fire_at, clock
):
    make()
    clock.set(NOON + timedelta(days=365))
    while fire_due().schedules:
        pass
    clock.set(NOON + timedelta(minutes=61))
    operations.pause_schedule("hourly")
    Message.objects.all().delete()

    row = operations.resume_schedule("hourly")

    assert row.next_at == NOON + timedelta(hours=2)
    assert fire_at(NOON + timedelta(hours=2)) == 1


def test_what_is_planned_anew_after_the_clock_was_set_back_repeats_no_moment(make, fire_at, clock):
    make(interval="10m", overlap="allow")
    fire_at(NOON + 30 * MINUTE)
    clock.set(NOON + 15 * MINUTE)
    operations.pause_schedule("hourly")

    row = operations.resume_schedule("hourly")

    assert row.next_at == NOON + 40 * MINUTE
