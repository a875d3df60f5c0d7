"""System checks of tasks."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks
from django.test import override_settings

from deadletter import checks as ours
from deadletter.models import Queue, WorkerProcess
from deadletter.operations.declared_queues import create_declared_queues
from deadletter.tasks import DeadletterBackend, frameworks, lookup

OURS = lookup.BACKEND


def backend(**params: Any) -> DeadletterBackend:
    return DeadletterBackend("default", params)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"DATABSE": "x"}, "unknown key 'DATABSE'"),
        ({"DATABASE": 3}, 'OPTIONS"]["DATABASE"]: 3 has the wrong type'),
        ({"TASK_MODULES": "shop"}, "has the wrong type"),
        ({"TASK_OPTIONS": ["x"]}, "has the wrong type"),
        ({"TASK_OPTIONS": {"a.b": 3}}, 'TASK_OPTIONS"]["a.b"]: expected a dict, got int'),
        ({"TASK_OPTIONS": {"a.b": {"strem": "x"}}}, "unknown option 'strem'"),
        (
            {"TASK_OPTIONS": {"tests.sample.tasks.add": {"stream": "{nobody}"}}},
            "names 'nobody', which is no parameter",
        ),
        ({"TASK_OPTIONS": {7: {}}}, "expected the path of a task as text"),
        ({"DATABASE": "nowhere"}, "there is no database 'nowhere'"),
        ([], "must be a dict"),
    ],
)
def test_wrong_options_are_errors(options, problem):
    (found,) = backend(OPTIONS=options).check()

    assert found.id == "deadletter.E014"
    assert problem in found.msg


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        ("mail", "expected a list of names, got 'mail'"),
        (None, "expected a list of names, got None"),
        (7, "expected a list of names, got 7"),
        (["default", "mail room"], "'mail room' is not the name of a queue"),
        (["default", 7], "7 is not the name of a queue"),
    ],
)
@pytest.mark.django_db
def test_wrong_queues_are_errors_and_migrate_creates_none_of_them(queues, problem):
    with override_settings(TASKS={"default": {"BACKEND": OURS, "QUEUES": queues}}):
        (found,) = backend(QUEUES=queues).check()
        create_declared_queues(using="default")

    assert (found.id, problem in found.msg) == ("deadletter.E014", True)
    assert list(Queue.objects.values_list("name", flat=True)) == ["default"]


def test_a_text_is_no_list_of_modules():
    entry = {"BACKEND": OURS, "OPTIONS": {"TASK_MODULES": "re"}}
    with override_settings(TASKS={"default": entry}):
        assert not {"r", "e"} & set(lookup.task_modules())


def test_right_options_are_accepted():
    options = {"DATABASE": "default", "TASK_MODULES": ["shop.jobs"]}

    assert list(backend(OPTIONS=options).check()) == []


@pytest.mark.django_db(databases=["default", "second"])  # since 6.1 Django's checks ask all of them
def test_the_framework_runs_the_checks_of_the_backend():
    with override_settings(TASKS={"default": {"BACKEND": OURS, "OPTIONS": {"X": 1}}}):
        found = [message.id for message in checks.run_checks()]

    assert "deadletter.E014" in found


def test_a_module_of_tasks_that_cannot_be_imported_is_a_warning(monkeypatch):
    monkeypatch.setattr(lookup, "task_modules", lambda: ["tests.sample.tasks", "tests.nowhere"])

    (found,) = ours.check_tasks(None)

    assert found.id == "deadletter.W004"
    assert found.msg.startswith("tests.nowhere cannot be imported: ModuleNotFoundError")


def test_a_backend_without_django_tasks_is_an_error(monkeypatch):
    monkeypatch.setattr(frameworks, "is_available", lambda: False)

    (found,) = ours.check_tasks(None)

    assert found.id == "deadletter.E015"
    assert 'pip install "django-deadletter[tasks]"' in str(found.hint)


def test_without_the_backend_nothing_is_checked(monkeypatch):
    monkeypatch.setattr(frameworks, "is_available", lambda: False)

    with override_settings(TASKS={}):
        assert ours.check_tasks(None) == []


@pytest.mark.django_db
def test_queues_that_do_not_exist_or_are_not_served_are_warnings(clock):
    Queue.objects.create(name="mail")
    Queue.objects.create(name="reports")
    tasks = {"default": {"BACKEND": OURS, "QUEUES": ["mail", "reports", "nowhere"]}}
    with override_settings(TASKS=tasks):
        without_workers = _ids()
        WorkerProcess.objects.create(
            name="w",
            host="h",
            pid=1,
            version="1",
            concurrency=1,
            queues=["mail"],
            started_at=clock.now,
            seen_at=clock.now,
        )
        with_a_worker = _ids()

    assert without_workers == [("deadletter.W005", "nowhere")]
    assert with_a_worker == [("deadletter.W005", "nowhere"), ("deadletter.W006", "reports")]


@pytest.mark.django_db
def test_before_the_first_migration_nothing_is_said(monkeypatch):
    from django.db import ProgrammingError

    def missing(self: Any) -> Any:
        raise ProgrammingError

    monkeypatch.setattr("deadletter.clock.now", missing)

    assert _ids() == []


def _ids() -> list[tuple[str, str]]:
    found = ours.check_databases(None, databases=["default"])
    return [(str(message.id), message.msg.split("'")[1]) for message in found]
