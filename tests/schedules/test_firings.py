"""Firings: which moments send a message, and what is recorded of the others."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from deadletter import operations
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Message, PoisonRecord, Queue, Schedule, ScheduleRun
from deadletter.schedules import fire_due

from .conftest import NOON

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def runs(name: str = "hourly") -> list[tuple[object, str]]:
    rows = ScheduleRun.objects.filter(schedule__name=name).order_by("id")
    return [(row.moment, row.outcome) for row in rows]


def test_a_moment_sends_one_message_and_is_recorded(make, fire_at, counts):
    schedule = make(payload={"of": "sales"}, priority=-3, stream="reports")
    assert schedule.next_at == NOON + HOUR

    assert fire_at(NOON + HOUR) == 1

    message = Message.objects.get()
    assert (message.name, message.payload, message.queue.name) == (
        "report",
        {"of": "sales"},
        "default",
    )
    assert (message.priority, message.stream) == (-3, "reports")
    assert message.headers == {
        "schedule": "hourly",
        "schedule-moment": "2026-06-01T13:00:00+00:00",
    }
    schedule.refresh_from_db()
    assert (schedule.last_at, schedule.next_at) == (NOON + HOUR, NOON + 2 * HOUR)
    assert (schedule.last_outcome, schedule.run_count) == ("sent", 1)
    run = ScheduleRun.objects.get()
    assert (run.moment, run.message_id, run.fired_at) == (NOON + HOUR, message.pk, NOON + HOUR)
    assert counts() == {"pending": 1}


def test_nothing_is_sent_before_the_moment(make, fire_at):
    make()

    assert fire_at(NOON + HOUR - timedelta(microseconds=1)) == 0


def test_a_moment_is_fired_once(make, fire_at):
    make()

    assert [fire_at(NOON + HOUR), fire_at(NOON + HOUR), fire_at(NOON + HOUR + MINUTE)] == [1, 0, 0]


def test_the_next_moment_derives_from_the_last_one(make, fire_at):
    make(interval="10m")

    fire_at(NOON + 13 * MINUTE)
    schedule = Schedule.objects.get()

    assert (schedule.last_at, schedule.next_at) == (NOON + 10 * MINUTE, NOON + 20 * MINUTE)


def test_a_clock_set_back_by_ten_minutes_fires_nothing_twice(make, fire_at):
    make(interval="5m", overlap="allow")
    fired = [fire_at(NOON + n * MINUTE) for n in range(11)]

    again = [fire_at(NOON + n * MINUTE) for n in range(16)]

    assert sum(fired) == 2
    assert (sum(again), again[15]) == (1, 1)
    assert [moment for moment, _ in runs()] == [NOON + n * MINUTE for n in (5, 10, 15)]


def test_a_task_is_sent_with_its_arguments_and_its_own_templates(make, fire_at):
    make(task="tests.sample.tasks.welcome", kwargs={"user_id": 7})

    fire_at(NOON + HOUR)

    message = Message.objects.get()
    assert (message.name, message.kind) == ("tests.sample.tasks.welcome", "task")
    assert message.payload == {"kwargs": {"user_id": 7}}
    assert (message.stream, message.key) == ("user-7", "welcome-7")
    assert message.headers["schedule"] == "hourly"


def lease(seconds: float = 86_400) -> None:
    """Lease the waiting message for a day."""
    assert len(claim(lease=seconds).messages) == 1


def end() -> None:
    Message.objects.filter(lease_token__isnull=False).delete()


def test_overlap_skip_sends_nothing_while_an_earlier_message_waits_or_runs(make, fire_at):
    make(overlap="skip")
    sent = [fire_at(NOON + HOUR)]
    sent.append(fire_at(NOON + 2 * HOUR))  # it waits
    lease()
    sent.append(fire_at(NOON + 3 * HOUR))  # it runs
    end()
    sent.append(fire_at(NOON + 4 * HOUR))

    assert sent == [1, 0, 0, 1]
    assert [outcome for _, outcome in runs()] == ["sent", "skipped", "skipped", "sent"]
    why = ScheduleRun.objects.filter(outcome="skipped").values_list("why", flat=True)
    first = ScheduleRun.objects.filter(outcome="sent").order_by("id")[0].message_id
    assert set(why) == {f"message {first} of an earlier moment is unfinished"}


def test_overlap_one_lets_one_wait_behind_one_that_runs(make, fire_at):
    make(overlap="one")
    sent = [fire_at(NOON + HOUR)]
    sent.append(fire_at(NOON + 2 * HOUR))  # one waits
    lease()
    sent.append(fire_at(NOON + 3 * HOUR))  # one runs: another may wait
    sent.append(fire_at(NOON + 4 * HOUR))  # one runs, one waits
    end()
    sent.append(fire_at(NOON + 5 * HOUR))  # one waits

    assert sent == [1, 0, 1, 0, 0]


def test_overlap_allow_sends_always(make, fire_at):
    make(overlap="allow")

    assert [fire_at(NOON + n * HOUR) for n in (1, 2, 3)] == [1, 1, 1]


def test_a_dead_message_does_not_hinder_the_next_one(make, fire_at, counts):
    make(overlap="skip")
    fire_at(NOON + HOUR)
    claimed = claim()
    fail(claimed.token, [Failure(claimed.messages[0].id, permanent=True)])

    assert fire_at(NOON + 2 * HOUR) == 1
    assert counts() == {"pending": 1, "dead": 1}


def test_a_dead_message_that_is_retried_hinders_the_next_one_again(make, fire_at):
    make(overlap="skip")
    fire_at(NOON + HOUR)
    claimed = claim()
    fail(claimed.token, [Failure(claimed.messages[0].id, permanent=True)])
    operations.retry_poison(PoisonRecord.objects.get().pk)

    assert fire_at(NOON + 2 * HOUR) == 0


def test_a_message_that_moved_to_a_dead_queue_does_not_hinder_the_next_one(make, fire_at):
    graveyard = Queue.objects.create(name="graveyard")
    Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=graveyard)
    make(overlap="skip", queue="mail")
    fire_at(NOON + HOUR)
    claimed = claim(["mail"])
    fail(claimed.token, [Failure(claimed.messages[0].id, permanent=True)])

    assert fire_at(NOON + 2 * HOUR) == 1
    assert set(Message.objects.values_list("queue__name", flat=True)) == {"graveyard", "mail"}


def test_an_expired_message_does_not_hinder_the_next_one_before_a_sweep_has_met_it(make, fire_at):
    make(overlap="skip", expires_in="30m")

    assert fire_at(NOON + HOUR) == 1
    assert fire_at(NOON + 2 * HOUR) == 1


def test_a_message_that_runs_hinders_the_next_one_although_it_has_expired(make, fire_at):
    make(overlap="skip", expires_in="30m")
    fire_at(NOON + HOUR)
    lease()

    assert fire_at(NOON + 2 * HOUR) == 0


def test_a_paused_queue_is_sent_to_and_its_message_hinders_the_next_one(make, fire_at):
    Queue.objects.create(name="mail", paused=True)
    make(overlap="skip", queue="mail")

    assert [fire_at(NOON + HOUR), fire_at(NOON + 2 * HOUR)] == [1, 0]


def test_a_queue_that_has_become_a_dead_queue_gets_no_messages(make, fire_at):
    graveyard = Queue.objects.create(name="graveyard")
    make(queue="graveyard")
    Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=graveyard)

    assert fire_at(NOON + HOUR) == 0

    error = "queue: graveyard is a dead queue: workers take no messages from it"
    assert Schedule.objects.get().last_error == error


def test_a_damaged_payload_is_said_to_be_one(make, fire_at):
    make(payload={"a": 1})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_schedule SET payload = '{bad'")

    assert fire_at(NOON + HOUR) == 0

    error = "payload: what is stored is no JSON; give it a new one"
    assert Schedule.objects.get().last_error == error


@pytest.mark.parametrize(
    ("policy", "sent", "outcomes"),
    [
        ("once", 1, ["sent", "missed"]),
        ("skip", 0, ["missed"]),
        ("all", 3, ["sent", "sent", "sent"]),
    ],
)
def test_missed_moments_are_fired_as_the_policy_says(make, fire_at, policy, sent, outcomes):
    make(missed=policy, overlap="allow")

    assert fire_at(NOON + 3 * HOUR + 5 * MINUTE) == sent

    assert [outcome for _, outcome in runs()] == outcomes
    assert Schedule.objects.get().next_at == NOON + 4 * HOUR
    assert Message.objects.count() == sent


def test_a_schedule_that_cannot_fire_stops_no_other_one(make, fire_at):
    Queue.objects.create(name="gone")
    make("broken", queue="gone")
    make("sound")
    Queue.objects.filter(name="gone").delete()

    assert fire_at(NOON + HOUR) == 1

    broken = Schedule.objects.get(name="broken")
    assert "there is no queue 'gone'" in broken.last_error
    assert broken.failing_since == NOON + HOUR
    assert (broken.next_at, broken.due_at) == (NOON + HOUR, NOON + HOUR + MINUTE)
    assert runs("broken") == [(NOON + HOUR, "failed")]

    Queue.objects.create(name="gone")
    assert fire_at(NOON + HOUR + 2 * MINUTE) == 1
    broken.refresh_from_db()
    assert (broken.last_error, broken.failing_since) == ("", None)
    assert runs("broken") == [(NOON + HOUR, "sent")]


def test_a_thousand_due_at_once_are_fired_in_pieces(make, clock):
    for n in range(120):
        make(f"s{n}")
    clock.set(NOON + HOUR)

    assert [fire_due().schedules for _ in range(4)] == [50, 50, 20, 0]
    assert Message.objects.count() == 120
