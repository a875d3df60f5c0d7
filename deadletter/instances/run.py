"""A run: what a flow sees of its instance during a turn, and the decisions that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

from .. import payload_types
from ..conf import get_settings
from ..durations import Duration, as_timedelta
from ..error_details import ErrorDetails
from ..exceptions import DeadletterError
from ..lifecycle import checked_priority
from ..models import Instance
from ..models.instance import LONGEST_ID
from ..payload import accept, as_stored
from . import names

_AT_ONCE = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class CallActivity:
    activity_id: int
    name: str
    payload: str
    queue: str | None
    delay: timedelta
    priority: int
    headers: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class StartChild:
    activity_id: int
    name: str
    instance: str
    input: Any
    version: str | None
    queue: str | None


@dataclass(frozen=True, kw_only=True)
class SetTimer:
    activity_id: int
    delay: timedelta


@dataclass(frozen=True, kw_only=True)
class Complete:
    output: Any


@dataclass(frozen=True, kw_only=True)
class Fail:
    error: ErrorDetails


@dataclass(frozen=True, kw_only=True)
class Continue:
    input: Any
    version: str | None


Decision = CallActivity | StartChild | SetTimer
Ending = Complete | Fail | Continue


class TurnEnded(DeadletterError):
    """A flow went on deciding after it had ended its instance."""


class Run:
    """
    One turn of an instance.

    `state` belongs to the flow: any JSON, kept from turn to turn, {} at first. Decisions are stored
    at the end of the turn, together with the completion of its event; if the flow raises, none is.
    """

    def __init__(self, instance: Instance, *, version: str) -> None:
        self.instance = instance.id
        self.name = instance.name
        self.version = version
        self.execution_id = instance.execution_id
        self.input: Any = instance.input
        self.state: Any = {} if instance.state is None else instance.state
        #: Activities, children and timers it waits for: {activity id: {"kind": …, "name": …}}.
        self.pending: Mapping[int, Any] = {int(id): what for id, what in instance.pending.items()}
        self.decisions: list[Decision] = []
        self.ending: Ending | None = None
        self._next = instance.next_activity_id
        self._queue = instance.queue
        self._handled = False

    def call(
        self,
        name: str,
        payload: Any = None,
        *,
        queue: str | None = None,
        delay: Duration = 0,
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
    ) -> int:
        """Send an activity; its end comes as ActivityCompleted or ActivityFailed with this id."""
        if headers is not None:
            given = dict(headers)
            limit = get_settings().payload_limit
            headers = as_stored(given, accept(given, field="headers", limit=limit))
        return self._add(
            CallActivity(
                activity_id=self._next,
                name=names.name("name", name),
                payload=self._payload(name, payload),
                queue=None if queue is None else names.name("queue", queue),
                delay=as_timedelta(delay, field="delay"),
                priority=checked_priority(priority),
                headers=headers,
            )
        )

    def start_child(
        self,
        name: str,
        input: Any = None,
        *,
        instance: str | None = None,
        version: str | None = None,
        queue: str | None = None,
    ) -> int:
        """Start another instance; its end comes as ChildCompleted or ChildFailed with this id."""
        return self._add(
            StartChild(
                activity_id=self._next,
                name=names.name("name", name),
                instance=names.instance_id(instance or self._child_id()),
                input=names.checked("input", input),
                version=None if version is None else names.version(version),
                queue=None if queue is None else names.name("queue", queue),
            )
        )

    def timer(self, delay: Duration) -> int:
        """Be called with TimerFired after this delay."""
        wait = as_timedelta(delay, field="delay")
        return self._add(SetTimer(activity_id=self._next, delay=wait))

    def complete(self, output: Any = None) -> None:
        """Complete the instance; its parent is notified."""
        self._end(Complete(output=names.checked("output", output)))

    def fail(self, error: ErrorDetails | BaseException | str) -> None:
        """Fail the instance by decision: no retry reopens it."""
        details = error if isinstance(error, ErrorDetails) else ErrorDetails.Application(error)
        self._end(Fail(error=details))

    def continue_as_new(self, input: Any = None, *, version: str | None = None) -> None:
        """Begin again as the next execution, with this input and without state."""
        given = None if version is None else names.version(version)
        self._end(Continue(input=names.checked("input", input), version=given))

    def handled(self) -> None:
        """Mark a failure as handled although the flow decides nothing now."""
        self._handled = True

    @property
    def has_answered(self) -> bool:
        """True if the flow decided anything: a change of state alone is no answer."""
        return bool(self.decisions or self.ending or self._handled)

    @property
    def next_activity_id(self) -> int:
        return self._next

    def _payload(self, name: str, payload: Any) -> str:
        limit = get_settings().payload_limit
        typed = payload_types.of_handlers.get(name)
        return (accept if typed is None else typed.accept)(payload, limit=limit)

    def _child_id(self) -> str:
        """Derive an id from the parent's id, or from its digest if that would be too long."""
        place = f":{self.execution_id}.{self._next}"
        if len(self.instance) + len(place) <= LONGEST_ID:
            return self.instance + place
        return sha256(self.instance.encode()).hexdigest() + place

    def _add(self, decision: Decision) -> int:
        self._refuse_after_end()
        self.decisions.append(decision)
        self._next += 1
        return decision.activity_id

    def _end(self, ending: Ending) -> None:
        self._refuse_after_end()
        self.ending = ending

    def _refuse_after_end(self) -> None:
        if self.ending is not None:
            what = type(self.ending).__name__.lower()
            raise TurnEnded(f"instance {self.instance}: nothing can be decided after {what}")
