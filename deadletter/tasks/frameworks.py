"""
The frameworks that deadletter is a backend for: `django.tasks` and its backport `django_tasks`.

Both read the setting TASKS and have the same classes under the same names, except for two
exceptions. A project may use both at once: Wagtail imports the backport on every version of Django.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured

DJANGO, BACKPORT = NAMES = "django.tasks", "django_tasks"


@dataclass(frozen=True)
class Framework:
    """The classes and functions of one framework."""

    #: The name of its package; its log has the same name.
    name: str
    task: Any
    task_result: Any
    task_error: Any
    task_context: Any
    status: Any
    base_backend: Any
    invalid_task: Any
    result_does_not_exist: Any
    #: Returns a value as JSON types. Raises: TypeError.
    normalize: Any
    #: Its backends, by alias.
    backends: Any

    @cached_property
    def signals(self) -> Any:
        return import_module(f"{self.name}.signals")


@cache
def primary() -> Framework:
    """
    Return Django's own framework, or the backport where Django has none.

    Raises: ImproperlyConfigured if there is neither.
    """
    for name in NAMES:
        if exists(name):
            return load(name)
    raise ImproperlyConfigured(
        "deadletter.tasks needs Django 6.0 or newer, or the package django-tasks: "
        "pip install django-deadletter[tasks]"
    )


def is_available() -> bool:
    """Return whether there is a framework, without importing it."""
    return exists(DJANGO) or exists(BACKPORT)


def loaded() -> list[Framework]:
    """Return the frameworks that this process has imported."""
    return [load(name) for name in NAMES if name in sys.modules]


def serving(backend: Any) -> Framework:
    """Return the framework that has made this backend."""
    for framework in loaded():
        if any(found is backend for found in framework.backends.all(initialized_only=True)):
            return framework
    return primary()


@cache
def load(name: str) -> Framework:
    package, base = import_module(name), import_module(f"{name}.base")
    exceptions = import_module(f"{name}.exceptions")
    tools = import_module("django.utils.json" if name == DJANGO else f"{name}.utils")
    return Framework(
        name=name,
        task=base.Task,
        task_result=base.TaskResult,
        task_error=base.TaskError,
        task_context=base.TaskContext,
        status=base.TaskResultStatus,
        base_backend=import_module(f"{name}.backends.base").BaseTaskBackend,
        # The backport calls it InvalidTaskError up to 0.12.
        invalid_task=getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError,
        result_does_not_exist=exceptions.TaskResultDoesNotExist,
        normalize=tools.normalize_json,
        backends=package.task_backends,
    )


def exists(name: str) -> bool:
    """Return whether a framework is installed, without importing it."""
    if name in sys.modules:
        return True
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
