"""Declarations: of the settings and of `@schedule`; rows are made by `migrate` and then kept."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest
from django.core.checks import run_checks

from deadletter import operations, schedule, timetable
from deadletter.lifecycle.transaction import in_transaction
from deadletter.models import AuditEntry, Schedule
from deadletter.schedules import create_declared_schedules, declarations, read_declarations, rows
from deadletter.worker.registry import handler, registry
from tests.sample import tasks

from .conftest import NOON

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def only_declared_here(monkeypatch):
    monkeypatch.setattr(declarations, "_decorated", [])


@pytest.fixture
def declare(settings):
    def set(**schedules):
        settings.DEADLETTER = {**settings.DEADLETTER, "SCHEDULES": schedules}

    return set


def migrate() -> None:
    create_declared_schedules(using="default")


def found(*ids: str) -> list[str]:
    messages = run_checks(databases=["default"], include_deployment_checks=False)
    return [m.msg for m in messages if m.id.removeprefix("deadletter.") in ids]


def test_migrate_creates_what_the_settings_declare(declare):
    declare(nightly={"message": "report", "cron": "0 3 * * *", "time_zone": "Europe/Berlin"})

    migrate()

    row = Schedule.objects.get()
    assert (row.name, row.target, row.cron) == ("nightly", "report", "0 3 * * *")
    assert row.is_declared
    assert row.next_at.isoformat() == "2026-06-02T01:00:00+00:00"
    assert found("W008", "W009", "W010", "E018", "E019") == []


def test_the_row_is_the_truth_until_it_is_synchronised(declare):
    declare(nightly={"message": "report", "interval": "1h"})
    migrate()
    operations.set_schedule("nightly", interval="2h")
    migrate()
    assert Schedule.objects.get().interval == 2 * HOUR
    assert found("W010") == [
        (
            'Schedule \'nightly\' is not as declared in DEADLETTER["SCHEDULES"]["nightly"] '
            "(its row was edited): interval."
        )
    ]

    changes = operations.sync_schedules(by="ann")

    assert changes.changed == {"nightly": ["interval"]}
    assert Schedule.objects.get().interval == HOUR
    assert found("W010") == []
    entry = AuditEntry.objects.get(act="sync_schedules")
    assert (entry.by, entry.detail) == ("ann", {"changed": {"nightly": ["interval"]}})
    assert not operations.sync_schedules()
    assert AuditEntry.objects.filter(act="sync_schedules").count() == 1


def test_a_changed_declaration_is_told_from_an_edited_row(declare):
    declare(nightly={"message": "report", "interval": "1h"})
    migrate()
    declare(nightly={"message": "report", "interval": "1h", "payload": {"a": [1, 2]}})

    assert "its declaration has changed): payload" in found("W010")[0]


def test_a_schedule_that_is_gone_from_the_code_stops_and_continues_when_it_is_back(
    declare, fire_at
):
    options = {"message": "report", "interval": "1h"}
    declare(nightly=options)
    migrate()
    declare()
    migrate()

    row = Schedule.objects.get()
    assert (row.orphaned_at, row.due_at) == (NOON, None)
    assert fire_at(NOON + 2 * HOUR) == 0
    assert found("W009") == ["Schedule 'nightly' is no longer declared; it does not fire."]

    declare(nightly=options)
    migrate()
    row.refresh_from_db()
    assert (row.orphaned_at, row.next_at) == (None, NOON + 3 * HOUR)
    assert fire_at(NOON + 3 * HOUR) == 1


def test_schedules_made_by_people_are_not_orphaned(make):
    make()

    migrate()

    assert Schedule.objects.get().orphaned_at is None


def test_nothing_is_orphaned_while_a_module_cannot_be_imported(declare, monkeypatch):
    declare(nightly={"message": "report", "interval": "1h"})
    migrate()
    declare()
    monkeypatch.setattr(declarations, "_unreadable_modules", lambda: iter(["shop.handlers"]))

    migrate()

    assert Schedule.objects.get().orphaned_at is None
    assert found("W009") == []


def test_of_two_processes_that_create_a_row_at_once_one_does(declare):
    declare(nightly={"message": "report", "interval": "1h"})
    migrate()
    (declaration,) = read_declarations().valid.values()

    # The other process committed between the look and the insert.
    assert not in_transaction(lambda tx: rows._create(tx, declaration))

    assert Schedule.objects.count() == 1


def test_a_declaration_with_another_end_keeps_the_moment_that_is_overdue(declare, clock):
    declare(nightly={"message": "report", "interval": "1h"})
    migrate()
    clock.advance(HOUR * 1.5)

    declare(nightly={"message": "report", "interval": "1h", "end": NOON + 9 * HOUR})
    operations.sync_schedules()

    assert Schedule.objects.get().next_at == NOON + HOUR


def test_a_handler_and_a_task_are_declared_by_the_decorator():
    @schedule("0 3 * * *", payload={"of": "sales"})
    @handler("sample.declared")
    def declared(message):
        pass

    schedule(interval="10m", name="add", args=[1])(tasks.add)
    try:
        migrate()
    finally:
        registry.remove("sample.declared")

    found = {row.name: row for row in Schedule.objects.all()}
    assert found.keys() == {"sample.declared", "add"}
    first, second = found["sample.declared"], found["add"]
    assert (first.kind, first.target, first.payload) == (
        "message",
        "sample.declared",
        {"of": "sales"},
    )
    assert (second.kind, second.target, second.payload) == (
        "task",
        "tests.sample.tasks.add",
        {"args": [1]},
    )


def test_the_decorator_may_stand_below_handler():
    @handler("sample.declared")
    @schedule(interval=60)
    def declared(message):
        pass

    registry.remove("sample.declared")
    assert read_declarations().valid.keys() == {"sample.declared"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cron": "0 3 * * *"}, "target: This field cannot be blank."),
        ({"message": "m", "cron": "0 25 * * *"}, "cron: '0 25 * * *': Bad hour."),
        ({"message": "m", "every": 5}, "a schedule has no option 'every'"),
        ({"message": "m", "task": "a.b", "interval": 5}, "give one of message, task and target"),
        ({"message": "m", "interval": 5, "time_zone": "Berlin"}, "'Berlin' is no time zone"),
    ],
)
def test_check_reports_declarations_that_cannot_work(declare, options, problem):
    declare(nightly=options)

    (message,) = found("E018")

    assert message.startswith('DEADLETTER["SCHEDULES"]["nightly"]: ')
    assert problem in message
    with pytest.raises(ValueError, match="nightly"):
        migrate()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"message": "report", "queue": "nowhere"}, "queue: there is no queue 'nowhere'"),
        ({"task": "shop.tasks.none"}, "target: there is no task 'shop.tasks.none'"),
        ({"task": "tests.sample.tasks.add"}, "payload: "),
    ],
)
def test_check_reports_declared_schedules_whose_message_cannot_be_sent(declare, options, problem):
    declare(nightly={"interval": "1h", **options})
    assert found("W011") == []  # there is no row yet
    migrate()

    (message,) = found("W011")

    assert message.startswith(f"Schedule 'nightly' cannot fire: {problem}")
    operations.pause_schedule("nightly")
    assert found("W011") == []


def test_check_reports_what_is_decorated_but_is_no_handler():
    @schedule(interval=5)
    def plain(message):
        pass

    assert "neither a handler nor a task" in found("E018")[0]


def test_check_reports_a_name_that_is_declared_twice(declare):
    declare(add={"message": "m", "interval": 5})
    schedule(interval=5, name="add")(tasks.add)

    assert "declared twice" in found("E018")[0]


def test_check_reports_that_the_package_for_cron_expressions_is_missing(declare, make, monkeypatch):
    make()
    monkeypatch.setitem(sys.modules, "cronsim", None)
    timetable._simulator.cache_clear()
    try:
        declare(nightly={"message": "m", "cron": "0 3 * * *"})
        assert "cron expressions need the package cronsim" in found("E018")[0]
        assert "Cron expressions need the package cronsim" in found("E019")[0]
    finally:
        timetable._simulator.cache_clear()
