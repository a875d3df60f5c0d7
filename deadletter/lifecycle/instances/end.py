"""How does an instance end, and who hears of it? Its parent in the same transaction."""

from __future__ import annotations

import logging
from typing import Any

from ... import signals
from ...error_details import ErrorDetails
from ...instance_events import ChildCompleted, ChildFailed
from ...logs import event
from ...models import Instance, InstanceLogKind, InstanceStatus
from ..announce import announce
from ..transaction import Transaction
from .log import note
from .post import Letter, event_letter, post

#: Past ends remembered; the oldest goes first.
HISTORY_LIMIT = 25


def complete(tx: Transaction, instance: Instance, output: Any) -> None:
    """End a locked instance well. What is still under way is ignored when it comes."""
    _end(tx, instance, InstanceStatus.COMPLETED, output=output, pending={}, inbox=None)
    note(tx, instance, InstanceLogKind.COMPLETED, data=output)
    done = ChildCompleted(
        activity_id=instance.parent_activity_id or 0,
        name=instance.name,
        instance=instance.id,
        output=output,
    )
    _tell_parent(tx, instance, done)
    tx.after_commit(lambda: _say_completed(instance))
    announce(
        tx.using,
        "instance_completed",
        signals.instance_completed,
        sender=Instance,
        each=lambda: [_who(instance)],
    )


def fail(
    tx: Transaction,
    instance: Instance,
    error: ErrorDetails,
    *,
    failed_by: int | None = None,
    cancelled: bool = False,
) -> None:
    """
    Fail a locked instance with this very error.

    `failed_by` is the poison that did it: retrying it reopens the instance, so it keeps what it
    waits for. Without one it was a decision, and nothing brings it back.
    """
    found = error.as_dict()
    if failed_by is None:
        instance.pending, instance.inbox = {}, None
    _end(tx, instance, InstanceStatus.FAILED, error=found, failed_by=failed_by)
    kind = InstanceLogKind.CANCELLED if cancelled else InstanceLogKind.FAILED
    note(tx, instance, kind, message_id=failed_by, data={"text": error.text})
    failed = ChildFailed(
        activity_id=instance.parent_activity_id or 0,
        name=instance.name,
        instance=instance.id,
        error=error,
    )
    _tell_parent(tx, instance, failed)
    tx.after_commit(lambda: _say_failed(instance, error))
    announce(
        tx.using,
        "instance_failed",
        signals.instance_failed,
        sender=Instance,
        each=lambda: [{**_who(instance), "error": error}],
    )


def save(tx: Transaction, instance: Instance, **changes: Any) -> None:
    """Write a locked instance; whoever decided on what it was before has to decide again."""
    for name, value in changes.items():
        setattr(instance, name, value)
    instance.revision += 1
    instance.updated_at = tx.time()
    instance.stuck_since = None
    instance.save(using=tx.using)


def past(instance: Instance, **what: Any) -> list[Any]:
    """Return its history with one more entry: how this execution stood."""
    entry = {
        "execution_id": instance.execution_id,
        "status": instance.status,
        "at": None if instance.ended_at is None else instance.ended_at.isoformat(),
        "error": instance.error,
        **what,
    }
    known = instance.history if isinstance(instance.history, list) else []
    return [*known, entry][-HISTORY_LIMIT:]


def deliver(letter: Letter, tx: Transaction, *, or_in: str | None = None) -> None:
    """Post what must not be lost: into another queue if its own is gone, or into the log."""
    if post(tx.using, letter) is not None:
        return
    other = None if or_in is None else Letter(**{**vars(letter), "queue": or_in})
    if other is None or post(tx.using, other) is None:
        event(
            logging.ERROR,
            "instance_unreachable",
            "instance {instance} could not be told what happened: its queue {queue} is gone. "
            "Create the queue again, then cancel the instance or start it anew",
            instance=letter.instance,
            queue=letter.queue,
        )


def _end(tx: Transaction, instance: Instance, status: InstanceStatus, **changes: Any) -> None:
    save(tx, instance, status=status, ended_at=tx.time(), **changes)


def _tell_parent(tx: Transaction, instance: Instance, what: ChildCompleted | ChildFailed) -> None:
    if instance.parent is None:
        return
    parent = Instance.objects.using(tx.using).without_bodies().filter(pk=instance.parent).first()
    if parent is not None:
        letter = event_letter(
            parent,
            what,
            execution_id=instance.parent_execution_id,
            activity_id=instance.parent_activity_id,
        )
        deliver(letter, tx, or_in=instance.queue)


def _who(instance: Instance) -> dict[str, Any]:
    return {
        "instance": instance.id,
        "name": instance.name,
        "execution_id": instance.execution_id,
    }


def _say_completed(instance: Instance) -> None:
    event(
        logging.INFO,
        "instance_completed",
        "instance {instance} ({name}, execution {execution_id}) is completed",
        instance=instance.id,
        name=instance.name,
        execution_id=instance.execution_id,
    )


def _say_failed(instance: Instance, error: ErrorDetails) -> None:
    event(
        logging.WARNING,
        "instance_failed",
        "instance {instance} ({name}, execution {execution_id}) failed ({category}): {error}",
        instance=instance.id,
        name=instance.name,
        execution_id=instance.execution_id,
        category=error.category,
        error=error.text,
        failed_by=instance.failed_by,
    )
