"""Rows of django-celery-beat become schedules; Celery's own classes say when they were to run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest

from deadletter import operations
from deadletter.models import AuditEntry, Queue, Schedule
from deadletter.schedules.celery_crontab import as_cron

from .beat_tables import beat_models
from .conftest import NOON
from .minute_walk import BOUNDS, read_field

pytest.importorskip("django_celery_beat", reason="a development requirement up to Python 3.12")

pytestmark = pytest.mark.django_db

YEAR = timedelta(days=365)
ADD = "tests.sample.tasks.add"


@pytest.fixture
def beat(db):
    yield from beat_models()


@pytest.fixture
def row(beat):
    """Store a periodic task, each hour unless the options say otherwise."""

    def create(name="hourly", **options):
        given = {"task": ADD, "args": "[1]", **options}
        if not {"crontab", "interval", "clocked", "solar"} & given.keys():
            given["crontab"] = crontab(beat, "0")
        return beat.PeriodicTask.objects.create(name=name, **given)

    return create


def crontab(beat, minute="*", hour="*", dom="*", month="*", dow="*", zone="UTC"):
    return beat.CrontabSchedule.objects.create(
        minute=minute,
        hour=hour,
        day_of_month=dom,
        month_of_year=month,
        day_of_week=dow,
        timezone=zone,
    )


def celery_runs(schedule, begin, end):
    """When beat sends a task: it asks its schedule whether it is due, and how long to wait."""
    now = last = begin
    schedule.nowfun = lambda: now.astimezone(getattr(schedule, "tz", UTC) or UTC)
    found = []
    while now < end:
        due, wait = schedule.is_due(last)
        if due:
            found.append(now.replace(microsecond=0))
            last = now
        now += timedelta(seconds=wait)
    return [moment for moment in found if moment < end]


def our_runs(name, begin, end):
    times = Schedule.objects.get(name=name).timetable()
    return list(takewhile(lambda moment: moment < end, times.moments(begin)))


#: Minute, hour, day of month, month, day of week.
CRONTABS = [
    ("0", "3"),
    ("30", "2", "*", "*", "mon-fri"),
    ("0", "*/6"),
    ("0", "22-2"),
    ("15", "9", "*", "*", "fri-mon"),
    ("0", "0", "1", "*/3"),
    ("0", "0", "31"),
    ("10", "4", "*/10"),
    ("0", "12", "1-7", "*", "monday"),
    ("0", "12", "8-14", "*", "1,3"),
    ("5,35", "8-18/5", "*", "june-august", "0"),
    ("50-10/20", "6"),
    ("0", "7", "*/2", "*", "1-5"),
    ("0", "0", "29", "2"),
]


@pytest.mark.parametrize("fields", CRONTABS)
def test_a_year_of_a_crontab_is_that_of_celery(beat, row, fields):
    entry = row(crontab=crontab(beat, *fields))

    found = operations.import_celery_beat()

    assert found.imported == ["hourly"]
    begin = NOON.replace(minute=1)
    end = begin + (4 if fields[3:4] == ("2",) else 1) * YEAR
    expected = celery_runs(entry.schedule, begin, end)
    assert our_runs("hourly", begin, end) == expected
    assert expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("fields", [("0", "3"), ("30", "12", "*", "*", "sat"), ("15", "2")])
def test_a_year_of_a_crontab_in_a_time_zone_is_that_of_celery_but_in_the_nights_of_the_change(
    beat, row, fields, zone
):
    entry = row(crontab=crontab(beat, *fields, zone=zone))

    operations.import_celery_beat()

    ours = our_runs("hourly", NOON, NOON + YEAR)
    theirs = celery_runs(entry.schedule, NOON, NOON + YEAR)
    tz = entry.schedule.tz
    different = {moment.astimezone(tz).date() for moment in {*ours} ^ {*theirs}}
    assert different <= changes(tz)
    assert len(ours) == (52 if fields[1] == "12" else 365)


def changes(tz):
    """The local days on which the clocks of a zone change, and the days after them."""
    days = [NOON + timedelta(days=n) for n in range(-1, 367)]
    return {
        (day + timedelta(days=n)).astimezone(tz).date()
        for day in days
        for n in (0, 1)
        if day.astimezone(tz).utcoffset() != (day + timedelta(days=1)).astimezone(tz).utcoffset()
    }


@pytest.mark.parametrize(
    ("every", "period"), [(90, "minutes"), (7, "hours"), (3, "days"), (86_401, "seconds")]
)
def test_a_year_of_an_interval_is_that_of_celery_from_its_last_run_on(beat, row, every, period):
    last = NOON - timedelta(hours=2, minutes=5)
    interval = beat.IntervalSchedule.objects.create(every=every, period=period)
    entry = row(interval=interval, last_run_at=last)

    operations.import_celery_beat()

    theirs = celery_runs(entry.schedule, last, last + YEAR)
    assert our_runs("hourly", last, last + YEAR) == theirs
    assert len(theirs) == (YEAR - timedelta(seconds=1)) // entry.schedule.run_every


def test_an_interval_that_has_run_since_its_start_time_goes_on_from_its_last_run(beat, row):
    start, last = NOON - timedelta(days=2, minutes=7), NOON - timedelta(minutes=11)
    interval = beat.IntervalSchedule.objects.create(every=90, period="minutes")
    entry = row(interval=interval, start_time=start, last_run_at=last)
    row("not yet", interval=interval, start_time=NOON + timedelta(hours=5), last_run_at=last)

    operations.import_celery_beat()

    theirs = celery_runs(entry.schedule, last, last + YEAR)
    assert our_runs("hourly", last, last + YEAR) == theirs
    assert Schedule.objects.get(name="not yet").next_at == NOON + timedelta(hours=5)
    assert operations.import_celery_beat().unchanged == {"hourly": [], "not yet": []}


def test_everything_that_has_an_equal_is_taken_over(beat, row):
    Queue.objects.create(name="reports")
    row(
        "all of it",
        kwargs='{"b": 2}',
        queue="reports",
        priority=9,
        headers='{"tenant": "a"}',
        expire_seconds=600,
        start_time=NOON + timedelta(days=1),
        enabled=False,
        one_off=True,
        crontab=crontab(beat, "0", "3", zone="Europe/Berlin"),
    )
    row("ends", expires=NOON + timedelta(days=9))
    row("clocked", clocked=beat.ClockedSchedule.objects.create(
        clocked_time=NOON + timedelta(hours=3)), one_off=True)  # fmt: skip

    operations.import_celery_beat(by="ann", why="leaving beat")

    schedule = Schedule.objects.get(name="all of it")
    assert schedule.definition() | {"grace": None} == {
        "kind": "task",
        "target": ADD,
        "payload": {"args": [1], "kwargs": {"b": 2}},
        "queue": "reports",
        "stream": None,
        "key": None,
        "priority": -9,
        "headers": {"tenant": "a"},
        "expires_in": timedelta(minutes=10),
        "cron": "0 3 * * *",
        "interval": None,
        "at": None,
        "time_zone": "Europe/Berlin",
        "start": NOON + timedelta(days=1),
        "end": None,
        "max_runs": 1,
        "jitter": timedelta(0),
        "overlap": "allow",
        "missed": "once",
        "grace": None,
    }
    assert schedule.paused
    assert Schedule.objects.get(name="ends").end == NOON + timedelta(days=9)
    clocked = Schedule.objects.get(name="clocked")
    assert (clocked.next_at, clocked.max_runs) == (NOON + timedelta(hours=3), 1)
    assert {(entry.by, entry.why) for entry in AuditEntry.objects.all()} == {
        ("ann", "leaving beat")
    }


def test_an_import_again_changes_nothing_that_people_edited(beat, row):
    row("kept")
    row("edited")
    interval = beat.IntervalSchedule.objects.create(every=1, period="hours")
    entry = row("runs", interval=interval, last_run_at=NOON)
    operations.import_celery_beat()
    operations.set_schedule("edited", cron="0 4 * * *", queue="default")
    beat.PeriodicTask.objects.filter(pk=entry.pk).update(last_run_at=NOON + timedelta(hours=5))
    row("new")

    found = operations.import_celery_beat()

    assert found.imported == ["new"]
    assert found.unchanged == {"edited": ["queue", "cron"], "kept": [], "runs": []}
    assert Schedule.objects.get(name="edited").cron == "0 4 * * *"
    assert operations.import_celery_beat().imported == []


def test_a_dry_run_says_the_same_and_creates_nothing(row):
    row()
    row("refused", queue="nowhere")

    found = operations.import_celery_beat(dry_run=True)

    assert (found.imported, list(found.refused)) == (["hourly"], ["refused"])
    assert (Schedule.objects.count(), AuditEntry.objects.count()) == (0, 0)


def test_what_has_no_equal_is_refused_with_its_reason_and_the_others_are_imported(beat, row):
    solar = beat.SolarSchedule.objects.create(event="sunset", latitude=52, longitude=13)
    micro = beat.IntervalSchedule.objects.create(every=5, period="microseconds")
    over = beat.ClockedSchedule.objects.create(clocked_time=NOON - timedelta(hours=1))
    row("good")
    row("sun", solar=solar, crontab=None)
    row("micro", interval=micro)
    row("over", clocked=over, one_off=True)
    row("unknown", task="shop.tasks.none")
    row("queue", queue="nowhere")
    row("exchange", exchange="topics")
    row("priority", priority=200)
    row("arguments", args="[1, 2, 3, 4]")
    row("no json", args="[1")
    row("no list", args='"text"')
    row("no object", kwargs="[]1")
    row("both", crontab=crontab(beat, "0", "0", "13", "*", "fri"))
    row("cleanup", task="celery.backend_cleanup")
    row("wrong", crontab=crontab(beat, "61"))
    row("done", one_off=True, total_run_count=1)
    row("expired", expires=NOON)
    row("line\nbreak")

    found = operations.import_celery_beat()

    assert found.imported == ["good"]
    parts = {
        "sun": "solar event sunset",
        "micro": "at least one second",
        "over": "its time is over: 2026-06-01 11:00:00 UTC",
        "unknown": "neither a task nor a handler 'shop.tasks.none'",
        "queue": "nowhere",
        "exchange": "exchange",
        "priority": "priority 200",
        "arguments": "payload",
        "no json": "args: no JSON",
        "no list": "args: expected a list",
        "no object": "kwargs: no JSON",
        "both": "Celery wants both",
        "cleanup": "Celery's own",
        "wrong": "minute: Celery cannot read '61'",
        "done": "has run",
        "expired": "it has expired: 2026-06-01 12:00:00 UTC",
        "line\nbreak": "printable",
    }
    assert {name: parts[name] in reason for name, reason in found.refused.items()} == dict.fromkeys(
        parts, True
    )


def test_names_are_mapped_to_tasks_and_to_messages(row):
    row("a", task="old.add")
    row("b", task="old.mail", args="[]", kwargs=json.dumps({"to": "ann"}), queue="celery")
    row("c", task="old.mail", args="[1]", kwargs='{"to": "ann"}')

    found = operations.import_celery_beat(
        {"old.add": ADD, "old.mail": "sample.work"}, queues={"celery": "default"}
    )

    b = Schedule.objects.get(name="b")
    assert found.imported == ["a", "b"]
    assert (b.kind, b.target, b.payload, b.queue) == (
        "message",
        "sample.work",
        {"to": "ann"},
        "default",
    )
    assert "one payload" in found.refused["c"]


def test_the_numbers_of_redis_are_the_other_way_round(row):
    row(priority=3)

    operations.import_celery_beat(redis_priorities=True)

    assert Schedule.objects.get().priority == 3


@pytest.mark.parametrize("bounds", [("minute", 60, 0), ("hour", 24, 0), ("day_of_month", 31, 1),
                                    ("month_of_year", 12, 1), ("day_of_week", 7, 0)])  # fmt: skip
@pytest.mark.parametrize(
    "text", ["*", "*/2", "1", "3-5", "5-3", "1,3,5", "2-6/2", "6-1/2", "*/5,4"]
)
def test_fields_are_read_as_celery_reads_them(text, bounds):
    from celery.schedules import crontab_parser

    name, size, first = bounds
    fields = dict.fromkeys(
        ("minute", "hour", "day_of_month", "month_of_year", "day_of_week"), "*"
    ) | {name: text}

    place = ["minute", "hour", "day_of_month", "month_of_year", "day_of_week"].index(name)
    cron = as_cron(**fields).split()[place]

    found = {n % 7 if name == "day_of_week" else n for n in read_field(cron, *BOUNDS[place])}
    assert found == crontab_parser(size, first).parse(text)


def test_times_are_those_of_the_database_whatever_its_time_zone(row, clock):
    clock.set(NOON)
    row(expires=datetime(2026, 7, 1, 12, tzinfo=UTC))

    operations.import_celery_beat()

    assert Schedule.objects.get().end == datetime(2026, 7, 1, 12, tzinfo=UTC)
