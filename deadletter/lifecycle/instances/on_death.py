"""Whose message died? Its instance is told in the transaction of the quarantine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...error_details import (
    Activity,
    ErrorDetails,
    FailedDeserialization,
    MessageType,
    Orchestration,
)
from ...instance_events import ActivityFailed
from ...models import Damaged, Instance, InstanceStatus, Kind, Message
from ...status import FailureReason
from ...text import storable_text
from ..transaction import Transaction
from . import end
from .post import event_letter


@dataclass(frozen=True, kw_only=True)
class Dead:
    """What an owner is told of a message that leaves its queue for good."""

    id: int
    kind: str
    name: str
    queue: str
    instance: str
    execution_id: int | None
    activity_id: int | None
    attempts: int
    max_attempts: int | None
    last_error: str | None
    #: Why it leaves, as its poison record says.
    reason: FailureReason = FailureReason.POISON_MESSAGE
    verdict: str = ""


def tell(tx: Transaction, deaths: Sequence[Dead]) -> None:
    """
    Send each dead activity's failure to its flow; fail the instances whose own messages died.

    The rows of the messages are still there and locked; instances are locked here, after them.
    """
    ids = [dead.id for dead in deaths]
    rows = Message.objects.using(tx.using).filter(pk__in=ids)
    payloads = dict(rows.values_list("pk", "payload"))
    owners = lock(tx, {dead.instance for dead in deaths if dead.kind != Kind.ACTIVITY})
    # An activity only sends a message: its owner may be busy with a turn, and is not waited for.
    others = {dead.instance for dead in deaths} - owners.keys()
    read = Instance.objects.using(tx.using).without_bodies().filter(pk__in=others)
    known = {instance.id: instance for instance in read}
    for dead in deaths:
        error = _error(dead, payloads.get(dead.id))
        if dead.kind == Kind.ACTIVITY:
            _tell_flow(tx, dead, error, {**known, **owners})
        else:
            _fail_owner(tx, dead, error, payloads.get(dead.id), owners)


def lock(tx: Transaction, ids: Collection[str]) -> dict[str, Instance]:
    """Lock instances by id, after streams and messages."""
    if not ids:
        return {}
    rows = Instance.objects.using(tx.using).select_for_update().order_by("pk")
    return {instance.id: instance for instance in rows.filter(pk__in=list(ids))}


def why_unwanted(
    instance: Instance,
    *,
    execution_id: int | None,
    activity_id: int | None,
    event: object,
) -> str:
    """Say why an event no longer concerns an instance; empty: it does. `event` is its name."""
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
    """Say why an event would not concern an instance even if it were running; empty: it would."""
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


def _tell_flow(
    tx: Transaction, dead: Dead, error: ErrorDetails, owners: Mapping[str, Instance]
) -> None:
    owner = owners.get(dead.instance)
    if owner is None or dead.activity_id is None:
        return
    failed = ActivityFailed(activity_id=dead.activity_id, name=dead.name, error=error)
    letter = event_letter(
        owner, failed, execution_id=dead.execution_id or 0, activity_id=dead.activity_id
    )
    end.deliver(letter, tx, or_in=dead.queue)


def _fail_owner(
    tx: Transaction,
    dead: Dead,
    error: ErrorDetails,
    payload: object,
    owners: dict[str, Instance],
) -> None:
    event = payload.get("event") if isinstance(payload, dict) else None
    owner = owners.get(dead.instance)
    if owner is None and (event not in (None, "started") or dead.activity_id is not None):
        return  # it ended and was forgotten; this is not how it began
    if owner is None:
        owner = owners[dead.instance] = unknown(tx, dead.instance, dead.name, dead.queue)
        owner.execution_id = owner.first_execution_id = dead.execution_id or 1
        owner.save(using=tx.using, force_insert=True)
    if not why_unwanted(
        owner, execution_id=dead.execution_id, activity_id=dead.activity_id, event=event
    ):
        end.fail(tx, owner, error, failed_by=dead.id)


def unknown(tx: Transaction, id: str, name: str, queue: str) -> Instance:
    """Return a row for an instance that has messages and no row: its start was lost."""
    now = tx.time()
    return Instance(
        id=id,
        name=name,
        queue=queue,
        status=InstanceStatus.RUNNING,
        created_at=now,
        updated_at=now,
    )


def _error(dead: Dead, payload: object) -> ErrorDetails:
    kind: MessageType
    if isinstance(payload, Damaged):
        kind = FailedDeserialization(payload.problem)
    elif dead.kind == Kind.ACTIVITY:
        kind = Activity(dead.name, dead.activity_id)
    else:
        kind = Orchestration(dead.instance, dead.execution_id)
    return ErrorDetails.Poison(
        attempts=dead.attempts,
        max_attempts=dead.max_attempts,
        last_error=None if dead.last_error is None else storable_text(dead.last_error),
        message_type=kind,
        instance=dead.instance,
        execution_id=dead.execution_id,
        message_id=dead.id,
        reason=dead.reason,
        verdict=dead.verdict,
    )
