"""Which function handles which message name?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django.utils.module_loading import autodiscover_modules

from ..conf import NAME
from ..durations import Duration, as_timedelta

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Handler:
    """A registered function and how it wants to be run."""

    name: str
    function: Callable[..., Any]
    timeout: timedelta | None = None
    atomic: bool = False

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def where(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


class Registry:
    """Names and their handlers. A name has one handler: a second is refused, naming both."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        known = self._handlers.get(handler.name)
        if known is not None and known.where != handler.where:
            raise ValueError(
                f"message name {handler.name!r} has two handlers: {known.where} and "
                f"{handler.where}. Rename one of them."
            )
        self._handlers[handler.name] = handler

    def get(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def remove(self, name: str) -> None:
        self._handlers.pop(name, None)

    def names(self) -> list[str]:
        return sorted(self._handlers)


registry = Registry()


def handler(
    name: str,
    *,
    timeout: Duration | None = None,
    atomic: bool = False,
) -> Callable[[Function], Function]:
    """
    Register a function, plain or async, for a message name.

    `timeout` ends an attempt that takes longer; `atomic` commits the handler's database work and
    the completion of its message together.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a message name: letters, digits and _ . : / @ + -")

    def register(function: Function) -> Function:
        registry.add(
            Handler(
                name=name,
                function=function,
                timeout=None if timeout is None else as_timedelta(timeout, field="timeout"),
                atomic=atomic,
            )
        )
        return function

    return register


def discover() -> None:
    """Import the module `handlers` of every installed app."""
    autodiscover_modules("handlers")
