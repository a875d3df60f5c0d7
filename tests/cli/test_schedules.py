"""manage.py deadletter schedules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from deadletter import operations
from deadletter.models import AuditEntry, Message, Schedule, ScheduleRun

#: A Monday.
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def make(db, clock):
    clock.set(NOON)

    def create(name="nightly", **options):
        given = {"message": "report", "time_zone": "Europe/Berlin", **options}
        if not {"interval", "at"} & given.keys():
            given.setdefault("cron", "0 3 * * *")
        return operations.create_schedule(name, **given)

    return create


def test_schedules_are_listed_with_their_next_run_in_their_own_time_zone(cli, make, clock):
    make()
    make("often", interval="10m", paused=True)
    make("broken")
    Schedule.objects.filter(name="broken").update(failing_since=NOON, last_error="no queue\x1b[2J")

    result = cli("schedules")

    lines = {line.split()[0]: line for line in result.lines}
    assert result.code == 0
    assert lines["nightly"].split()[1:8] == ["active", "0", "3", "*", "*", "*", "Europe/Berlin"]
    assert "2026-06-02 03:00:00 CEST, in 13 h" in lines["nightly"]
    assert lines["often"].split()[1:4] == ["paused", "every", "10m"]
    assert lines["broken"].split()[1] == "failing"
    assert lines["broken"].endswith(r"no queue\x1b[2J")
    found = cli("schedules", "list", "--format", "json").json
    assert [item["name"] for item in found] == ["broken", "nightly", "often"]
    assert (found[1]["cron"], found[1]["next_at"]) == ("0 3 * * *", "2026-06-02T01:00:00+00:00")
    assert (found[2]["interval"], found[2]["state"]) == (600.0, "paused")


def test_a_list_is_limited_and_an_empty_one_is_no_success(cli, db, make):
    assert (cli("schedules").code, cli("schedules", "next").code) == (1, 1)
    make("a")
    make("b")

    result = cli("schedules", "--limit", "1")

    assert len(result.lines) == 2
    assert "there are more than 1" in result.err


def test_next_shows_the_runs_of_one_schedule_or_the_first_of_all(cli, make):
    make()
    make("often", interval="1h")

    one = cli("schedules", "next", "nightly", "--limit", "3", "--format", "json")
    every = cli("schedules", "next")

    assert [item["moment"] for item in one.json] == [
        f"2026-06-0{day}T01:00:00+00:00" for day in (2, 3, 4)
    ]
    assert [line.split()[-1] for line in every.lines[1:]] == ["often", "nightly"]


def test_next_says_of_a_paused_schedule_that_it_does_not_run(cli, make):
    make(paused=True)

    result = cli("schedules", "next", "nightly")

    assert result.code == 1
    assert "nightly is paused: it does not run" in result.err


def test_an_unknown_schedule_is_wrong_use_and_the_right_name_is_proposed(cli, make):
    make()

    result = cli("schedules", "pause", "nightli")

    assert result.code == 2
    assert "did you mean 'nightly'?" in result.err
    assert not Schedule.objects.get().paused


def test_a_schedule_that_no_worker_fires_is_late(cli, make, clock):
    make()
    clock.advance(13 * 3600 + 120)
    assert cli("schedules", "--format", "json").json[0]["state"] == "active"
    clock.advance(1)

    assert cli("schedules", "--format", "json").json[0]["state"] == "late"


@pytest.mark.parametrize(
    "words",
    [
        ("run", "nightly", "often", "--by", "ann", "--dry-run"),
        ("run", "--by", "ann", "nightly", "--dry-run", "often"),
        ("--by", "ann", "--dry-run", "run", "nightly", "often"),
    ],
)
def test_options_may_stand_between_action_and_names(cli, make, words):
    make()
    make("often")

    result = cli("schedules", *words)

    assert result.out == "nightly: would be sent\noften: would be sent\n"


@pytest.mark.parametrize("action", ["run", "pause", "resume"])
def test_acts_need_a_name_and_lists_take_none(cli, db, action):
    assert cli("schedules", action).code == 2
    assert cli("schedules", "list", "x").code == 2
    assert cli("schedules", "sync", "x").code == 2


def test_run_sends_now_and_is_audited(cli, make):
    make()

    result = cli("schedules", "run", "nightly", "--by", "ann", "--why", "asked for")

    message = Message.objects.get()
    assert (result.code, result.out) == (0, f"nightly: sent: message {message.pk}\n")
    entry = AuditEntry.objects.get(act="run_schedule")
    assert (entry.by, entry.why) == ("ann", "asked for")
    assert ScheduleRun.objects.get().is_manual


def test_a_run_that_cannot_be_sent_is_a_failure_and_the_others_are_run(cli, make):
    make("a")
    make("b")
    Schedule.objects.filter(name="a").update(queue="gone")

    result = cli("schedules", "run", "a", "b", "--format", "json")

    assert result.code == 1
    assert [run["outcome"] for run in result.json["runs"]] == ["failed", "sent"]
    assert "gone" in result.json["runs"][0]["why"]


@pytest.mark.parametrize("action", ["run", "pause"])
def test_a_dry_run_changes_nothing(cli, make, action):
    make()

    result = cli("schedules", action, "nightly", "--dry-run")

    assert (result.code, Message.objects.count(), Schedule.objects.get().paused) == (0, 0, False)
    assert "would be" in result.out
    assert not AuditEntry.objects.exclude(act="edit_schedule").exists()


def test_pause_and_resume_say_what_changed(cli, make):
    make()

    assert cli("schedules", "pause", "nightly").out == "nightly: paused\n"
    assert cli("schedules", "pause", "nightly").out == "nightly: paused already\n"
    assert Schedule.objects.get().next_at is None
    resumed = cli("schedules", "resume", "nightly", "--by", "ann")
    assert resumed.out == "nightly: resumed, next 2026-06-02 03:00:00 CEST\n"
    assert AuditEntry.objects.get(act="resume_schedule").by == "ann"


def test_a_schedule_whose_zone_became_unknown_is_listed_but_not_resumed(cli, make):
    make(paused=True)
    Schedule.objects.update(time_zone="Atlantis/Capital")

    assert cli("schedules").code == 0
    result = cli("schedules", "resume", "nightly")

    assert result.code == 1
    assert "time_zone: 'Atlantis/Capital' is no time zone" in result.err
    assert Schedule.objects.get().paused


@pytest.fixture
def declared(settings, make):
    settings.DEADLETTER = {
        **settings.DEADLETTER,
        "SCHEDULES": {"nightly": {"message": "report", "cron": "0 3 * * *", "time_zone": "UTC"}},
    }
    operations.sync_schedules()


def test_sync_overwrites_edits_only_after_a_yes(cli, declared):
    operations.set_schedule("nightly", cron="0 4 * * *")

    preview = cli("schedules", "sync", "--dry-run")
    refused = cli("schedules", "sync")

    assert preview.out == "nightly: cron differ: it was edited\n"
    assert (preview.code, refused.code) == (0, 2)
    assert Schedule.objects.get().cron == "0 4 * * *"
    done = cli("schedules", "sync", "--yes", "--by", "ann")
    assert (done.code, done.out) == (0, "changed nightly\n")
    assert Schedule.objects.get().cron == "0 3 * * *"
    assert cli("schedules", "sync").out == "nothing was to be done\n"


def test_sync_creates_what_is_missing_without_a_question(cli, declared):
    Schedule.objects.all().delete()

    found = cli("schedules", "sync", "--format", "json")

    assert (found.code, found.json["created"]) == (0, ["nightly"])


def test_an_import_without_tables_or_with_a_bad_mapping_is_wrong_use(cli, db):
    without = cli("schedules", "import-celery-beat")
    wrong = cli("schedules", "import-celery-beat", "--map", "nonsense")
    nowhere = cli("schedules", "import-celery-beat", "--source", "mars")

    assert (without.code, wrong.code, nowhere.code) == (2, 2, 2)
    assert "has no table django_celery_beat_periodictask" in without.err
    assert "expected CELERY=OURS" in wrong.err
    assert "no database 'mars'" in nowhere.err


@pytest.fixture
def beat(make):
    pytest.importorskip("django_celery_beat", reason="a development requirement up to Python 3.12")
    from tests.schedules.beat_tables import beat_models

    yield from beat_models()


@pytest.fixture
def periodic(beat):
    hourly = beat.CrontabSchedule.objects.create(minute="0", timezone="UTC")

    def create(name, **options):
        return beat.PeriodicTask.objects.create(name=name, crontab=hourly, **options)

    return create


def test_an_import_asks_creates_and_names_what_it_refused(cli, periodic):
    periodic(name="good", task="old.work")
    periodic(name="bad\x1b[2J", task="old.gone")
    mapping = ("--map", "old.work=sample.work")

    preview = cli("schedules", "import-celery-beat", *mapping, "--dry-run")
    unasked = cli("schedules", "import-celery-beat", *mapping)

    assert (preview.code, unasked.code, Schedule.objects.count()) == (1, 2, 0)
    assert preview.lines[0] == "good: would be imported"
    assert preview.lines[1].startswith(
        r"bad\x1b[2J: refused: there is neither a task nor a handler"
    )
    done = cli("schedules", "import-celery-beat", *mapping, "--yes", "--by", "ann", "--progress")
    assert (done.code, done.lines[0]) == (1, "good: imported")
    assert "2 of 2" in done.err
    assert (Schedule.objects.get().target, AuditEntry.objects.get().by) == ("sample.work", "ann")
    again = cli("schedules", "import-celery-beat", *mapping, "--format", "json").json
    assert (again["imported"], again["unchanged"]) == ([], {"good": []})
