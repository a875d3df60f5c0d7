"""What people do to schedules: checked, audited, and effective at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError

from deadletter import operations
from deadletter.exceptions import UnknownSchedule
from deadletter.models import Act, AuditEntry, Message, Queue, Schedule, ScheduleRun
from deadletter.schedules import CannotFire
from tests.sample import tasks

from .conftest import NOON

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"message": "no name!", "cron": "0 3 * * *"}, "target"),
        ({"message": "m"}, "interval"),
        ({"message": "m", "cron": "0 3 * * *", "interval": 5}, "interval"),
        ({"message": "m", "cron": "61 3 * * *"}, "cron"),
        ({"message": "m", "cron": "0 0 31 2 *"}, "cron"),
        ({"message": "m", "cron": "* * * * * *"}, "cron"),
        ({"message": "m", "cron": "@often"}, "cron"),
        ({"message": "m", "interval": 0.5}, "interval"),
        ({"message": "m", "interval": 60, "time_zone": "Mars/Olympus"}, "time_zone"),
        ({"message": "m", "interval": 60, "time_zone": "../../etc/passwd"}, "time_zone"),
        ({"message": "m", "interval": 60, "time_zone": "right/Europe/Berlin"}, "time_zone"),
        ({"message": "m", "interval": 60, "time_zone": "localtime"}, "time_zone"),
        ({"message": "m", "interval": 60, "queue": "nowhere"}, "queue"),
        ({"message": "m", "interval": 60, "payload": {"n": float("nan")}}, "payload"),
        ({"message": "m", "interval": 60, "headers": ["a"]}, "headers"),
        ({"message": "m", "interval": 60, "stream": "\n"}, "stream"),
        ({"message": "m", "interval": 60, "priority": 101}, "priority"),
        ({"message": "m", "interval": 60, "overlap": "sometimes"}, "overlap"),
        ({"message": "m", "interval": 60, "jitter": "-5s"}, "jitter"),
        ({"task": "os.system", "interval": 60}, "target"),
        ({"task": "tests.sample.tasks.add", "interval": 60}, "payload"),
        ({"task": "tests.sample.tasks.add", "interval": 60, "kwargs": {"z": 1}}, "payload"),
        ({"message": "m", "interval": 60, "start": NOON, "end": NOON - HOUR}, "end"),
        ({"message": "m", "interval": 60, "jitter": 60}, "jitter"),
        ({"message": "m", "interval": 60, "queue": "graveyard"}, "queue"),
        ({"message": "m", "interval": 60, "queue": "deadletter"}, "queue"),
        ({"message": "deadletter.notice", "interval": 60}, "target"),
    ],
)
def test_what_cannot_work_is_refused_with_its_field(options, field):
    graveyard = Queue.objects.create(name="graveyard")
    Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=graveyard)

    with pytest.raises(ValidationError) as refused:
        operations.create_schedule("s", **options)

    assert list(refused.value.message_dict) == [field]
    assert (Schedule.objects.count(), AuditEntry.objects.count()) == (0, 0)


def test_a_name_is_taken_once(make):
    make()

    with pytest.raises(ValidationError, match="another schedule"):
        make()


def test_a_task_may_be_given_itself(make):
    schedule = make(task=tasks.add, args=[1], interval="1h")

    assert (schedule.kind, schedule.target) == ("task", "tests.sample.tasks.add")
    assert schedule.payload == {"args": [1]}


def test_an_edit_takes_effect_at_once_and_is_audited(make, clock):
    make(payload={"secret": 1})
    clock.advance(90)

    edited = operations.set_schedule(
        "hourly", interval="10m", payload={"secret": 2}, by="ann", why="too rare"
    )

    assert (edited.cron, edited.next_at) == ("", NOON + timedelta(minutes=10))
    entry = AuditEntry.objects.get(by="ann")
    assert (entry.act, entry.why, entry.selection) == (
        Act.EDIT_SCHEDULE,
        "too rare",
        {"schedule": "hourly"},
    )
    assert entry.detail == {"cron": "0 * * * * → ", "interval": "None → 10m", "payload": "… → …"}
    assert (entry.payload_before, entry.payload_after) == ('{"secret":1}', '{"secret":2}')


def test_an_edit_that_changes_nothing_writes_nothing(make):
    make()
    before = AuditEntry.objects.count()

    operations.set_schedule("hourly", cron="0 * * * *", by="ann")

    assert AuditEntry.objects.count() == before


def test_an_edit_of_other_fields_keeps_the_next_moment(make, clock):
    make(interval="1h")
    clock.advance(HOUR + timedelta(minutes=5))

    operations.set_schedule("hourly", payload=1)

    assert Schedule.objects.get().next_at == NOON + HOUR


@pytest.mark.parametrize(
    "options",
    [{"end": NOON + 9 * HOUR}, {"jitter": "5m"}, {"max_runs": 9}, {"queue": "default"}],
)
def test_an_edit_that_moves_no_moment_keeps_one_that_is_overdue(make, clock, fire_at, options):
    make()
    clock.set(NOON + HOUR + timedelta(minutes=10))

    operations.set_schedule("hourly", **options)

    assert fire_at(clock.now) == 1
    assert ScheduleRun.objects.get().moment == NOON + HOUR


def test_an_earlier_end_ends_a_schedule_and_a_later_one_continues_it(make):
    make(end=NOON + 5 * HOUR)

    assert operations.set_schedule("hourly", end=NOON).next_at is None
    assert operations.set_schedule("hourly", end=NOON + HOUR).next_at == NOON + HOUR


def test_a_schedule_that_failed_is_not_known_to_fail_after_a_pause(make, fire_at):
    Queue.objects.create(name="gone")
    make(queue="gone")
    Queue.objects.filter(name="gone").delete()
    fire_at(NOON + HOUR)
    operations.pause_schedule("hourly")

    row = operations.resume_schedule("hourly")

    row.refresh_from_db()
    assert (row.failing_since, row.last_error) == (None, "")
    assert row.due_at == NOON + 2 * HOUR


def test_a_corrected_schedule_is_tried_at_once(make, fire_at):
    Queue.objects.create(name="gone")
    make(queue="gone")
    Queue.objects.filter(name="gone").delete()
    fire_at(NOON + HOUR)
    assert Schedule.objects.get().failing_since == NOON + HOUR

    row = operations.set_schedule("hourly", queue="default")

    assert (row.failing_since, row.last_error, row.due_at) == (None, "", NOON + HOUR)
    assert fire_at(NOON + HOUR) == 1


def test_a_paused_schedule_fires_nothing_and_continues_from_now(make, fire_at):
    make()
    operations.pause_schedule("hourly", by="ann")
    assert fire_at(NOON + 3 * HOUR) == 0

    row = operations.resume_schedule("hourly", by="ann")

    assert row.next_at == NOON + 4 * HOUR
    acts = AuditEntry.objects.filter(by="ann").order_by("id").values_list("act", flat=True)
    assert list(acts) == [Act.PAUSE_SCHEDULE, Act.RESUME_SCHEDULE]


def test_run_now_consumes_no_moment_and_is_hindered_by_nothing(make, fire_at, clock):
    make(overlap="skip")
    operations.pause_schedule("hourly")

    first = operations.run_schedule("hourly", by="ann")
    second = operations.run_schedule("hourly", by="ann")

    assert [run.outcome for run in (first, second)] == ["sent", "sent"]
    assert Message.objects.count() == 2
    assert Message.objects.first().headers == {"schedule": "hourly"}
    row = operations.resume_schedule("hourly")
    assert (row.run_count, row.last_at, row.next_at) == (0, None, NOON + HOUR)
    assert ScheduleRun.objects.filter(moment=None, by="ann").count() == 2
    # But its messages are messages of the schedule.
    assert fire_at(NOON + HOUR) == 0


def test_run_now_of_what_cannot_be_sent_stores_nothing(make):
    Queue.objects.create(name="gone")
    make(queue="gone")
    Queue.objects.filter(name="gone").delete()

    with pytest.raises(CannotFire, match="there is no queue 'gone'"):
        operations.run_schedule("hourly")

    assert (ScheduleRun.objects.count(), AuditEntry.objects.filter(act="run_schedule").count()) == (
        0,
        0,
    )


def test_deleting_keeps_what_was_sent(make, fire_at):
    make()
    fire_at(NOON + HOUR)

    operations.delete_schedule("hourly", by="ann")

    assert (Schedule.objects.count(), ScheduleRun.objects.count()) == (0, 0)
    assert Message.objects.count() == 1
    with pytest.raises(UnknownSchedule):
        operations.pause_schedule("hourly")


def test_the_next_runs_of_a_stored_and_of_an_unsaved_schedule(make):
    stored = make()
    unsaved = Schedule(name="n", interval=timedelta(minutes=30), start=NOON + HOUR, max_runs=2)

    assert operations.next_runs(stored, 2) == [NOON + HOUR, NOON + 2 * HOUR]
    assert operations.next_runs("hourly", 1, after=NOON + 5 * HOUR) == [NOON + 6 * HOUR]
    assert operations.next_runs(unsaved) == [NOON + HOUR, NOON + timedelta(minutes=90)]


def test_a_schedule_for_one_time_ends_after_it(make, fire_at):
    schedule = make(at=datetime(2026, 6, 2, tzinfo=UTC))

    assert fire_at(NOON + timedelta(days=2)) == 1
    schedule.refresh_from_db()
    assert (schedule.is_ended, schedule.due_at) == (True, None)


def test_a_schedule_ends_after_its_last_run(make, fire_at):
    schedule = make(max_runs=2, overlap="allow")

    assert [fire_at(NOON + n * HOUR) for n in (1, 2, 3)] == [1, 1, 0]
    schedule.refresh_from_db()
    assert (schedule.is_ended, schedule.run_count) == (True, 2)
