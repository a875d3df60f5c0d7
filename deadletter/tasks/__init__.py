"""
Django Tasks: deadletter as a backend of `django.tasks` and of its backport `django_tasks`.

Reading order: frameworks (the two packages), task_class (tasks and their options), calls (arguments
as payloads), backend (enqueue), lookup (from a path to a task), execution (in a worker),
task_results (results, from the rows that result_rows finds). Nothing here imports a model before
apps are loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import DeadletterBackend
    from .calls import Call
    from .task_class import aenqueue_many, enqueue_many, task

__all__ = ["Call", "DeadletterBackend", "aenqueue_many", "enqueue_many", "task"]

#: Imported on first use: a worker without a framework imports this package, too.
_LATE = {
    "Call": "calls",
    "DeadletterBackend": "backend",
    "aenqueue_many": "task_class",
    "enqueue_many": "task_class",
    "task": "task_class",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)
