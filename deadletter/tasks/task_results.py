"""
Results of tasks: read from the row of the message, its poison record or the table of results.

A task that waits or runs is a message, a dead one is a poison record or lies in a dead queue, and
one that has ended has a row in the table of results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.utils.dateparse import parse_datetime

from .. import clock
from ..status import FailureReason
from . import calls, frameworks, lookup
from .frameworks import Framework
from .result_rows import find_row
from .task_class import missing_task, restore

if TYPE_CHECKING:
    from ..lifecycle import Claimed
    from ..lifecycle.dead_queues import OriginalDeath
    from ..models import Message, PoisonRecord, Result

#: Headers of a task: the alias of its backend, if it is not "default", and its `run_after`.
BACKEND_HEADER, RUN_AFTER_HEADER = "task-backend", "task-run-after"
#: Ids above this cannot exist.
_LARGEST = 2**63 - 1


class ResultMethods:
    """What deadletter adds to a result."""

    __slots__ = ()

    @property
    def message_id(self) -> int:
        return int(self.id)  # type: ignore[attr-defined]

    def refresh(self) -> None:
        """Read the result again."""
        backend = self.task.get_backend()  # type: ignore[attr-defined]
        self._copy(backend.get_result(self.id))  # type: ignore[attr-defined]

    async def arefresh(self) -> None:
        await sync_to_async(self.refresh)()

    def _copy(self, other: Any) -> None:
        for name in _REFRESHED:
            object.__setattr__(self, name, getattr(other, name))


_REFRESHED = (
    "errors",
    "_return_value",
    "finished_at",
    "started_at",
    "last_attempted_at",
    "status",
    "enqueued_at",
    "worker_ids",
    "state",
    "progress",
)


@cache
def make_result_class(framework: Framework) -> Any:
    """Return the class of results that extends the one of a framework."""
    base = framework.task_result

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Made(ResultMethods, base):  # type: ignore[misc,valid-type]
        #: What deadletter calls the state: a `State`, or a `ResultOutcome` when the task has ended.
        state: str = "pending"
        #: The last report of the task: {"done", "total", "note", "at"}.
        progress: Mapping[str, Any] | None = None

    # A name of its own in this module, so that results can be pickled.
    Made.__module__ = __name__
    Made.__name__ = Made.__qualname__ = _class_name(framework.name)
    setattr(sys.modules[__name__], Made.__name__, Made)
    return Made


def _class_name(framework: str) -> str:
    return f"DeadletterResult_{framework.replace('.', '__')}"


def __getattr__(name: str) -> Any:
    """Make the classes of the frameworks when a pickle names them."""
    for framework in frameworks.NAMES:
        if name == _class_name(framework) and frameworks.exists(framework):
            return make_result_class(frameworks.load(framework))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get_result(result_id: Any, *, framework: Framework, using: str) -> Any | None:
    """Return the result of a task in whatever state it is, or None if no such task is known."""
    from ..models import Kind

    message_id = read_id(result_id)
    if message_id is None:
        return None
    row = find_row(message_id, using=using)
    if row is None or row.kind != Kind.TASK:
        return None
    return _build(row, framework, using)


def read_id(result_id: Any) -> int | None:
    """Return the id of a message from the id of a result, or None if it cannot be one."""
    text = str(result_id)
    is_number = text.isascii() and text.isdigit() and len(text) <= 19
    return int(text) if is_number and int(text) <= _LARGEST else None


def new_result(task: Any, message: Message, *, backend: str, framework: Framework) -> Any:
    """Return the result of a task that was just enqueued."""
    args, kwargs = calls.read_payload(message.payload)
    due = message.available_at
    return make_result_class(framework)(
        task=task,
        id=str(message.pk),
        status=framework.status.READY,
        enqueued_at=message.created_at,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
        state="scheduled" if due is not None and due > message.created_at else "pending",
    )


def running_result(
    task: Any, message: Claimed, *, framework: Framework, workers: Sequence[str], at: datetime
) -> Any:
    """Return the result of a task that is being executed, without reading a row."""
    args, kwargs = calls.read_payload(message.payload)
    return make_result_class(framework)(
        task=task,
        id=str(message.id),
        status=framework.status.RUNNING,
        enqueued_at=message.created_at,
        started_at=at,
        last_attempted_at=at,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=list(workers),
        state="active",
    )


def _build(row: Message | PoisonRecord | Result, framework: Framework, using: str) -> Any:
    from ..models import Message, PoisonRecord

    if isinstance(row, Message):
        facts = _of_message(row, using)
    elif isinstance(row, PoisonRecord):
        facts = _of_poison(row)
    else:
        facts = _of_result(row)
    args, kwargs = _arguments(row.payload)
    headers = row.headers if isinstance(row.headers, dict) else {}
    alias = _text(headers.get(BACKEND_HEADER)) or "default"
    result = make_result_class(framework)(
        task=_task(row, alias, headers, framework),
        id=str(facts.id),
        status=framework.status[facts.status],
        enqueued_at=facts.enqueued_at,
        started_at=facts.started_at,
        last_attempted_at=facts.attempted_at,
        finished_at=facts.finished_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[framework.task_error(**error) for error in facts.errors],
        worker_ids=facts.workers,
        state=facts.state,
        progress=row.progress,
    )
    object.__setattr__(result, "_return_value", facts.value)
    return result


@dataclass(frozen=True)
class _Facts:
    """What the rows of the three tables say in their own ways."""

    id: int
    status: str
    state: str
    enqueued_at: datetime
    started_at: datetime | None
    attempted_at: datetime | None
    finished_at: datetime | None
    errors: list[dict[str, str]]
    workers: list[str]
    value: Any = None


def _of_message(row: Message, using: str) -> _Facts:
    from ..lifecycle.dead_queues import read_original_death
    from ..models import State

    death = read_original_death(row)
    if death is not None:
        return _of_death(row, death)
    # Where the time is the server's, it was read with the row.
    now = clock.transaction_time(connections[using]) or row.read_at  # type: ignore[attr-defined]
    entries = _entries(row.history)
    state = row.state(now)
    is_running = state == State.ACTIVE
    last = _running_since(row, using, now) if is_running else _began(entries[-1:])
    workers = _names(row.workers)
    if is_running and row.worker:
        workers.append(row.worker)
    return _Facts(
        id=row.pk,
        status="RUNNING" if is_running else "READY",
        state=str(state),
        enqueued_at=row.created_at,
        started_at=_began(entries[:1]) or last,
        attempted_at=last,
        finished_at=None,
        errors=[_error(entry) for entry in entries],
        workers=workers,
    )


def _of_death(row: Message, death: OriginalDeath) -> _Facts:
    """Return what a message in a dead queue says of its first death."""
    from ..models import State

    entries = _entries(row.history)
    return _Facts(
        id=death.message_id,
        status="FAILED",
        state=State.DEAD.value,
        enqueued_at=death.created_at or row.created_at,
        started_at=_began(entries[:1]),
        attempted_at=_began(entries[-1:]),
        finished_at=row.died_at,
        errors=_errors_of_death(entries, death.reason, death.failure_reason, death.verdict),
        workers=_names(row.workers),
    )


def _of_poison(row: PoisonRecord) -> _Facts:
    from ..models import State, is_moved

    entries = _entries(row.history)
    return _Facts(
        id=row.source_id if is_moved(row) and row.source_id is not None else row.message_id,
        status="FAILED",
        state=State.DEAD.value,
        enqueued_at=row.original_created_at,
        started_at=_began(entries[:1]),
        attempted_at=_began(entries[-1:]),
        finished_at=row.poisoned_at,
        errors=_errors_of_death(entries, row.reason, row.last_failure_reason, row.verdict),
        workers=_names(row.workers),
    )


def _of_result(row: Result) -> _Facts:
    from ..models import ResultOutcome

    entries = _entries(row.history)
    is_successful = row.outcome == ResultOutcome.SUCCESSFUL
    errors = [_error(entry) for entry in entries]
    if row.outcome == ResultOutcome.CANCELLED or not (is_successful or errors):
        errors.append({"exception_class_path": _PLAIN_ERROR, "traceback": row.outcome})
    return _Facts(
        id=row.pk,
        status="SUCCESSFUL" if is_successful else "FAILED",
        state=row.outcome,
        enqueued_at=row.created_at,
        started_at=_began(entries[:1]) or row.attempted_at,
        attempted_at=row.attempted_at or _began(entries[-1:]),
        finished_at=row.finished_at,
        errors=errors,
        workers=_names(row.workers),
        value=row.value if is_successful else None,
    )


def _task(
    row: Message | PoisonRecord | Result,
    alias: str,
    headers: Mapping[str, Any],
    framework: Framework,
) -> Any:
    """Return the task of a row with the values it was enqueued with, even if its code is gone."""
    values = {
        "priority": -row.priority,
        "queue_name": _queue_name(row),
        "backend": alias,
        "run_after": _moment(headers.get(RUN_AFTER_HEADER)),
    }
    found = lookup.find(row.name)
    if found is None:
        return missing_task(row.name, framework, **values)
    return restore(found, **values)


def _queue_name(row: Any) -> Any:
    """Return the queue that a task was enqueued in; a message has its name beside its columns."""
    from ..lifecycle.dead_queues import read_original_death
    from ..models import Message, Result

    death = None if isinstance(row, Result) else read_original_death(row)
    if death is not None and death.queue:
        return death.queue
    return getattr(row, "queue_name" if isinstance(row, Message) else "queue")


_PLAIN_ERROR = "deadletter.exceptions.DeadletterError"
_LOST_ERROR = "deadletter.exceptions.WorkerLost"


def _entries(history: Any) -> list[dict[str, Any]]:
    """Return the failed attempts of a history, without edits by people."""
    if not isinstance(history, list):
        return []
    found = [entry for entry in history if isinstance(entry, dict)]
    return [entry for entry in found if entry.get("reason") != FailureReason.OPERATOR]


def _errors_of_death(
    entries: Sequence[Mapping[str, Any]], reason: Any, failure_reason: Any, verdict: str
) -> list[dict[str, str]]:
    """Return the failed attempts, and the verdict if it was not the last attempt that decided."""
    errors = [_error(entry) for entry in entries]
    by_attempts = reason == FailureReason.POISON_MESSAGE and failure_reason is not None
    if not by_attempts or not errors:
        errors.append({"exception_class_path": _PLAIN_ERROR, "traceback": verdict})
    return errors


def _error(entry: Mapping[str, Any]) -> dict[str, str]:
    path = _text(entry.get("exception"))
    if not path:
        path = _LOST_ERROR if entry.get("reason") == FailureReason.WORKER_LOST else _PLAIN_ERROR
    elif "." not in path:
        path = f"builtins.{path}"
    trace = _text(entry.get("traceback")) or _text(entry.get("error")) or ""
    return {"exception_class_path": path, "traceback": trace}


def _began(entries: Sequence[Mapping[str, Any]]) -> datetime | None:
    """Return when the attempt of an entry began: its end less its duration."""
    if not entries:
        return None
    end = _moment(entries[0].get("at"))
    return None if end is None else _before(end, entries[0].get("seconds"))


def _running_since(row: Message, using: str, now: datetime) -> datetime | None:
    """
    Return about when the running attempt began.

    A worker writes every few seconds what it runs and for how long. A message that it has not
    listed yet has not had its lease renewed: it was leased for the time of its queue.
    """
    from ..models import WorkerProcess

    rows = WorkerProcess.objects.using(using).filter(name=row.worker)
    seen_at: datetime
    for seen_at, running in rows.values_list("seen_at", "running"):
        for item in running if isinstance(running, list) else ():
            if isinstance(item, dict) and item.get("id") == row.pk:
                return _before(seen_at, item.get("seconds"))
    if row.available_at is None:
        return None
    leased = _before(row.available_at, row.queue.lease_timeout.total_seconds())
    since: datetime = min(now, max(row.created_at, leased))
    return since


def _before(end: datetime, seconds: Any) -> datetime:
    """Return a time so many seconds earlier; the same time if the number is damaged."""
    try:
        return end - timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        return end


def _names(workers: Any) -> list[str]:
    return [str(name) for name in workers] if isinstance(workers, list) else []


def _arguments(payload: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a payload; a payload that is no call has none."""
    try:
        return calls.read_payload(payload)
    except ValueError:
        return [], {}


def _moment(value: Any) -> datetime | None:
    try:
        found = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
