"""Start an instance: its row and its first message, in the caller's transaction."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from ..exceptions import InstanceRunning, UnknownQueue
from ..instance_events import Started
from ..lifecycle.instances.post import InstanceMessage, event_message, post
from ..lifecycle.instances.rows import (
    extended_history,
    lock_instances,
    new_instance,
    save_instance,
)
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Instance, InstanceStatus, Queue
from . import names
from .flow_registry import flows, highest


def start(
    name: str,
    *,
    instance: str,
    input: Any = None,
    version: str | None = None,
    queue: str = "default",
    using: str | None = None,
) -> Instance:
    """
    Start an instance of an orchestration and return its row.

    Promises: part of the caller's transaction. An id that has ended runs again, as the next
    execution. `version` stays with it; without one it is the highest this process knows, or else
    the highest known to the worker that takes the first turn.
    Raises: InstanceRunning while that id is running; MessageRejected with nothing stored.
    """
    values = {
        "name": names.name("name", name),
        "queue": names.name("queue", queue),
        "version": None if version is None else names.version(version),
        "input": names.checked("input", input),
    }
    id = names.instance_id(instance)
    return in_transaction(lambda tx: start_in(tx, id, **values), using=using)


def start_in(
    tx: Transaction,
    id: str,
    *,
    name: str,
    input: Any,
    version: str | None,
    queue: str,
    parent: Instance | None = None,
    activity_id: int | None = None,
) -> Instance:
    """Start an instance inside a transaction; `parent` is the instance that starts it, if any."""
    found, is_new = _row(tx, id, name=name, queue=queue)
    if not is_new:
        if found.is_running:
            raise InstanceRunning(id)
        found.history = extended_history(found)
        found.execution_id += 1
    fresh = {
        "name": name,
        "queue": queue,
        "version": version or highest(flows.versions(name)),
        "first_execution_id": found.execution_id,
        "status": InstanceStatus.RUNNING,
        "state": None,
        "inbox": None,
        "output": None,
        "error": None,
        "failed_by": None,
        "ended_at": None,
        "parent": None if parent is None else parent.id,
        "parent_execution_id": None if parent is None else parent.execution_id,
        "parent_activity_id": activity_id,
    }
    begin_execution(tx, found, input=input, **fresh)
    return found


def begin_execution(tx: Transaction, instance: Instance, *, input: Any, **changes: Any) -> None:
    """Begin the next execution of a locked instance: nothing is pending, Started is posted."""
    save_instance(tx, instance, input=input, pending={}, is_begun=False, **changes)
    post_or_refuse(tx, event_message(instance, Started(input=input)))


def post_or_refuse(tx: Transaction, message: InstanceMessage) -> int:
    """Post a message and return its id. Raises: UnknownQueue."""
    id = post(tx.using, message)
    if id is None:
        queues = Queue.objects.using(tx.using).values_list("name", flat=True)
        raise UnknownQueue(message.queue, queues)
    return id


def _row(tx: Transaction, id: str, *, name: str, queue: str) -> tuple[Instance, bool]:
    """
    Lock the row of an id or create it; return also whether it is new.

    Of two transactions that create the same id one waits, and finds the row of the other.
    """
    if found := lock_instances(tx, [id]).get(id):
        return found, False
    new = new_instance(tx, id, name, queue)
    try:
        with transaction.atomic(using=tx.using):
            new.save(using=tx.using, force_insert=True)
    except IntegrityError:
        return lock_instances(tx, [id])[id], False
    return new, True
