"""Control of instances from outside: raise events, read the status, wait, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from time import monotonic, sleep
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Q

from ..durations import Duration, as_timedelta
from ..error_details import ErrorDetails
from ..exceptions import InstanceNotRunning
from ..instance_events import Raised
from ..lifecycle import retry_outcomes, streams
from ..lifecycle.instances.end import fail_instance
from ..lifecycle.instances.post import event_message
from ..lifecycle.instances.rows import lock_instances
from ..lifecycle.transaction import Stream, Transaction, in_transaction
from ..models import Instance, InstanceStatus, Message, Queue, primary_alias, stream_of
from . import names
from .starts import post_or_refuse

#: Seconds between two queries of `wait_for`: the first pause, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


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
        return post_or_refuse(tx, event_message(found, event))

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

    Raises: TimeoutError; InstanceNotRunning for an id that does not exist. Inside a transaction of
    the caller on SQLite it does not see what others commit.
    """
    wait = _Wait(instance, timeout)
    while True:
        found = wait.ended(instance_status(instance, using=using))
        if found is not None:
            return found
        sleep(wait.next_pause())


async def await_for(
    instance: str, timeout: Duration | None = None, *, using: str | None = None
) -> Instance:
    """Do what `wait_for` does without blocking the event loop."""
    wait = _Wait(instance, timeout)
    while True:
        found = wait.ended(await sync_to_async(instance_status)(instance, using=using))
        if found is not None:
            return found
        await asyncio.sleep(wait.next_pause())


def cancel(instance: str, why: str = "", *, using: str | None = None) -> list[str]:
    """
    Fail an instance by decision, and its running children; return the ids that were cancelled.

    Messages that no worker handles are deleted; results of the others are ignored. A parent is
    notified. Raises: InstanceNotRunning.
    """
    id = names.instance_id(instance)
    return in_transaction(lambda tx: cancel_in(tx, id, why), using=using)


def cancel_in(tx: Transaction, id: str, why: str) -> list[str]:
    """Cancel inside a transaction. Locks streams, then messages, then instances."""
    family, held = _lock_streams(tx, id)
    _delete_messages(tx, family, held)
    locked = lock_instances(tx, family)
    if id not in locked or not locked[id].is_running:
        raise InstanceNotRunning(id, locked[id].status if id in locked else None)
    error = ErrorDetails.Application(f"cancelled: {why}" if why else "cancelled")
    # Children first: the event that each posts to its parent is ignored, because the parent ends
    # in the same transaction.
    ended = [member for member in reversed(family) if member in locked]
    ended = [member for member in ended if locked[member].is_running]
    for member in ended:
        fail_instance(tx, locked[member], error, cancelled=True)
    return ended[::-1]


class _Wait:
    """The timeout of a wait for an instance, and the growing pauses between two queries."""

    def __init__(self, instance: str, timeout: Duration | None) -> None:
        self._instance = instance
        self._limit = None if timeout is None else as_timedelta(timeout, field="timeout")
        self._begun = monotonic()
        self._next = _FIRST_PAUSE

    def ended(self, found: Instance | None) -> Instance | None:
        """Return the row if the instance has ended."""
        if found is None:
            raise InstanceNotRunning(self._instance, None)
        return None if found.is_running else found

    def next_pause(self) -> float:
        """Return the seconds until the next query. Raises: TimeoutError."""
        waited = monotonic() - self._begun
        if self._limit is not None and waited + self._next > self._limit.total_seconds():
            raise TimeoutError(f"instance {self._instance} is still running after {self._limit}")
        pause, self._next = self._next, min(self._next * 1.5, _LONGEST_PAUSE)
        return pause


def _family(tx: Transaction, id: str) -> list[str]:
    """Return the ids of the instance and of its running descendants, parents first."""
    family, level = [id], [id]
    running = Instance.objects.using(tx.using).filter(status=InstanceStatus.RUNNING)
    while level:
        children = running.filter(parent__in=level).exclude(pk__in=family).order_by("pk")
        level = list(children.values_list("pk", flat=True))
        family += level
    return family


def _lock_streams(tx: Transaction, id: str) -> tuple[list[str], set[Stream]]:
    """
    Lock the streams of an instance and of its running descendants; return ids and streams.

    The descendants are read again under the locks: a turn in progress may have started another
    child, which would not be cancelled. An instance whose stream is locked takes no turn, so the
    loop ends.
    """
    family = _family(tx, id)
    held: set[Stream] = set()
    while missing := _streams(tx, family) - held:
        tx.run_for(missing, "lock_named_streams")
        held |= missing
        family = _family(tx, id)
    return family, held


def _delete_messages(tx: Transaction, family: Collection[str], held: set[Stream]) -> None:
    """Delete the messages that are not leased. Their streams are locked already."""
    now = tx.time()
    idle = Q(lease_token=None) | Q(available_at=None) | Q(available_at__lte=now)
    rows = Message.objects.using(tx.using).filter(idle, instance__in=list(family))
    ids = list(rows.select_for_update().order_by("pk").values_list("pk", flat=True))
    if ids:
        tx.run("delete", ids=ids)
        retry_outcomes.mark_removed(tx, ids)
        streams.wake(tx, held)


def _streams(tx: Transaction, family: Collection[str]) -> set[Stream]:
    queues = dict(Queue.objects.using(tx.using).values_list("name", "pk"))
    rows = Instance.objects.using(tx.using).filter(pk__in=list(family))
    found = rows.values_list("pk", "queue")
    return {(queues[queue], stream_of(id)) for id, queue in found if queue in queues}
