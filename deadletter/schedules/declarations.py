"""
Declarations: the schedules that the settings and `@schedule` name, and the rows made from them.

`migrate` creates the rows; from then on a row is the truth, and `operations.sync_schedules` brings
row and declaration together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, TypeVar

from django.apps import apps
from django.core.exceptions import ValidationError
from django.utils.module_loading import module_has_submodule

from ..conf import get_settings
from ..durations import Duration, as_text
from ..exceptions import MessageRejected
from ..models import Schedule, Sends
from ..payload import accept, decode
from ..tasks import calls, lookup
from ..tasks.task_class import is_task

Target = TypeVar("Target")

#: What `@schedule` decorates, and the options.
_decorated: list[tuple[Any, dict[str, Any]]] = []
#: The message names of handlers, by function; filled by `@handler`.
handler_names: dict[Callable[..., Any], list[str]] = {}

#: Options that stand for fields: what is sent.
_WHAT = ("message", "task", "args", "kwargs")


@dataclass(frozen=True)
class Declaration:
    """One schedule of the code or the settings."""

    name: str
    #: Where it was declared, for people.
    where: str
    #: The fields of the row that it gives.
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: What is wrong with it; "": nothing.
    problem: str = ""

    def row(self) -> Schedule:
        """Return an unsaved row with its values and the defaults of all other fields."""
        return Schedule(name=self.name, **self.fields)

    @property
    def digest(self) -> str:
        definition = self.row().definition()
        text = json.dumps(definition, sort_keys=True, default=_as_json)
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, row: Schedule) -> list[str]:
        """Return the fields in which a row differs."""
        wanted, found = self.row().definition(), row.definition()
        return [name for name in Schedule.DEFINITION if wanted[name] != found[name]]


@dataclass(frozen=True)
class DeclaredSchedules:
    """All declarations, valid or not."""

    every: list[Declaration]
    #: Modules that cannot be imported: what they declare is unknown.
    unreadable: list[str]

    @property
    def valid(self) -> dict[str, Declaration]:
        return {item.name: item for item in self.every if not item.problem}

    @property
    def names(self) -> set[str]:
        return {item.name for item in self.every}


def schedule(
    when: str | Duration | None = None, *, name: str | None = None, **options: Any
) -> Callable[[Target], Target]:
    """
    Declare a schedule for a handler or a task: write it above `@handler` or `@task`.

    `when` is a cron expression; or give `interval` or `at`. `name` is that of the schedule, by
    default the name of the message or the path of the task. The options are the fields of
    `deadletter.models.Schedule`, and for tasks `args` and `kwargs`.
    """
    given = dict(options)
    if when is not None:
        key = "cron" if isinstance(when, str) else "interval"
        if key in given:
            raise TypeError(f"schedule: {key} is given twice")
        given[key] = when
    if name is not None:
        given["name"] = name

    def declare(target: Target) -> Target:
        _decorated.append((target, given))
        return target

    return declare


def read_declarations(*, import_modules: bool = True) -> DeclaredSchedules:
    """Return the declarations; the modules of handlers and tasks are imported first."""
    unreadable = list(_unreadable_modules()) if import_modules else []
    found: dict[str, Declaration] = {}
    for item in (*_of_settings(), *_of_code()):
        other = found.get(item.name)
        if other is not None:
            problem = f"declared twice: {other.where} and {item.where}"
            item = Declaration(item.name, item.where, problem=problem)
        found[item.name] = item
    return DeclaredSchedules(list(found.values()), unreadable)


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the fields of a row that the options of a schedule give.

    `message` or `task` names what is sent; `args` and `kwargs` are those of a task.
    Raises: ValueError or TypeError for options that do not exist, ValidationError for values.
    """
    known = (*_WHAT, *Schedule.DEFINITION, "paused")
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"a schedule has no option {unknown[0]!r} (there are: {', '.join(known)})")
    given = dict(options)
    fields: dict[str, Any] = {}
    for option, kind in (("message", Sends.MESSAGE), ("task", Sends.TASK)):
        if (target := given.pop(option, None)) is not None:
            if "target" in fields or "target" in given:
                raise ValueError("give one of message, task and target")
            fields |= {"kind": kind.value, "target": _path(target)}
    if "args" in given or "kwargs" in given:
        if "payload" in given:
            raise ValueError("give either payload, or args and kwargs")
        args, kwargs = given.pop("args", None) or (), given.pop("kwargs", None) or {}
        fields["payload"] = calls.as_payload(args, kwargs)
    fields |= given
    for name in ("payload", "headers"):
        if fields.get(name) is not None:
            fields[name] = _as_stored(name, fields[name])
    return {name: _clean(name, value) for name, value in fields.items()}


def _path(target: Any) -> Any:
    return target.module_path if is_task(target) else target


def _as_stored(name: str, value: Any) -> Any:
    try:
        return decode(accept(value, field=name, limit=get_settings().payload_limit))
    except MessageRejected as error:
        raise ValidationError({name: [error.problem]}) from None


def _clean(name: str, value: Any) -> Any:
    """Return the value that the field stores. Raises: ValidationError."""
    found = Schedule._meta.get_field(name)
    if name in ("payload", "headers"):
        return value
    if value is None and found.null:
        return None
    try:
        return found.to_python(value)  # type: ignore[union-attr]
    except ValidationError as error:
        raise ValidationError({name: error.messages}) from None


def _of_settings() -> Iterator[Declaration]:
    for name, options in get_settings().schedules.items():
        yield _declare(name, f'DEADLETTER["SCHEDULES"]["{name}"]', options)


def _of_code() -> Iterator[Declaration]:
    for target, options in _decorated:
        given = dict(options)
        if is_task(target):
            path = target.module_path
            yield _declare(given.pop("name", path), f"@schedule of {path}", {"task": path, **given})
            continue
        where = f"@schedule of {getattr(target, '__module__', '?')}.{_qualname(target)}"
        names = handler_names.get(target, [])
        if len(names) == 1:
            name = given.pop("name", names[0])
            yield _declare(name, where, {"message": names[0], **given})
        else:
            problem = (
                f"its function has {len(names)} message names; declare it in the settings"
                if names
                else "what it decorates is neither a handler nor a task; write it above @handler "
                "or @task"
            )
            yield Declaration(given.get("name", _qualname(target)), where, problem=problem)


def _qualname(target: Any) -> str:
    return str(getattr(target, "__qualname__", type(target).__name__))


def _declare(name: Any, where: str, options: Mapping[str, Any]) -> Declaration:
    try:
        made = Declaration(str(name), where, read_options(options))
        row = made.row()
        row.clean_fields(exclude=["created_at"])
        row.clean()
    except ValidationError as error:
        return Declaration(str(name), where, problem=describe_problem(error))
    except (TypeError, ValueError) as error:
        return Declaration(str(name), where, problem=str(error))
    return made


def describe_problem(error: ValidationError) -> str:
    """Return a ValidationError as one line."""
    if not hasattr(error, "error_dict"):
        return " ".join(error.messages)
    return "; ".join(f"{name}: {' '.join(texts)}" for name, texts in error.message_dict.items())


def _unreadable_modules() -> Iterator[str]:
    """Import the modules that may declare schedules; yield those that cannot be imported."""
    modules = [
        f"{app.name}.handlers"
        for app in apps.get_app_configs()
        if app.module is not None and module_has_submodule(app.module, "handlers")
    ]
    if lookup.has_backend():
        modules += lookup.task_modules()
    for module in modules:
        try:
            import_module(module)
        except Exception:  # noqa: BLE001 - `check` reports it
            yield module


def _as_json(value: Any) -> str:
    if isinstance(value, timedelta):
        return as_text(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)
