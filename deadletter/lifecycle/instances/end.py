"""End an instance: complete or fail it, and notify its parent in the same transaction."""

from __future__ import annotations

import logging
from typing import Any

from ... import signals
from ...error_details import ErrorDetails
from ...instance_events import ChildCompleted, ChildFailed
from ...logs import event
from ...models import Instance, InstanceLogKind, InstanceStatus
from ..transaction import Transaction
from .log import add_log_entry
from .post import event_message, post_or_log
from .rows import save_instance


def complete_instance(tx: Transaction, instance: Instance, output: Any) -> None:
    """Complete a locked instance. Its activities that are still in progress are ignored later."""
    save_instance(
        tx,
        instance,
        status=InstanceStatus.COMPLETED,
        ended_at=tx.time(),
        output=output,
        pending={},
        inbox=None,
    )
    add_log_entry(tx, instance, InstanceLogKind.COMPLETED, data=output)
    completed = ChildCompleted(
        activity_id=instance.parent_activity_id or 0,
        name=instance.name,
        instance=instance.id,
        output=output,
    )
    _notify_parent(tx, instance, completed)
    tx.after_commit(
        lambda: event(
            logging.INFO,
            "instance_completed",
            "instance {instance} ({name}, execution {execution_id}) is completed",
            instance=instance.id,
            name=instance.name,
            execution_id=instance.execution_id,
        )
    )
    signals.announce(
        tx.using,
        "instance_completed",
        signals.instance_completed,
        sender=Instance,
        each=lambda: [_identity(instance)],
    )


def fail_instance(
    tx: Transaction,
    instance: Instance,
    error: ErrorDetails,
    *,
    failed_by: int | None = None,
    cancelled: bool = False,
) -> None:
    """
    Fail a locked instance with this error.

    `failed_by` is the message whose death failed it: a retry of that message reopens the instance,
    so it keeps what it waits for. Without it the failure is a decision, and final.
    """
    if failed_by is None:
        instance.pending, instance.inbox = {}, None
    save_instance(
        tx,
        instance,
        status=InstanceStatus.FAILED,
        ended_at=tx.time(),
        error=error.as_dict(),
        failed_by=failed_by,
    )
    kind = InstanceLogKind.CANCELLED if cancelled else InstanceLogKind.FAILED
    add_log_entry(tx, instance, kind, message_id=failed_by, data={"text": error.text})
    failed = ChildFailed(
        activity_id=instance.parent_activity_id or 0,
        name=instance.name,
        instance=instance.id,
        error=error,
    )
    _notify_parent(tx, instance, failed)
    tx.after_commit(
        lambda: event(
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
    )
    signals.announce(
        tx.using,
        "instance_failed",
        signals.instance_failed,
        sender=Instance,
        each=lambda: [{**_identity(instance), "error": error}],
    )


def _notify_parent(
    tx: Transaction, instance: Instance, happened: ChildCompleted | ChildFailed
) -> None:
    if instance.parent is None:
        return
    parent = Instance.objects.using(tx.using).without_bodies().filter(pk=instance.parent).first()
    if parent is not None:
        message = event_message(
            parent,
            happened,
            execution_id=instance.parent_execution_id,
            activity_id=instance.parent_activity_id,
        )
        post_or_log(tx, message, fallback_queue=instance.queue)


def _identity(instance: Instance) -> dict[str, Any]:
    return {
        "instance": instance.id,
        "name": instance.name,
        "execution_id": instance.execution_id,
    }
