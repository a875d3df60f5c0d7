"""Records, messages and their acts as table rows and as JSON objects, without payloads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..models import Kind, Message, PoisonRecord, Result, primary_alias
from ..models.message import ERROR_START
from ..operations import trail
from ..operations.task_calls import list_calls
from ..progress import read_progress, readable
from ..status import FailureReason
from ..text import terminal_line
from .output import Screen
from .text import ago

POISON = (
    "id",
    "message",
    "source",
    "queue",
    "name",
    "stream",
    "tried",
    "deaths",
    "died",
    "reason",
    "error",
)
MESSAGES = (
    "message",
    "source",
    "queue",
    "name",
    "stream",
    "state",
    "tried",
    "due",
    "sent",
    "reason",
    "error",
)


def poison_table(screen: Screen, records: Sequence[PoisonRecord], now: datetime) -> None:
    names = calls_of(records)
    screen.table(
        POISON,
        [
            (
                record.pk,
                record.message_id,
                source(record) or "-",
                record.queue,
                names.get(record.pk, record.name),
                record.stream or "-",
                tried(record.attempts, record.max_attempts),
                record.poison_count,
                ago(record.poisoned_at, now),
                reason(record.reason, record.last_failure_reason),
                record.last_error or record.verdict,
            )
            for record in records
        ],
    )


def poison_object(record: PoisonRecord) -> dict[str, Any]:
    return {
        "id": record.pk,
        "message_id": record.message_id,
        "queue": record.queue,
        "name": record.name,
        "kind": record.kind,
        "stream": record.stream,
        "halts": record.halts,
        "key": record.key,
        "priority": record.priority,
        "status": record.status,
        "attempts": record.attempts,
        "max_attempts": record.max_attempts,
        "poison_count": record.poison_count,
        "reason": FailureReason.read(record.reason).name,
        "verdict": record.verdict,
        "last_failure_reason": _name(record.last_failure_reason),
        "last_error": record.last_error,
        "exception": record.exception,
        "frame": record.frame,
        "fingerprint": record.fingerprint,
        "release": record.release or None,
        "instance": record.instance,
        "execution_id": record.execution_id,
        "activity_id": record.activity_id,
        "source_id": record.source_id,
        "origin": record.origin,
        "original_created_at": record.original_created_at,
        "poisoned_at": record.poisoned_at,
        "poisoned_by": record.poisoned_by,
    }


def message_table(screen: Screen, messages: Sequence[Message], now: datetime) -> None:
    names = calls_of(messages)
    screen.table(
        MESSAGES,
        [
            (
                message.pk,
                source(message) or "-",
                message.queue.name,
                names.get(message.pk, message.name),
                message.stream or "-",
                message.state(now),
                message.attempts,
                ago(message.available_at, now),
                ago(message.created_at, now),
                (_name(message.failure_reason) or "-").lower(),
                _error(message) or "-",
            )
            for message in messages
        ],
    )


def message_object(message: Message, now: datetime) -> dict[str, Any]:
    return {
        "message_id": message.pk,
        "queue": message.queue.name,
        "name": message.name,
        "kind": message.kind,
        "stream": message.stream,
        "key": message.key,
        "priority": message.priority,
        "state": str(message.state(now)),
        "status": message.status,
        "attempts": message.attempts,
        "poison_count": message.poison_count,
        "available_at": message.available_at,
        "released_at": message.released_at,
        "expires_at": message.expires_at,
        "worker": message.worker,
        "failure_reason": _name(message.failure_reason),
        "error": _error(message),
        "instance": message.instance,
        "execution_id": message.execution_id,
        "activity_id": message.activity_id,
        "source_id": message.source_id,
        "origin": message.origin,
        "created_at": message.created_at,
    }


def calls_of(rows: Sequence[PoisonRecord | Message | Result]) -> dict[int, str]:
    """Return the rows that are tasks as calls, `shop.tasks.welcome(user_id=7)`, by their keys."""
    tasks = {row.pk: row for row in rows if row.kind == Kind.TASK}
    if not tasks:
        return {}
    first = rows[0]
    calls = list_calls(type(first), tasks, using=primary_alias(first._state.db))
    modules = {pk: tasks[pk].name.rpartition(".")[0] for pk in calls}
    return {pk: f"{modules[pk]}.{call}" if modules[pk] else call for pk, call in calls.items()}


def audit_lines(message_id: int, now: datetime, *, using: str) -> list[str]:
    """Return the acts of people on a message, newest first, under a heading; [] if none."""
    lines = []
    for item in trail(message_id, using=using):
        entry = item.entry
        outcome = f" → {item.get_outcome_display()}" if item.outcome else ""
        why = f": {entry.why}" if entry.why else ""
        text = f"{ago(entry.at, now)} {entry.act} by {entry.by or '?'}{why}{outcome}"
        lines.append("  " + terminal_line(text, width=400))
    return ["", "what people did (newest first)", *lines] if lines else []


def audit_objects(message_id: int, *, using: str) -> list[dict[str, Any]]:
    """Return the acts of people on a message, newest first."""
    return [
        {
            "entry": item.entry_id,
            "at": item.entry.at,
            "by": item.entry.by,
            "act": item.entry.act,
            "why": item.entry.why,
            "outcome": item.get_outcome_display() if item.outcome else None,
        }
        for item in trail(message_id, using=using)
    ]


def show_progress(row: PoisonRecord | Message | Result, now: datetime) -> str:
    """Return what a handler reported last, or ""."""
    found = read_progress(row.progress)
    if found is None:
        return ""
    text = f"{_number(found.done)} done"
    if found.total is not None:
        text = f"{_number(found.done)} of {_number(found.total)} ({found.percent} %)"
    when = f"{found.at:%Y-%m-%d %H:%M:%S %Z}, {ago(found.at, now)}" if found.at else ""
    return ", ".join(part for part in (text, found.note, when) if part)


def _number(value: float) -> str:
    shown = readable(value)
    return shown if isinstance(shown, str) else f"{shown:,}"


def source(row: PoisonRecord | Message) -> str | None:
    """Return the id that a message had in its origin, or in the queue it died in."""
    if row.source_id is None:
        return None
    return f"#{row.source_id}" if row.origin is None else f"{row.origin}#{row.source_id}"


def tried(attempts: int, limit: int | None) -> str:
    return f"{attempts}/{'∞' if limit is None else max(limit, 1)}"


def reason(verdict: int, last: int | None) -> str:
    """Return why a message died; for one that used up its attempts, its last failure."""
    found = FailureReason.read(verdict)
    if found == FailureReason.POISON_MESSAGE and last is not None:
        found = FailureReason.read(last)
    return found.name.lower()


def _error(message: Message) -> str | None:
    """Return the start of the error; `light` rows have it only `with_error_start`."""
    if "error" in message.get_deferred_fields():
        return getattr(message, "error_start", None)
    return message.error[:ERROR_START] if message.error else message.error


def _name(number: int | None) -> str | None:
    return None if number is None else FailureReason.read(number).name
