"""manage.py deadletter show: everything about single records or messages."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

from .. import clock
from ..lifecycle.dead_queues import read_original_death
from ..models import Damaged, Kind, Message, PoisonRecord, Result, is_moved
from ..operations import (
    find_moved,
    get_message,
    get_poison,
    get_result,
    get_stream,
    redact,
    redact_history,
    whereabouts,
)
from ..operations.task_calls import show_call
from ..status import FailureReason, Status
from ..text import terminal_line, terminal_paragraph
from .args import add_common, alias, number
from .lookup import where_now, why_no_message, why_no_poison
from .output import Screen, usage
from .results import result_object, result_page
from .rows import (
    audit_lines,
    audit_objects,
    message_object,
    poison_object,
    reason,
    show_progress,
    source,
    tried,
)
from .text import ago, lasted

HELP = "show everything about poison records or, with --message, about messages"
#: Characters of a payload, and of an error or traceback; --full shows everything.
_PAYLOAD, _TEXT = 65_536, 4_000


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", type=number, metavar="ID", help="ids of poison records")
    parser.add_argument("--message", nargs="+", type=number, metavar="ID", default=[])
    parser.add_argument("--reveal", action="store_true", help="show secrets")
    parser.add_argument("--full", action="store_true", help="every traceback, and texts in full")
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    if bool(options["ids"]) == bool(options["message"]):
        raise usage("name ids of poison records, or --message ids")
    wanted = [(False, id) for id in options["ids"]] + [(True, id) for id in options["message"]]
    found: list[tuple[int | None, PoisonRecord | Message | Result]] = []
    missing = []
    for by_message, id in wanted:
        row = _find(id, by_message, options)
        if row is None:
            missing.append((why_no_message if by_message else why_no_poison)(id, options))
        else:
            found.append((id if by_message else None, row))
    now = clock.now(alias(options))
    if screen.as_json:
        screen.json([_any_object(row, now, options) for _id, row in found])
    else:
        for id, row in found:
            screen.lines([*_any_page(id, row, now, options), ""])
    screen.say(*(terminal_line(text) for text in missing))
    return 1 if missing else 0


def _any_object(
    row: PoisonRecord | Message | Result, now: datetime, options: dict[str, Any]
) -> dict[str, Any]:
    if isinstance(row, Result):
        return result_object(row, options)
    return _object(row, now, options)


def _any_page(
    id: int | None, row: PoisonRecord | Message | Result, now: datetime, options: dict[str, Any]
) -> list[str]:
    if isinstance(row, Result):
        return result_page(row, now, options)
    return [*_moved_from(id, row), *_page(row, now, options)]


def _find(
    id: int, by_message: bool, options: dict[str, Any]
) -> PoisonRecord | Message | Result | None:
    using = alias(options)
    if not by_message:
        return get_poison(id, using=using)
    place = whereabouts(id, using=using)
    if place is not None and place[1]:
        return get_poison(place[1], using=using)
    found = get_message(id, using=using) or find_moved(id, using=using)
    return found or get_result(id, using=using)


def _moved_from(asked: int | None, row: PoisonRecord | Message) -> list[str]:
    """Return where a message is now, if it was named by the id it had before it was moved."""
    death = read_original_death(row)
    if death is None or asked != death.message_id:
        return []
    where = f"queue {death.queue}" if death.queue else "a queue that is not recorded"
    return [terminal_line(f"message {asked} died in {where} and is {where_now(row)}")]


def _death(row: PoisonRecord | Message) -> list[tuple[str, object]]:
    """Return where, when and why a message died that was moved to a dead queue."""
    death = read_original_death(row)
    if death is None:
        return []
    cause = death.cause.name.lower() if death.cause else None
    return [
        ("before", f"message {death.message_id}"),
        ("died in", f"queue {death.queue}" if death.queue else "not recorded"),
        ("died of", ": ".join(part for part in (cause, death.verdict) if part)),
        ("its error", death.error),
        ("died at", death.at and f"{death.at:%Y-%m-%d %H:%M:%S %Z}"),
        ("moved by", death.by),
        ("had key", death.key),
    ]


def _death_object(row: PoisonRecord | Message) -> dict[str, Any] | None:
    death = read_original_death(row)
    if death is None:
        return None
    return {
        "message_id": death.message_id,
        "queue": death.queue,
        "reason": death.reason and death.reason.name,
        "last_failure_reason": death.failure_reason and death.failure_reason.name,
        "verdict": death.verdict,
        "error": death.error,
        "attempts": death.attempts,
        "max_attempts": death.max_attempts,
        "fingerprint": death.fingerprint,
        "exception": death.exception,
        "frame": death.frame,
        "by": death.by,
        "at": death.at,
        "key": death.key,
    }


def _object(row: PoisonRecord | Message, now: datetime, options: dict[str, Any]) -> dict[str, Any]:
    dead = isinstance(row, PoisonRecord)
    found = poison_object(row) if isinstance(row, PoisonRecord) else message_object(row, now)
    hide = not options["reveal"]
    is_task = row.kind == Kind.TASK
    return found | {
        "state": "dead" if dead else found["state"],
        "call": show_call(row.name, row.payload, reveal=not hide) if is_task else None,
        "payload": _value(row.payload, hide),
        "headers": _value(row.headers, hide),
        "death": _death_object(row),
        "progress": row.progress,
        "history": redact_history(row.history) if hide else row.history,
        "audit": audit_objects(_message_id(row), using=alias(options)),
        "commands": _commands(row, now),
    }


def _page(row: PoisonRecord | Message, now: datetime, options: dict[str, Any]) -> list[str]:
    limit = 10**9 if options["full"] else _TEXT
    if isinstance(row, PoisonRecord):
        lines = _poison_head(row, now, limit)
    else:
        lines = _message_head(row, now, limit)
    lines += _stream(row, now, options)
    hide = not options["reveal"]
    if row.kind == Kind.TASK:
        call = show_call(row.name, row.payload, reveal=not hide)
        lines += ["", "call", f"  {terminal_line(call)}"]
    lines += ["", "payload" + (" (secrets hidden; --reveal shows them)" if hide else "")]
    lines += _pretty(row.payload, hide, 10**9 if options["full"] else _PAYLOAD)
    if row.headers:
        lines += ["headers", *_pretty(row.headers, hide, _PAYLOAD)]
    lines += _attempts(row, hide, options["full"], limit)
    lines += audit_lines(_message_id(row), now, using=alias(options))
    return [*lines, "", "to act", *(f"  {line}" for line in _commands(row, now))]


def _poison_head(record: PoisonRecord, now: datetime, limit: int) -> list[str]:
    deaths = "" if record.poison_count < 2 else f", death number {record.poison_count}"
    return [
        terminal_line(f"poison record {record.pk}: message {record.message_id} {record.name}"),
        terminal_line(f"  {reason(record.reason, record.last_failure_reason)}: {record.verdict}"),
        *terminal_paragraph(record.last_error or "no error", indent="  ", limit=limit),
        "",
        *_pairs(
            ("queue", record.queue),
            ("source", source(record)),
            ("kind", record.kind),
            ("instance", record.instance),
            ("stream", record.stream),
            ("key", record.key),
            (
                "deferred" if record.is_unknown else "attempts",
                tried(record.attempts, record.max_attempts) + deaths,
            ),
            ("stages", _stages(record.status)),
            ("progress", show_progress(record, now)),
            ("sent", f"{record.original_created_at:%Y-%m-%d %H:%M:%S %Z}"),
            ("died", f"{record.poisoned_at:%Y-%m-%d %H:%M:%S %Z}, {ago(record.poisoned_at, now)}"),
            ("moved by", record.poisoned_by),
            ("exception", record.exception),
            ("place", record.frame),
            ("release", record.release),
            ("group", record.fingerprint),
        ),
        *_pairs(*_death(record)),
    ]


def _message_head(message: Message, now: datetime, limit: int) -> list[str]:
    error = terminal_paragraph(message.error, indent="  ", limit=limit) if message.error else []
    return [
        terminal_line(f"message {message.pk} {message.name} is {message.state(now)}"),
        *error,
        "",
        *_pairs(
            ("queue", message.queue.name),
            ("source", source(message)),
            ("kind", message.kind),
            ("instance", message.instance),
            ("stream", message.stream),
            ("key", message.key),
            ("attempts", message.attempts),
            ("deaths", message.poison_count or None),
            ("stages", _stages(message.status)),
            ("progress", show_progress(message, now)),
            ("sent", f"{message.created_at:%Y-%m-%d %H:%M:%S %Z}"),
            ("due", None if message.available_at is None else ago(message.available_at, now)),
            ("worker", message.worker),
            ("expires", message.expires_at and ago(message.expires_at, now)),
        ),
        *_pairs(*_death(message)),
    ]


def _stream(row: PoisonRecord | Message, now: datetime, options: dict[str, Any]) -> list[str]:
    if row.stream is None:
        return []
    queue = row.queue if isinstance(row.queue, str) else row.queue.name
    held = get_stream(queue, row.stream, using=alias(options))
    if held is None:
        return ["  nothing waits in its stream"]
    holder = f"poison record {held.poison_id}" if held.poison_id else f"message {held.message_id}"
    until = f" until {ago(held.until, now)}" if held.until else ""
    return [
        terminal_line(
            f"  {held.waiting:,} wait in its stream; {holder} holds it: {held.why}{until}"
        )
    ]


def _attempts(row: PoisonRecord | Message, hide: bool, full: bool, limit: int) -> list[str]:
    history = redact_history(row.history) if hide else row.history
    entries = [entry for entry in history or [] if isinstance(entry, dict)]
    lines = ["", f"attempts ({len(entries)} kept, the last one last)"] if entries else []
    for place, entry in enumerate(entries, 1):
        seconds = entry.get("seconds")
        took = f", {lasted(seconds)}" if isinstance(seconds, int | float) else ""
        number = f"#{entry['attempt']}" if "attempt" in entry else "edit"
        cause = FailureReason.read(entry.get("reason")).name.lower()
        lines.append(
            terminal_line(f"  {entry.get('at')} {number} {entry.get('worker') or '-'}{took}")
        )
        lines += terminal_paragraph(
            f"{cause}: {entry.get('error') or '-'}", indent="    ", limit=limit
        )
        if "original_payload" in entry:
            lines += ["    the payload before", *_pretty(entry["original_payload"], False, limit)]
        if entry.get("traceback") and (full or place == len(entries)):
            traceback = str(entry["traceback"]).rstrip()
            lines += terminal_paragraph(traceback, indent="    ", limit=max(limit, 16_384))
    return lines


def _commands(row: PoisonRecord | Message, now: datetime) -> list[str]:
    start = "manage.py deadletter"
    if isinstance(row, PoisonRecord):
        return [
            f"{start} retry {row.pk}",
            f"{start} retry {row.pk} --payload @repaired.json",
            f"{start} retry --fingerprint {terminal_line(row.fingerprint)} --limit 10",
            f"{start} remove {row.pk}",
        ]
    found = []
    state = row.state(now)
    if state == "failed" or (state != "active" and is_moved(row)):
        found.append(f"{start} retry --message {row.pk}")
    if row.stream is not None and state != "active":
        found.append(f"{start} release {row.pk}")
    if state != "active":
        found.append(f"{start} poison {row.pk} --why TEXT")
        is_task = row.kind == Kind.TASK
        found.append(f"{start} {'cancel' if is_task else 'remove --message'} {row.pk}")
    return found or ["nothing can be done while a worker handles it"]


def _message_id(row: PoisonRecord | Message) -> int:
    return row.message_id if isinstance(row, PoisonRecord) else row.pk


def _value(value: Any, hide: bool) -> Any:
    if hide:
        return redact(value)
    return value.text if isinstance(value, Damaged) else value


def _pretty(value: Any, hide: bool, limit: int) -> list[str]:
    if isinstance(value, Damaged):
        problem = [f"  cannot be decoded: {terminal_line(value.problem)}"]
        return problem + terminal_paragraph(_value(value, hide), indent="  ", limit=limit)
    text = json.dumps(_value(value, hide), indent=2, ensure_ascii=False, default=str)
    return terminal_paragraph(text, indent="  ", limit=limit)


def _stages(status: int) -> str:
    """Return the stages that have names; FAILED is no stage."""
    names = Status.names(status & ~Status.FAILED)
    return ", ".join(name.lower() for name in names if not name.isdecimal()) or "-"


def _pairs(*pairs: tuple[str, object]) -> list[str]:
    return [
        f"  {key + ':':<11}{terminal_line(value)}"
        for key, value in pairs
        if value not in (None, "")
    ]
