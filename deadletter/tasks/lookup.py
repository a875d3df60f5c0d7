"""Find tasks by their paths, which come from rows: what a path can import is limited."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeGuard

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string, module_has_submodule

from ..conf import NAME
from ..descriptions import describe
from ..exceptions import PayloadMismatch, PayloadRejected
from ..logs import event
from . import calls, frameworks
from .task_class import is_ours, is_task, restore

BACKEND = "deadletter.tasks.DeadletterBackend"

#: Tasks that were found, by path.
_found: dict[str, Any] = {}
#: Modules whose import error was logged; so many at most.
_logged: set[str] = set()
_LOGGED_LIMIT = 1_000
#: What importing a module may raise. A script that ends with sys.exit must not end a worker.
_IMPORT_ERRORS = (Exception, SystemExit)


def find(path: str) -> Any | None:
    """
    Return the task at a path, or None.

    A module is imported only if it lies in the package of an installed app or in
    OPTIONS["TASK_MODULES"] of a backend; a module that is imported already may be anywhere. Only a
    task is returned: nothing else in a row's name is ever imported or called.
    """
    if path in _found:
        return _found[path]
    if not frameworks.is_available() or not _is_plain(path) or not _may_hold_tasks(path):
        return None
    try:
        task = _resolve(path)
    except _IMPORT_ERRORS as error:
        _log(path.rpartition(".")[0], error)
        return None
    # Only what was found is remembered: there is no end of other paths, and a module that another
    # thread is importing may have its task a moment later.
    return None if task is None else _found.setdefault(path, task)


def check_payload(path: str, payload: Any) -> None:
    """
    Refuse a payload that the task at a path cannot be called with. Raises: PayloadMismatch.

    Of a task that this process cannot find, only the shape of the payload is checked.
    """
    task = find(path)
    try:
        if task is None:
            calls.read_payload(payload)
        else:
            calls.check_arguments(task.func, payload, takes_context=task.takes_context)
    except PayloadRejected as error:
        raise PayloadMismatch(error.field, error.problem) from None


def describe_task(path: str) -> str:
    """Return the parameters of the task at a path, or "" if this process cannot find it."""
    task = find(path)
    if task is None:
        return ""
    return calls.describe_parameters(task.func, takes_context=task.takes_context)


def known_paths() -> list[str]:
    """Return the paths of the tasks that this process has found."""
    return sorted(_found)


def discover() -> None:
    """
    Import the module `tasks` of every installed app, and TASK_MODULES, if tasks come to deadletter.

    A module that cannot be imported is logged: it may be the tasks of another system.
    """
    if not has_backend():
        return
    frameworks.primary()
    for module in task_modules():
        try:
            found = import_module(module)
        except _IMPORT_ERRORS as error:
            _log(module, error)
            continue
        for value in list(vars(found).values()):
            # Also tasks of other packages that the module of an installed app imports by name.
            if is_task(value):
                _found.setdefault(value.module_path, value)


def task_modules() -> Iterator[str]:
    """Yield the modules in which tasks are looked for when a worker starts."""
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, "tasks"):
            yield f"{app.name}.tasks"
    yield from sorted(_extra_modules())


def has_backend() -> bool:
    """Return whether deadletter is a backend of the setting TASKS."""
    return bool(backend_settings())


def backend_settings() -> dict[str, Any]:
    """Return the entries of the setting TASKS that name deadletter's backend, by alias."""
    entries = getattr(settings, "TASKS", None)
    if not isinstance(entries, dict):
        return {}
    return {alias: entry for alias, entry in entries.items() if _is_ours(entry)}


def with_settings(task: Any) -> Any:
    """
    Return a task with the options that OPTIONS["TASK_OPTIONS"] of its backend gives to its path.

    For tasks of applications, whose code a project does not change.
    """
    entry = backend_settings().get(task.backend)
    options = entry.get("OPTIONS") if entry is not None else None
    by_path = options.get("TASK_OPTIONS") if isinstance(options, dict) else None
    given = by_path.get(task.module_path) if isinstance(by_path, dict) else None
    return restore(task, **given) if given and is_ours(task) else task


def task_queues(using: str) -> list[str]:
    """Return the queues that deadletter's backends name in one database."""
    from ..models import primary_alias

    found: set[str] = set()
    for entry in backend_settings().values():
        options = entry.get("OPTIONS")
        database = options.get("DATABASE") if isinstance(options, dict) else None
        if (database or primary_alias()) == using:
            found.update(queue_names(entry))
    return sorted(found)


def queue_names(entry: Mapping[str, Any]) -> list[str]:
    """Return the queues that an entry of TASKS names, without what is no name of a queue."""
    given = entry.get("QUEUES", ["default"])
    return [name for name in given if is_queue_name(name)] if is_collection(given) else []


def is_collection(value: Any) -> TypeGuard[Collection[Any]]:
    """Return whether a setting can hold names; a text would be taken for its letters."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def is_queue_name(value: Any) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _is_ours(entry: Any) -> bool:
    path = entry.get("BACKEND") if isinstance(entry, dict) else None
    return isinstance(path, str) and (path == BACKEND or _is_subclass(path))


@cache
def _is_subclass(path: str) -> bool:
    """Return whether a path leads to deadletter's backend or to a subclass of it."""
    if path.startswith(("django.tasks.", "django_tasks.")):
        return False
    from .backend import DeadletterBackend

    try:
        found = import_string(path)
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, DeadletterBackend)


def _extra_modules() -> set[str]:
    found: set[str] = set()
    for entry in backend_settings().values():
        options = entry.get("OPTIONS")
        modules = options.get("TASK_MODULES") if isinstance(options, dict) else None
        if not is_collection(modules):
            continue
        found.update(name for name in modules if isinstance(name, str))
    return found


def _is_allowed(path: str) -> bool:
    packages = {app.name for app in apps.get_app_configs()} | _extra_modules()
    return any(path.startswith(f"{package}.") for package in packages)


def _is_plain(path: str) -> bool:
    """Return whether a path consists of names; `__main__`, for example, is none of a task."""
    parts = path.split(".")
    return all(part.isidentifier() and not part.startswith("__") for part in parts)


def _may_hold_tasks(path: str) -> bool:
    return _is_allowed(path) or path.rpartition(".")[0] in sys.modules


def _resolve(path: str) -> Any | None:
    """Return the task at a path: its module is the longest part that is one."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        if module not in sys.modules and not (_is_allowed(f"{module}.") and _is_module(module)):
            continue
        value: Any = import_module(module)
        for name in parts[length:]:
            value = _member(value, name)
        return value if is_task(value) and value.module_path == path else None
    return None


def _member(value: Any, name: str) -> Any | None:
    """Return what a module or a class defines, without running code, as `getattr` might."""
    if not isinstance(value, ModuleType) and not issubclass(type(value), type):
        return None
    return vars(value).get(name)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module without submodules
        return False


def _log(module: str, error: BaseException) -> None:
    if module in _logged or len(_logged) >= _LOGGED_LIMIT:
        return
    _logged.add(module)
    event(
        logging.WARNING,
        "tasks_unreadable",
        "module {module} cannot be imported, so its tasks cannot run here: {error}",
        module=module,
        error=describe(error).text,
    )


def _forget(*, setting: str, **kwargs: Any) -> None:
    """Forget what was found when a test changes the settings."""
    if setting in ("TASKS", "INSTALLED_APPS"):
        _found.clear()


setting_changed.connect(_forget)
