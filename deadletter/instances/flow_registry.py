"""Flows: the registered functions that drive instances, by name and version."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ..conf import NAME
from ..durations import Duration, as_timedelta
from ..exceptions import TwoHandlers

if TYPE_CHECKING:
    from ..instance_events import Event
    from .run import Run

    Function = Callable[[Run, Event], object]

Registered = TypeVar("Registered", bound=Callable[..., Any])

#: The form of a version: "1", "1.2.0", "2026-11-16", "2.0.0-beta.1".
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One version of an orchestration."""

    name: str
    version: str
    function: Function
    #: How long a turn may take; None: the timeout that the settings give every handler.
    timeout: timedelta | None = None

    @property
    def where(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


class Flows:
    """A registry of flows by name and version."""

    def __init__(self) -> None:
        self._flows: dict[str, dict[str, Flow]] = {}

    def add(self, flow: Flow) -> None:
        versions = self._flows.setdefault(flow.name, {})
        known = versions.get(flow.version)
        if known is not None and known.where != flow.where:
            raise TwoHandlers(
                f"orchestration {flow.name!r} {flow.version} has two functions: {known.where} and "
                f"{flow.where}. Give one of them another version."
            )
        versions[flow.version] = flow

    def versions(self, name: str) -> Mapping[str, Flow]:
        return self._flows.get(name, {})

    def names(self) -> list[str]:
        return sorted(self._flows)

    def remove(self, name: str) -> None:
        self._flows.pop(name, None)


def highest(versions: Mapping[str, Flow]) -> str | None:
    """Return the latest version: 1.10 comes after 1.9, and 2.0.0-beta before 2.0.0."""
    return max(versions, key=_order, default=None)


def _order(version: str) -> tuple[Any, ...]:
    release, _, extra = version.partition("-")
    parts = [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in _split(release)]
    more = [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in _split(extra)]
    return parts, not extra or release.isalpha(), more


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[.+_-]", text) if part]


flows = Flows()


def orchestration(
    name: str, *, version: str = "1.0.0", timeout: Duration | None = None
) -> Callable[[Registered], Registered]:
    """
    Register `def flow(run, event)` as one version of an orchestration.

    It is called once for each event of an instance, in order, and decides by calling `run`. It must
    not wait: work that takes time is an activity. What it writes to the database commits with its
    decisions.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name an orchestration: letters, digits and _ . : / @ + -"
        )
    if not VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is no version: letters, digits and . + _ -")

    def register(function: Registered) -> Registered:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise ValueError(
                f"orchestration {name}: needs a plain function that decides and returns; what "
                "waits is an activity"
            )
        limit = None if timeout is None else as_timedelta(timeout, field="timeout")
        flows.add(Flow(name=name, version=version, function=function, timeout=limit))
        return function

    return register
