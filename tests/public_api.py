"""The public names as text: one line for each name, parameter and attribute."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from django.db.models import Model
from django.dispatch import Signal

#: Packages whose `__all__` is public.
PACKAGES = (
    "deadletter",
    "deadletter.alerts",
    "deadletter.instances",
    "deadletter.lifecycle",
    "deadletter.models",
    "deadletter.operations",
    "deadletter.testing",
)
#: Modules without `__all__` whose names of these kinds are public.
MODULES = {"deadletter.exceptions": Exception, "deadletter.signals": Signal}


def public_lines() -> Iterator[str]:
    """Yield `name`, `name(parameter)` and `name.attribute`, for everything public."""
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            yield from _lines(f"{package}.{name}", getattr(module, name))
    for path, kind in MODULES.items():
        for name, value in vars(import_module(path)).items():
            is_kind = isinstance(value, type) and issubclass(value, kind)
            if isinstance(value, kind) or (is_kind and value.__module__ == path):
                yield f"{path}.{name}"


def _lines(path: str, value: Any) -> Iterator[str]:
    yield path
    if isinstance(value, type):
        yield from _attributes(path, value)
    # The parameters of a model are its fields, those of an enumeration are Python's.
    is_plain = not isinstance(value, type) or not issubclass(value, Model | enum.Enum)
    if callable(value) and is_plain:
        yield from _parameters(path, value)


def _attributes(path: str, kind: type) -> Iterator[str]:
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("deadletter"):
            names |= set(vars(base)) | set(vars(base).get("__annotations__", ()))
    yield from (f"{path}.{name}" for name in names if not name.startswith("_"))


def _parameters(path: str, function: Any) -> Iterator[str]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    for parameter in signature.parameters.values():
        if parameter.name.startswith("_"):
            continue
        star = {parameter.KEYWORD_ONLY: "*, ", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else "=…"
        yield f"{path}({star}{parameter.name}{default})"
