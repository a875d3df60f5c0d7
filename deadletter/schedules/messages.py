"""What a schedule sends: a message, or a task with arguments, checked as `send` checks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ..conf import get_settings
from ..exceptions import DeadletterError, MessageRejected
from ..lifecycle.enqueue import (
    Outgoing,
    StoredMessage,
    check_message,
    check_name,
    find_queue,
    store_message,
)
from ..lifecycle.internal_queue import PREFIX as INTERNAL_PREFIX
from ..lifecycle.internal_queue import QUEUE as INTERNAL_QUEUE
from ..lifecycle.transaction import Transaction
from ..models import Damaged, Kind, Queue, Schedule
from ..tasks import lookup
from ..text import short_repr

#: The headers that say to a handler which schedule sent its message, and for which moment (ISO
#: 8601, UTC). A message of "run now" has no moment.
NAME_HEADER, MOMENT_HEADER = "schedule", "schedule-moment"
DEFAULT_QUEUE = "default"


class CannotFire(DeadletterError):
    """A schedule cannot send its message. `field` is the field of the schedule that is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True)
class ScheduledMessage:
    """A message that is ready to be stored."""

    outgoing: Outgoing
    queue: str
    kind: str
    #: Called with the stored message after the commit, if it is new.
    announce: Callable[[Any], object] | None = None


def check(schedule: Schedule, *, using: str) -> None:
    """
    Refuse a schedule whose message could not be sent now: queue, task, payload, labels.

    Raises: CannotFire naming the field.
    """
    item = _build(schedule)
    try:
        check_message(item.outgoing, get_settings().payload_limit, kind=item.kind)
        _check_queue(check_name("queue", item.queue), using)
    except MessageRejected as error:
        raise _as_problem(error) from error


def send(tx: Transaction, schedule: Schedule, *, moment: datetime | None = None) -> StoredMessage:
    """
    Store the message of a schedule in a transaction; with a taken key, the message that has it.

    Raises: CannotFire.
    """
    item = _build(schedule, moment)
    try:
        _check_queue(item.queue, tx.using)
        stored = store_message(item.outgoing, queue=item.queue, kind=item.kind, using=tx.using)
    except MessageRejected as error:
        raise _as_problem(error) from error
    if item.announce is not None and stored.is_new:
        tx.after_commit(partial(item.announce, stored.message))
    return stored


def _check_queue(name: str, using: str) -> None:
    """
    Refuse the queues in which a message of a schedule would never run.

    Raises: MessageRejected, CannotFire.
    """
    if name == INTERNAL_QUEUE:
        raise CannotFire("queue", f"{name} is the internal queue of deadletter")
    queue = find_queue(name, using)
    if Queue.objects.using(using).filter(dead_queue=queue).exists():
        raise CannotFire("queue", f"{name} is a dead queue: workers take no messages from it")


def _build(schedule: Schedule, moment: datetime | None = None) -> ScheduledMessage:
    if schedule.target.startswith(INTERNAL_PREFIX):
        # Bulk jobs and notices: whoever may edit schedules need not be allowed what they do.
        raise CannotFire("target", f"{short_repr(schedule.target)} is internal to deadletter")
    if isinstance(schedule.payload, Damaged):
        raise CannotFire("payload", "what is stored is no JSON; give it a new one")
    headers = schedule.headers
    if headers is not None and not isinstance(headers, dict):
        raise CannotFire("headers", "expected a dict")
    known = {NAME_HEADER: schedule.name}
    if moment is not None:
        known[MOMENT_HEADER] = moment.astimezone(UTC).isoformat()
    own: dict[str, Any] = {**(headers or {}), **known}
    if schedule.kind == Kind.TASK:
        return _task(schedule, own)
    outgoing = Outgoing(
        schedule.target,
        schedule.payload,
        stream=schedule.stream or None,
        key=schedule.key or None,
        priority=schedule.priority or 0,
        expires_in=schedule.expires_in,
        headers=own,
    )
    return ScheduledMessage(outgoing, schedule.queue or DEFAULT_QUEUE, Kind.MESSAGE.value)


def _task(schedule: Schedule, headers: dict[str, Any]) -> ScheduledMessage:
    """
    Return the message of a task as its backend would store it, with what the schedule gives.

    The path is resolved as the worker resolves those of messages: nothing but a task is imported or
    called, and only from the modules that may have tasks.
    """
    from ..tasks import calls, execution
    from ..tasks.backend import DeadletterBackend
    from ..tasks.task_results import new_result

    task = lookup.find(schedule.target)
    if task is None:
        raise CannotFire(
            "target",
            f"there is no task {short_repr(schedule.target)} in this process: its module must be "
            "that of an installed app or named in TASK_MODULES, and must be importable",
        )
    try:
        backend = task.get_backend()
    except Exception as error:  # each framework has its own
        raise CannotFire("target", f"the backend of {schedule.target}: {error}") from error
    if not isinstance(backend, DeadletterBackend):
        raise CannotFire(
            "target", f"the task {schedule.target} has another backend than deadletter's"
        )
    try:
        lookup.check_payload(schedule.target, schedule.payload)
        args, kwargs = calls.read_payload(schedule.payload)
        outgoing = backend.outgoing(task)(args, kwargs)
    except MessageRejected as error:
        raise _as_problem(error) from error
    except TypeError as error:
        raise CannotFire("payload", str(error)) from error
    changes: dict[str, Any] = {"headers": {**(outgoing.headers or {}), **headers}}
    for name in ("stream", "key", "expires_in"):
        if value := getattr(schedule, name):
            changes[name] = value
    if schedule.priority is not None:
        changes["priority"] = schedule.priority
    alias, framework = backend.alias, backend.framework

    def announce(message: Any) -> None:
        result = new_result(task, message, backend=alias, framework=framework)
        execution.tell_enqueued(framework, result)

    queue = schedule.queue or task.queue_name
    return ScheduledMessage(outgoing._replace(**changes), queue, Kind.TASK.value, announce)


def _as_problem(error: MessageRejected) -> CannotFire:
    field = "target" if error.field == "name" else error.field
    known = field in Schedule.DEFINITION
    return CannotFire(field if known else "payload", error.problem if known else str(error))
