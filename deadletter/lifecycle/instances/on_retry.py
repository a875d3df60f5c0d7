"""May a poisoned message of an instance be retried? Then what it failed goes on where it stood."""

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
from . import end, on_death
from .log import note
from .post import Letter


@dataclass(frozen=True)
class Plan:
    """What a retry does to instances: those to reopen, the lowest first, and what to withdraw."""

    reopened: list[Instance] = field(default_factory=list)
    #: Failures on their way to a flow that has not heard of them yet.
    withdrawn: list[Message] = field(default_factory=list)


def judge(tx: Transaction, record: PoisonRecord, *, queue: str | None) -> Plan | str:
    """
    Plan the retry of a poisoned message of an instance, or say why it is refused.

    The caller holds the locks of the streams of the instance and of all above it. A retry makes
    undone what the poison did, as long as nothing else has happened to the instance since.
    """
    chain = _chain(tx.using, record.instance or "")
    told = list(_news(tx.using, chain).select_for_update())
    locked = on_death.lock(tx, chain)
    owner = locked.get(record.instance or "")
    if owner is None:
        return _no_owner(record)
    # Its own queue is another one for what was moved to a dead queue.
    if queue not in (None, record.queue, owner.queue) and record.kind != Kind.ACTIVITY:
        return Refusal(RefusalReason.INSTANCE_QUEUE, instance=record.instance)
    return _Judgement(record, locked, told, tx.time()).of(owner)


def foresee(record: PoisonRecord, *, using: str, now: datetime) -> Plan | str:
    """Say what a retry would do as things stand. Nothing is locked: it may be different by then."""
    chain = _chain(using, record.instance or "")
    found = Instance.objects.using(using).light().filter(pk__in=chain)
    known = {instance.id: instance for instance in found}
    owner = known.get(record.instance or "")
    if owner is None:
        return _no_owner(record)
    return _Judgement(record, known, list(_news(using, chain)), now).of(owner)


def has_failed(record: PoisonRecord, instance: Instance) -> bool:
    """Whether this poison failed the instance, as itself or as what it was before a dead queue."""
    if instance.status != InstanceStatus.FAILED or instance.failed_by is None:
        return False
    return instance.failed_by in (record.message_id, record.source_id)


def carry_out(tx: Transaction, plan: Plan, record: PoisonRecord) -> None:
    """Reopen and withdraw; what the instances missed meanwhile is sent again, in order."""
    if plan.withdrawn:
        tx.run("delete", ids=[message.pk for message in plan.withdrawn])
        streams.wake(tx, {(m.queue_id, m.stream) for m in plan.withdrawn if m.stream is not None})
    for instance in plan.reopened:
        missed = _missed(tx, instance)
        history = end.past(instance, retried=record.message_id)
        end.save(
            tx,
            instance,
            status=InstanceStatus.RUNNING,
            error=None,
            failed_by=None,
            ended_at=None,
            history=history,
        )
        note(tx, instance, InstanceLogKind.REOPENED, message_id=record.message_id)
        for line in missed:
            if not _is_news_of(record, line):
                _send_again(tx, instance, line)


def streams_above(using: str, id: str) -> set[Stream]:
    """Return the streams of an instance and of all above it: those that a retry has to lock."""
    found = Instance.objects.using(using).light().filter(pk__in=_chain(using, id))
    instances = list(found)
    names = {instance.queue for instance in instances}
    queues = dict(Queue.objects.using(using).filter(name__in=names).values_list("name", "pk"))
    return {(queues[i.queue], i.stream) for i in instances if i.queue in queues}


class _Judgement:
    """One record, and the instances above it as they stand."""

    def __init__(
        self,
        record: PoisonRecord,
        locked: Mapping[str, Instance],
        told: list[Message],
        now: datetime,
    ) -> None:
        self.record = record
        self.locked = locked
        self.told = told
        self.now = now
        self.plan = Plan()

    def of(self, owner: Instance) -> Plan | str:
        """Judge the owner of the message itself, then whoever failed with it."""
        record = self.record
        if owner.execution_id != record.execution_id and not self._is_raised(owner):
            return Refusal(
                RefusalReason.INSTANCE_CONTINUED, instance=owner.id, execution=owner.execution_id
            )
        if owner.status == InstanceStatus.COMPLETED:
            return Refusal(RefusalReason.INSTANCE_COMPLETED, instance=owner.id)
        if owner.status == InstanceStatus.FAILED:
            return self._reopen(owner)
        if record.kind != Kind.ACTIVITY:
            return self.plan  # nothing to undo: its event is still wanted
        what = f"{record.name}#{record.activity_id}"
        return self._withdraw(owner, record.activity_id, what) or self.plan

    def _is_raised(self, owner: Instance) -> bool:
        """What was raised reaches the executions that continue the one it was raised for."""
        first, last = owner.first_execution_id, owner.execution_id
        return self.record.activity_id is None and first <= (self.record.execution_id or 0) <= last

    def _reopen(self, instance: Instance) -> Plan | str:
        if not has_failed(self.record, instance):
            return _failed_of_something_else(instance)
        self.plan.reopened.append(instance)
        parent = self.locked.get(instance.parent or "")
        if parent is None:
            return self.plan
        return self._judge_parent(instance, parent)

    def _judge_parent(self, child: Instance, parent: Instance) -> Plan | str:
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
        """Whether a parent did not wait for its child: the failure was nothing to it."""
        if parent.execution_id != before.parent_execution_id or parent.failed_by is not None:
            return False
        ends = parent.ended_at, before.ended_at
        return ends[0] is not None and ends[1] is not None and ends[0] < ends[1]

    def _withdraw(self, owner: Instance, activity_id: int | None, what: str) -> str:
        """Take back the news of a failure that its flow has not heard; say if it is too late."""
        for message in self.told:
            if message.instance == owner.id and message.activity_id == activity_id:
                if message.state(self.now) == "active":
                    return Refusal(RefusalReason.INSTANCE_BEING_TOLD, instance=owner.id, what=what)
                self.plan.withdrawn.append(message)
                return ""
        if str(activity_id) in owner.pending:
            return ""
        return Refusal(RefusalReason.INSTANCE_HANDLED, instance=owner.id, what=what)


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


def _no_owner(record: PoisonRecord) -> Refusal:
    return Refusal(RefusalReason.INSTANCE_GONE, instance=record.instance)


def _chain(using: str, id: str) -> list[str]:
    """Return the instance and all above it."""
    chain: list[str] = []
    rows = Instance.objects.using(using)
    above: str | None = id
    while above is not None and above not in chain:
        chain.append(above)
        above = rows.filter(pk=above).values_list("parent", flat=True).first()
    return chain


def _news(using: str, chain: list[str]) -> QuerySet[Message]:
    """Return the news of ends that are on their way to these instances."""
    rows = Message.objects.using(using).light().order_by("pk")
    return rows.filter(
        instance__in=chain,
        kind=Kind.ORCHESTRATION,
        activity_id__isnull=False,
        stream__isnull=False,
    )


def _missed(tx: Transaction, instance: Instance) -> list[InstanceEvent]:
    """Return what came since the instance failed, oldest first."""
    rows = InstanceEvent.objects.using(tx.using).filter(instance=instance.id).order_by("id")
    failed = rows.filter(event=InstanceLogKind.FAILED).values_list("id", flat=True).last() or 0
    late = rows.filter(id__gt=failed, event=InstanceLogKind.IGNORED)
    return [line for line in late if isinstance(line.data, dict) and "missed" in line.data]


def _is_news_of(record: PoisonRecord, line: InstanceEvent) -> bool:
    """Whether a missed event tells of this very death: it died once more, in a dead queue."""
    return (
        record.kind == Kind.ACTIVITY
        and line.instance == record.instance
        and line.activity_id == record.activity_id
        and line.data["missed"]["event"] == "activity_failed"
    )


def _send_again(tx: Transaction, instance: Instance, line: InstanceEvent) -> None:
    letter = Letter(
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
    end.deliver(letter, tx)
