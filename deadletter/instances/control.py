"""What may be said to an instance from outside, and what is there to know about it?"""

from __future__ import annotations

import asyncio
from time import monotonic, sleep
from typing import Any

from asgiref.sync import sync_to_async

from ..durations import Duration, as_timedelta
from ..exceptions import InstanceNotRunning
from ..instance_events import Raised
from ..lifecycle.instances.post import event_letter
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Instance, primary_alias
from . import names
from .starts import deliver_or_refuse

#: Seconds between two looks of `wait_for`: the first, and the longest.
_QUICK, _SLOW = 0.01, 0.5


def raise_event(instance: str, name: str, data: Any = None, *, using: str | None = None) -> int:
    """
    Send an event from outside; the flow gets it as Raised. Returns the id of its message.

    Promises: part of the caller's transaction; an instance that continues as new gets it in its
    next execution. Raises: InstanceNotRunning; MessageRejected with nothing stored.
    """
    id = names.instance_id(instance)
    event = Raised(name=names.name("name", name), data=names.checked("data", data))

    def work(tx: Transaction) -> int:
        found = Instance.objects.using(tx.using).without_bodies().filter(pk=id).first()
        if found is None or not found.is_running:
            raise InstanceNotRunning(id, None if found is None else found.status)
        return deliver_or_refuse(tx, event_letter(found, event))

    return in_transaction(work, using=using)


def instance_status(instance: str, *, using: str | None = None) -> Instance | None:
    """Return the row of an instance: status, output, error_details, state; None: no such id."""
    alias = primary_alias(using)
    return Instance.objects.using(alias).filter(pk=instance).first()


def wait_for(
    instance: str, timeout: Duration | None = None, *, using: str | None = None
) -> Instance:
    """
    Wait until an instance has completed or failed, and return its row.

    Raises: TimeoutError; InstanceNotRunning for an id that does not exist. Does not see what
    happens outside a transaction that the caller has begun on SQLite.
    """
    waiting = _Waiting(instance, timeout)
    while True:
        found = waiting.look(instance_status(instance, using=using))
        if found is not None:
            return found
        sleep(waiting.pause())


async def await_for(
    instance: str, timeout: Duration | None = None, *, using: str | None = None
) -> Instance:
    """Do what `wait_for` does, and let others go on meanwhile."""
    waiting = _Waiting(instance, timeout)
    while True:
        found = waiting.look(await sync_to_async(instance_status)(instance, using=using))
        if found is not None:
            return found
        await asyncio.sleep(waiting.pause())


class _Waiting:
    """How long to wait for an instance, and how long until the next look."""

    def __init__(self, instance: str, timeout: Duration | None) -> None:
        self._instance = instance
        self._limit = None if timeout is None else as_timedelta(timeout, field="timeout")
        self._begun = monotonic()
        self._next = _QUICK

    def look(self, found: Instance | None) -> Instance | None:
        """Return the row if it has ended."""
        if found is None:
            raise InstanceNotRunning(self._instance, None)
        return None if found.is_running else found

    def pause(self) -> float:
        waited = monotonic() - self._begun
        if self._limit is not None and waited + self._next > self._limit.total_seconds():
            raise TimeoutError(f"instance {self._instance} is still running after {self._limit}")
        pause, self._next = self._next, min(self._next * 1.5, _SLOW)
        return pause
