"""A message of an instance dies: the instance is notified in the transaction of the quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...error_details import (
    Activity,
    ErrorDetails,
    FailedDeserialization,
    MessageType,
    Orchestration,
)
from ...instance_events import ActivityFailed
from ...models import Damaged, Instance, Kind, Message
from ...status import FailureReason
from ...text import storable_text
from ..transaction import Transaction
from .end import fail_instance
from .post import event_message, post_or_log
from .rows import lock_instances, new_instance, why_unwanted


@dataclass(frozen=True, kw_only=True)
class DeadMessage:
    """A message of an instance that leaves its queue for good."""

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


def notify_instances(tx: Transaction, dead: Sequence[DeadMessage]) -> None:
    """
    Send the failure of each dead activity to its flow; fail instances whose own messages died.

    The rows of the messages still exist and are locked; instances are locked here, after them.
    """
    rows = Message.objects.using(tx.using).filter(pk__in=[message.id for message in dead])
    payloads = dict(rows.values_list("pk", "payload"))
    locked = lock_instances(
        tx, {message.instance for message in dead if message.kind != Kind.ACTIVITY}
    )
    # A dead activity only posts an event: its instance may be in a turn, and is not locked for it.
    others = {message.instance for message in dead} - locked.keys()
    read = Instance.objects.using(tx.using).without_bodies().filter(pk__in=others)
    unlocked = {instance.id: instance for instance in read}
    for message in dead:
        payload = payloads.get(message.id)
        error = _error(message, payload)
        if message.kind == Kind.ACTIVITY:
            _post_activity_failed(tx, message, error, {**unlocked, **locked})
        else:
            _fail_instance_of(tx, message, error, payload, locked)


def _post_activity_failed(
    tx: Transaction, dead: DeadMessage, error: ErrorDetails, instances: Mapping[str, Instance]
) -> None:
    instance = instances.get(dead.instance)
    if instance is None or dead.activity_id is None:
        return
    failed = ActivityFailed(activity_id=dead.activity_id, name=dead.name, error=error)
    message = event_message(
        instance, failed, execution_id=dead.execution_id or 0, activity_id=dead.activity_id
    )
    post_or_log(tx, message, fallback_queue=dead.queue)


def _fail_instance_of(
    tx: Transaction,
    dead: DeadMessage,
    error: ErrorDetails,
    payload: object,
    locked: dict[str, Instance],
) -> None:
    event = payload.get("event") if isinstance(payload, dict) else None
    instance = locked.get(dead.instance)
    if instance is None and (event not in (None, "started") or dead.activity_id is not None):
        return  # the instance ended and was deleted; only its first message would create it again
    if instance is None:
        instance = locked[dead.instance] = new_instance(tx, dead.instance, dead.name, dead.queue)
        instance.execution_id = instance.first_execution_id = dead.execution_id or 1
        instance.save(using=tx.using, force_insert=True)
    if not why_unwanted(
        instance, execution_id=dead.execution_id, activity_id=dead.activity_id, event=event
    ):
        fail_instance(tx, instance, error, failed_by=dead.id)


def _error(dead: DeadMessage, payload: object) -> ErrorDetails:
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
