"""
A poisoned message of an instance is retried: what its death did to instances is undone.

An instance that it failed is reopened and continues where it stopped, as long as nothing else has
happened to it since; otherwise the retry is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from ...error_details import ErrorDetails
from ...models import (
    Instance,
    InstanceEvent,
    InstanceLogKind,
    InstanceStatus,
    Kind,
    Message,
    PoisonRecord,
    Queue,
)
from .. import streams
from ..refusals import Refusal, RefusalReason
from ..transaction import Stream, Transaction
from .log import add_log_entry
from .post import InstanceMessage, post_or_log
from .rows import extended_history, lock_instances, save_instance


@dataclass(frozen=True)
class InstanceRetryPlan:
    """What a retry does to instances."""

    #: Instances to reopen, children first.
    reopened: list[Instance] = field(default_factory=list)
    #: Events about the failure that their flows have not received yet; they are deleted.
    withdrawn: list[Message] = field(default_factory=list)


def plan_retry(
    tx: Transaction, record: PoisonRecord, *, queue: str | None
) -> InstanceRetryPlan | str:
    """
    Plan the retry of a poisoned message of an instance, or return why it is refused.

    The caller holds the locks of the streams of the instance and of its ancestors.
    """
    ids = _with_ancestors(tx.using, record.instance or "")
    events = list(_undelivered(tx.using, ids).select_for_update())
    locked = lock_instances(tx, ids)
    instance = locked.get(record.instance or "")
    if instance is None:
        return _no_instance(record)
    # A message that was moved to a dead queue goes back to the queue of its instance.
    if queue not in (None, record.queue, instance.queue) and record.kind != Kind.ACTIVITY:
        return Refusal(RefusalReason.INSTANCE_QUEUE, instance=record.instance)
    return _RetryPlanner(record, locked, events, tx.time()).plan_for(instance)


def preview_retry(record: PoisonRecord, *, using: str, now: datetime) -> InstanceRetryPlan | str:
    """Return what a retry would do now. Nothing is locked: it may be different a moment later."""
    ids = _with_ancestors(using, record.instance or "")
    found = Instance.objects.using(using).without_bodies().filter(pk__in=ids)
    known = {instance.id: instance for instance in found}
    instance = known.get(record.instance or "")
    if instance is None:
        return _no_instance(record)
    return _RetryPlanner(record, known, list(_undelivered(using, ids)), now).plan_for(instance)


def has_failed(record: PoisonRecord, instance: Instance) -> bool:
    """Return whether this message failed the instance, under its id here or before a dead queue."""
    if instance.status != InstanceStatus.FAILED or instance.failed_by is None:
        return False
    return instance.failed_by in (record.message_id, record.source_id)


def apply_plan(tx: Transaction, plan: InstanceRetryPlan, record: PoisonRecord) -> None:
    """Reopen and withdraw; the events that the instances missed are sent again, in order."""
    if plan.withdrawn:
        tx.run("delete", ids=[message.pk for message in plan.withdrawn])
        streams.wake(tx, {(m.queue_id, m.stream) for m in plan.withdrawn if m.stream is not None})
    for instance in plan.reopened:
        missed = _missed(tx, instance)
        history = extended_history(instance, retried=record.message_id)
        save_instance(
            tx,
            instance,
            status=InstanceStatus.RUNNING,
            error=None,
            failed_by=None,
            ended_at=None,
            history=history,
        )
        add_log_entry(tx, instance, InstanceLogKind.REOPENED, message_id=record.message_id)
        for line in missed:
            if not _is_about(record, line):
                _send_again(tx, instance, line)


def streams_to_lock(using: str, id: str) -> set[Stream]:
    """Return the streams that a retry must lock: of the instance and of its ancestors."""
    found = Instance.objects.using(using).without_bodies().filter(pk__in=_with_ancestors(using, id))
    instances = list(found)
    names = {instance.queue for instance in instances}
    queues = dict(Queue.objects.using(using).filter(name__in=names).values_list("name", "pk"))
    return {(queues[i.queue], i.stream) for i in instances if i.queue in queues}


class _RetryPlanner:
    """Plans the retry of one record from the state of its instance and the ancestors."""

    def __init__(
        self,
        record: PoisonRecord,
        instances: Mapping[str, Instance],
        undelivered: list[Message],
        now: datetime,
    ) -> None:
        self.record = record
        self.instances = instances
        self.undelivered = undelivered
        self.now = now
        self.plan = InstanceRetryPlan()

    def plan_for(self, instance: Instance) -> InstanceRetryPlan | str:
        """Plan for the instance of the message, then for the ancestors that failed with it."""
        record = self.record
        if instance.execution_id != record.execution_id and not self._is_raised(instance):
            return Refusal(
                RefusalReason.INSTANCE_CONTINUED,
                instance=instance.id,
                execution=instance.execution_id,
            )
        if instance.status == InstanceStatus.COMPLETED:
            return Refusal(RefusalReason.INSTANCE_COMPLETED, instance=instance.id)
        if instance.status == InstanceStatus.FAILED:
            return self._reopen(instance)
        if record.kind != Kind.ACTIVITY:
            return self.plan  # nothing to undo: its event is still wanted
        what = f"{record.name}#{record.activity_id}"
        return self._withdraw(instance, record.activity_id, what) or self.plan

    def _is_raised(self, instance: Instance) -> bool:
        """Return whether it is a raised event: those also reach the following executions."""
        first, last = instance.first_execution_id, instance.execution_id
        return self.record.activity_id is None and first <= (self.record.execution_id or 0) <= last

    def _reopen(self, instance: Instance) -> InstanceRetryPlan | str:
        if not has_failed(self.record, instance):
            return _failed_of_something_else(instance)
        self.plan.reopened.append(instance)
        parent = self.instances.get(instance.parent or "")
        if parent is None:
            return self.plan
        return self._plan_for_parent(instance, parent)

    def _plan_for_parent(self, child: Instance, parent: Instance) -> InstanceRetryPlan | str:
        if self._had_ended(parent, before=child):
            return self.plan
        whose = {"parent": parent.id, "instance": child.id}
        if parent.execution_id != child.parent_execution_id:
            return Refusal(RefusalReason.PARENT_CONTINUED, **whose, execution=parent.execution_id)
        if parent.status == InstanceStatus.COMPLETED:
            return Refusal(RefusalReason.PARENT_COMPLETED, **whose)
        if parent.status == InstanceStatus.FAILED:
            if has_failed(self.record, parent) and parent.error == child.error:
                return self._reopen(parent)
            return _failed_of_something_else(parent, child=child)
        return self._withdraw(parent, child.parent_activity_id, child.id) or self.plan

    def _had_ended(self, parent: Instance, *, before: Instance) -> bool:
        """Return whether the parent ended before its child, whose failure did not concern it."""
        if parent.execution_id != before.parent_execution_id or parent.failed_by is not None:
            return False
        ends = parent.ended_at, before.ended_at
        return ends[0] is not None and ends[1] is not None and ends[0] < ends[1]

    def _withdraw(self, instance: Instance, activity_id: int | None, what: str) -> str:
        """Withdraw the event of a failure before its flow receives it; return why it cannot."""
        for message in self.undelivered:
            if message.instance == instance.id and message.activity_id == activity_id:
                if message.state(self.now) == "active":
                    return Refusal(
                        RefusalReason.INSTANCE_BEING_TOLD, instance=instance.id, what=what
                    )
                self.plan.withdrawn.append(message)
                return ""
        if str(activity_id) in instance.pending:
            return ""
        return Refusal(RefusalReason.INSTANCE_HANDLED, instance=instance.id, what=what)


def _failed_of_something_else(failed: Instance, *, child: Instance | None = None) -> Refusal:
    """Refuse for an instance, or the parent of `child`, that failed of another error."""
    error = failed.error_details or ErrorDetails.Application("unknown")
    values: dict[str, Any] = {"instance": failed.id, "error": error.text}
    if child is not None:
        values |= {"parent": failed.id, "instance": child.id}
    if failed.failed_by is None:
        reason = RefusalReason.PARENT_FAILED if child else RefusalReason.INSTANCE_FAILED
        return Refusal(reason, **values)
    reason = RefusalReason.PARENT_FAILED_BY if child else RefusalReason.INSTANCE_FAILED_BY
    return Refusal(reason, **values, failed_by=failed.failed_by)


def _no_instance(record: PoisonRecord) -> Refusal:
    return Refusal(RefusalReason.INSTANCE_GONE, instance=record.instance)


def _with_ancestors(using: str, id: str) -> list[str]:
    """Return the ids of the instance and of its ancestors, from the instance upwards."""
    chain: list[str] = []
    rows = Instance.objects.using(using)
    above: str | None = id
    while above is not None and above not in chain:
        chain.append(above)
        above = rows.filter(pk=above).values_list("parent", flat=True).first()
    return chain


def _undelivered(using: str, ids: list[str]) -> QuerySet[Message]:
    """Return the events about ended activities and children that these instances will receive."""
    rows = Message.objects.using(using).without_bodies().order_by("pk")
    return rows.filter(
        instance__in=ids,
        kind=Kind.ORCHESTRATION,
        activity_id__isnull=False,
        stream__isnull=False,
    )


def _missed(tx: Transaction, instance: Instance) -> list[InstanceEvent]:
    """Return the events that came since the instance failed, oldest first."""
    rows = InstanceEvent.objects.using(tx.using).filter(instance=instance.id).order_by("id")
    failed = rows.filter(event=InstanceLogKind.FAILED).values_list("id", flat=True).last() or 0
    late = rows.filter(id__gt=failed, event=InstanceLogKind.IGNORED)
    return [line for line in late if isinstance(line.data, dict) and "missed" in line.data]


def _is_about(record: PoisonRecord, line: InstanceEvent) -> bool:
    """Return whether a missed event is about this message: it died once more, in a dead queue."""
    return (
        record.kind == Kind.ACTIVITY
        and line.instance == record.instance
        and line.activity_id == record.activity_id
        and line.data["missed"]["event"] == "activity_failed"
    )


def _send_again(tx: Transaction, instance: Instance, line: InstanceEvent) -> None:
    message = InstanceMessage(
        kind=Kind.ORCHESTRATION,
        name=instance.name,
        queue=instance.queue,
        stream=instance.stream,
        instance=instance.id,
        execution_id=instance.execution_id,
        activity_id=line.activity_id,
        payload=json.dumps(line.data["missed"], ensure_ascii=False),
        headers=None if instance.version is None else {"version": instance.version},
    )
    post_or_log(tx, message)
