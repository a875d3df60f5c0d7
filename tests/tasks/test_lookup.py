"""Find tasks by path: only tasks, and only in installed apps or where the settings say."""

from __future__ import annotations

import sys

import pytest
from django.test import override_settings

from deadletter import payload_types, testing
from deadletter.exceptions import PayloadMismatch
from deadletter.models import Kind, Message
from deadletter.tasks import lookup
from deadletter.worker.registry import Registry
from tests.sample import tasks

OURS = "deadletter.tasks.DeadletterBackend"


def test_a_task_is_found_by_its_path():
    assert lookup.find("tests.sample.tasks.add") is tasks.add


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "builtins.print",
        "subprocess.run",
        "tests.sample.tasks.not_a_task",
        "tests.sample.tasks.add.func",
        "tests.sample.tasks.add.enqueue",
        "tests.sample.tasks.sys",
        "tests.sample.tasks",
        "tests.sample.nowhere.add",
        "tests.sample.tasks.__class__",
        "tests.samples.tasks.add",
        "tests.sample..tasks.add",
        ".tests.sample.tasks.add",
        "add",
        "",
    ],
)
def test_nothing_else_is_found(path):
    assert lookup.find(path) is None


def test_a_module_outside_the_installed_apps_is_not_even_imported():
    sys.modules.pop("tests.more_tasks", None)

    assert lookup.find("tests.more_tasks.outside") is None
    assert "tests.more_tasks" not in sys.modules


def test_a_task_of_a_module_that_is_imported_already_is_found(monkeypatch):
    from tests import more_tasks

    monkeypatch.setitem(sys.modules, "tests.more_tasks", more_tasks)
    monkeypatch.setattr(lookup, "_found", {})

    assert lookup.find("tests.more_tasks.outside") is more_tasks.outside


def test_a_task_that_an_app_imports_by_name_is_known(monkeypatch):
    from tests import more_tasks

    monkeypatch.delitem(sys.modules, "tests.more_tasks")
    monkeypatch.setattr(tasks, "outside", more_tasks.outside, raising=False)
    monkeypatch.setattr(lookup, "_found", {})

    lookup.discover()

    assert lookup.find("tests.more_tasks.outside") is more_tasks.outside


def test_the_settings_may_name_more_modules():
    with override_settings(
        TASKS={
            "default": {
                "BACKEND": OURS,
                "QUEUES": [],
                "OPTIONS": {"TASK_MODULES": ["tests.more_tasks"]},
            }
        }
    ):
        found = lookup.find("tests.more_tasks.outside")
        lookup.discover()

        assert found is not None
        assert found.module_path == "tests.more_tasks.outside"
        assert "tests.more_tasks.outside" in lookup.known_paths()


@pytest.mark.django_db
def test_a_message_that_names_no_task_waits(clock, counts):
    tasks.add.enqueue(1)
    Message.objects.update(name="os.system", payload={"args": ["true"]})

    tally = testing.drain()

    assert (tally.deferred, tally.completed) == (1, 0)
    assert counts() == {"scheduled": 1}


def test_a_worker_knows_the_tasks_of_installed_apps():
    handlers = Registry()
    lookup.discover()
    handlers.add_tasks()

    assert ["task", "tests.sample.tasks.add"] in handlers.known()
    assert handlers.knows("task", "tests.sample.tasks.add", None)
    assert not handlers.knows("message", "tests.sample.tasks.add", None)
    assert not handlers.knows("task", "os.system", None)


def test_a_module_that_cannot_be_imported_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(lookup, "task_modules", lambda: ["tests.sample.nowhere"])
    monkeypatch.setattr(lookup, "_logged", set())

    lookup.discover()
    lookup.discover()

    (line,) = [record.message for record in caplog.records]
    assert line == (
        "module tests.sample.nowhere cannot be imported, so its tasks cannot run here: "
        "ModuleNotFoundError: No module named 'tests.sample.nowhere'"
    )


def test_without_a_backend_nothing_is_imported(monkeypatch):
    monkeypatch.setattr(lookup, "task_modules", lambda: pytest.fail("looked for modules"))

    with override_settings(TASKS={}):
        lookup.discover()


@pytest.mark.django_db
def test_the_policy_of_a_task_counts_before_its_module_is_imported(clock, policy):
    policy(max_attempts=1)
    result = tasks.patient.enqueue()
    testing.drain()
    clock.advance(3600)
    fresh = Registry()

    tally = testing.drain(handlers=fresh)

    result.refresh()
    assert (tally.failed, tally.poisoned) == (1, 0)
    assert result.attempts == 2


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ([7], 'payload: expected the arguments of a task: {"args": [...], "kwargs": {...}}'),
        ({"user_id": 7}, 'payload: expected the arguments of a task: {"args": [...], "kwargs":'),
        ({"args": {"user_id": 7}}, "payload.args: expected a list, got dict"),
        ({"kwargs": [7]}, "payload.kwargs: expected an object, got list"),
        ({}, "payload: welcome: missing a required argument: 'user_id'"),
        ({"args": [7], "kwargs": {"name": 1}}, "payload: welcome: got an unexpected keyword"),
        ({"args": [7, 8]}, "payload: welcome: too many positional arguments"),
        ({"args": [7], "kwargs": {"user_id": 7}}, "payload: welcome: multiple values for argument"),
    ],
)
def test_a_payload_that_a_task_cannot_be_called_with_is_refused(payload, problem):
    with pytest.raises(PayloadMismatch) as raised:
        payload_types.check(Kind.TASK, "tests.sample.tasks.welcome", payload)

    assert str(raised.value).startswith(problem)


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("tests.sample.tasks.welcome", {"args": [7]}),
        ("tests.sample.tasks.welcome", {"kwargs": {"user_id": 7}}),
        # The first parameter is the context, which the worker gives.
        ("tests.sample.tasks.look", {}),
        ("tests.sample.tasks.gone", {"args": [1, 2, 3]}),
    ],
)
def test_a_payload_that_a_task_can_be_called_with_is_accepted(path, payload):
    payload_types.check(Kind.TASK, path, payload)


def test_of_a_task_that_is_gone_the_shape_of_the_payload_is_checked():
    with pytest.raises(PayloadMismatch, match="expected the arguments of a task"):
        payload_types.check(Kind.TASK, "tests.sample.tasks.gone", [7])


def test_the_parameters_of_a_task_can_be_read():
    assert lookup.describe_task("tests.sample.tasks.add") == "add(a, b=1)"
    assert lookup.describe_task("tests.sample.tasks.look") == "look()"
    assert lookup.describe_task("tests.sample.tasks.gone") == ""
