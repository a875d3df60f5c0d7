"""One backend for both frameworks: each sees its own classes, exceptions and signals."""

from __future__ import annotations

import pickle

import pytest

from deadletter import testing
from deadletter.tasks import DeadletterBackend, frameworks, task
from tests.sample import tasks

pytestmark = pytest.mark.django_db

ALL = [frameworks.load(name) for name in frameworks.NAMES if frameworks.exists(name)]


def ping(name: str = "x") -> str:
    return name


@pytest.mark.parametrize("framework", ALL, ids=lambda found: found.name)
def test_each_framework_sees_its_own_classes(framework):
    backend = framework.backends["default"]

    made = backend.task_class(
        func=tasks.add.func, priority=0, backend="default", queue_name="default", run_after=None
    )

    assert isinstance(backend, framework.base_backend)
    assert isinstance(backend, DeadletterBackend)
    assert isinstance(made, framework.task)
    assert backend.framework is framework
    with pytest.raises(framework.invalid_task):
        made.using(priority=1000)
    with pytest.raises(framework.result_does_not_exist):
        backend.get_result("1")


@pytest.mark.parametrize("framework", ALL, ids=lambda found: found.name)
def test_a_task_of_each_framework_runs(framework, clock):
    from importlib import import_module

    decorated = import_module(framework.name).task(tasks.add.func)

    result = decorated.enqueue(1)
    testing.drain()
    result.refresh()

    assert isinstance(result, framework.task_result)
    assert result.return_value == 2
    assert decorated.get_result(result.id).return_value == 2


@pytest.mark.parametrize("framework", ALL, ids=lambda found: found.name)
def test_the_backend_has_all_capabilities(framework):
    backend = framework.backends["default"]

    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_tasks_and_results_can_be_pickled(clock):
    result = tasks.welcome.enqueue(1)

    again = pickle.loads(pickle.dumps(result))

    assert again == result
    assert again.task == tasks.welcome
    assert again.task.max_attempts is ...


def test_the_options_have_no_effect_under_another_backend(settings):
    name = frameworks.primary().name
    settings.TASKS = {"default": {"BACKEND": f"{name}.backends.immediate.ImmediateBackend"}}

    made = task(max_attempts=3, stream="user-{name}")(ping)
    result = made.using(stream="other").enqueue("y")

    assert result.return_value == "y"
    assert made.enqueue_many([("a",), ("b",)]) != []


def test_the_decorators_of_newer_frameworks_take_the_options():
    newer = [found for found in ALL if found.name == frameworks.BACKPORT or _is_newer()]

    for framework in newer:
        from importlib import import_module

        made = import_module(framework.name).task(max_attempts=3, timeout=5)(tasks.add.func)

        assert (made.max_attempts, made.timeout) == (3, 5)


def _is_newer() -> bool:
    import django

    return django.VERSION >= (6, 1)
