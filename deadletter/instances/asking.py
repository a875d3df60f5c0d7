"""What may be said to an instance from outside, and what is there to know about it?"""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

from django.db import router

from ..durations import Duration, as_timedelta
from ..events import Raised
from ..exceptions import InstanceNotRunning
from ..lifecycle.posting import event_letter
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Instance, Message
from . import door
from .starting import deliver_or_refuse

#: Seconds between two looks of `wait_for`: the first, and the longest.
_QUICK, _SLOW = 0.01, 0.5


def raise_event(instance: str, name: str, data: Any = None, *, using: str | None = None) -> int:
    """
    Send an event from outside; the flow gets it as Raised. Returns the id of its message.

    Promises: part of the caller's transaction; an instance that continues as new gets it in its
    next execution. Raises: InstanceNotRunning; MessageRejected with nothing stored.
    """
    id = door.instance_id(instance)
    event = Raised(name=door.name("name", name), data=door.checked("data", data))

    def work(tx: Transaction) -> int:
        found = Instance.objects.using(tx.using).light().filter(pk=id).first()
        if found is None or not found.is_running:
            raise InstanceNotRunning(id, None if found is None else found.status)
        return deliver_or_refuse(tx, event_letter(found, event))

    return in_transaction(work, using=using)


def instance_status(instance: str, *, using: str | None = None) -> Instance | None:
    """Return the row of an instance: status, output, error_details, state; None: no such id."""
    alias = using or router.db_for_write(Message)
    return Instance.objects.using(alias).filter(pk=instance).first()


def wait_for(
    instance: str, timeout: Duration | None = None, *, using: str | None = None
) -> Instance:
    """
    Wait until an instance has completed or failed, and return its row.

    Raises: TimeoutError; InstanceNotRunning for an id that does not exist. Does not see what
    happens outside a transaction that the caller has begun on SQLite.
    """
    seconds = None if timeout is None else as_timedelta(timeout, field="timeout").total_seconds()
    until = None if seconds is None else monotonic() + seconds
    pause = _QUICK
    while True:
        found = instance_status(instance, using=using)
        if found is None:
            raise InstanceNotRunning(instance, None)
        if not found.is_running:
            return found
        if until is not None and monotonic() + pause > until:
            raise TimeoutError(f"instance {instance} is still running after {seconds} s")
        sleep(pause)
        pause = min(pause * 1.5, _SLOW)
