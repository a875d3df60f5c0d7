"""Rows of instances: lock, create and save them, and check whether an event concerns one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models import Instance, InstanceStatus
from ..transaction import Transaction

#: Past ends that an instance keeps in its history; the oldest is dropped first.
HISTORY_LIMIT = 25


def lock_instances(tx: Transaction, ids: Collection[str]) -> dict[str, Instance]:
    """Lock instances in id order. The caller locks streams and messages before."""
    if not ids:
        return {}
    rows = Instance.objects.using(tx.using).select_for_update().order_by("pk")
    return {instance.id: instance for instance in rows.filter(pk__in=list(ids))}


def new_instance(tx: Transaction, id: str, name: str, queue: str) -> Instance:
    """Return an unsaved row for an instance that begins now, or whose start was lost."""
    now = tx.time()
    return Instance(
        id=id,
        name=name,
        queue=queue,
        status=InstanceStatus.RUNNING,
        created_at=now,
        updated_at=now,
    )


def save_instance(tx: Transaction, instance: Instance, **changes: Any) -> None:
    """Write a locked instance. The new revision makes turns that read the old one start again."""
    for name, value in changes.items():
        setattr(instance, name, value)
    instance.revision += 1
    instance.updated_at = tx.time()
    instance.stuck_since = None
    instance.save(using=tx.using)


def extended_history(instance: Instance, **entry: Any) -> list[Any]:
    """Return the history of an instance with one more entry: the state of this execution."""
    new = {
        "execution_id": instance.execution_id,
        "status": instance.status,
        "at": None if instance.ended_at is None else instance.ended_at.isoformat(),
        "error": instance.error,
        **entry,
    }
    known = instance.history if isinstance(instance.history, list) else []
    return [*known, new][-HISTORY_LIMIT:]


def why_unwanted(
    instance: Instance,
    *,
    execution_id: int | None,
    activity_id: int | None,
    event: object,
) -> str:
    """Return why an event no longer concerns an instance; "": it does. `event` is its name."""
    if not instance.is_running:
        return f"the instance has {instance.status}"
    return why_stale(instance, execution_id=execution_id, activity_id=activity_id, event=event)


def why_stale(
    instance: Instance,
    *,
    execution_id: int | None,
    activity_id: int | None,
    event: object,
) -> str:
    """Return why an event would not concern an instance even if it were running; "": it would."""
    if event == "raised":
        if instance.first_execution_id <= (execution_id or 0) <= instance.execution_id:
            return ""
        return f"raised for execution {execution_id}"
    if execution_id != instance.execution_id:
        return f"of execution {execution_id}"
    if event == "started" and instance.is_begun:
        return "this execution has begun already"
    if activity_id is not None and str(activity_id) not in instance.pending:
        return f"nothing waits for {activity_id} any more"
    return ""
