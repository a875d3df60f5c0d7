"""Events of an instance: the values that its flow is called with, and their JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from .error_details import ErrorDetails
from .exceptions import Undecodable
from .text import short_repr


@dataclass(frozen=True, kw_only=True)
class Started:
    """The first event of every execution."""

    input: Any = None


@dataclass(frozen=True, kw_only=True)
class ActivityCompleted:
    activity_id: int
    name: str
    result: Any = None


@dataclass(frozen=True, kw_only=True)
class ActivityFailed:
    """An activity failed for good. If the flow ignores it, the instance fails with this error."""

    activity_id: int
    name: str
    error: ErrorDetails


@dataclass(frozen=True, kw_only=True)
class ChildCompleted:
    activity_id: int
    name: str
    instance: str
    output: Any = None


@dataclass(frozen=True, kw_only=True)
class ChildFailed:
    """A child failed. If the flow ignores it, the parent fails with the error of the child."""

    activity_id: int
    name: str
    instance: str
    error: ErrorDetails


@dataclass(frozen=True, kw_only=True)
class TimerFired:
    activity_id: int


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An event from outside: `raise_event(instance, name, data)`."""

    name: str
    data: Any = None


Event = (
    Started
    | ActivityCompleted
    | ActivityFailed
    | ChildCompleted
    | ChildFailed
    | TimerFired
    | Raised
)

#: Names in payloads and in the log of an instance.
KINDS: dict[str, type[Event]] = {
    "started": Started,
    "activity_completed": ActivityCompleted,
    "activity_failed": ActivityFailed,
    "child_completed": ChildCompleted,
    "child_failed": ChildFailed,
    "timer_fired": TimerFired,
    "raised": Raised,
}
_NAMES = {kind: name for name, kind in KINDS.items()}
_TYPES = {"activity_id": int, "name": str, "instance": str}


def kind_of(event: Event) -> str:
    return _NAMES[type(event)]


def as_payload(event: Event) -> dict[str, Any]:
    """Return an event as the payload of an orchestration message."""
    found = {item.name: getattr(event, item.name) for item in fields(event)}
    if isinstance(error := found.get("error"), ErrorDetails):
        found["error"] = error.as_dict()
    return {"event": kind_of(event), **found}


def read_event(payload: Any) -> Event:
    """Read a payload. Raises Undecodable if it is no event; that message alone becomes poison."""
    name = payload.get("event") if isinstance(payload, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise Undecodable(f"the payload is no event of an instance: {short_repr(payload)}")
    try:
        values = {item.name: payload[item.name] for item in fields(kind)}
        for field, wanted in _TYPES.items():
            if field in values and type(values[field]) is not wanted:
                raise ValueError(f"{field} is {short_repr(values[field])}")
        if "error" in values:
            values["error"] = ErrorDetails.from_dict(values["error"])
        return kind(**values)
    except (KeyError, ValueError, TypeError) as error:
        raise Undecodable(f"a damaged event {name}: {error}") from None
