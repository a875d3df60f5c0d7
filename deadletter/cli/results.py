"""manage.py deadletter results, cancel: results of ended tasks; tasks that have not started."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

from .. import clock
from ..lifecycle.values import ActResult
from ..models import Damaged, Kind, Result, ResultOutcome
from ..operations import ResultFilter, cancel, get_result, redact, redact_history
from ..operations.task_calls import show_call
from ..text import terminal_line, terminal_paragraph
from .args import add_common, alias, number
from .confirm import ActPlan, on_ids
from .lookup import why_no_result
from .output import Screen, usage
from .remove import about
from .rows import audit_lines, audit_objects, calls_of, show_progress
from .text import ago, lasted, span

HELP = "list the results of ended tasks, newest first, or show those of ids"
HELP_CANCEL = "cancel tasks, and other messages, that have not started"
#: Characters of an error.
_TEXT = 4_000
#: Workers that are named.
_WORKERS = 10
_FILTERS = ("name", "queue", "outcome", "kind")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", type=number, metavar="ID", help="ids of results")
    parser.add_argument("--name", metavar="NAME", help="the path of the task, or a message name")
    parser.add_argument("--queue", metavar="NAME", help="the queue, or a pattern")
    parser.add_argument("--outcome", choices=ResultOutcome.values, help="how it ended")
    parser.add_argument("--kind", choices=(Kind.TASK.value, Kind.MESSAGE.value))
    parser.add_argument("--reveal", action="store_true", help="show secrets")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    given = {key: options[key] for key in _FILTERS if options[key] is not None}
    if options["ids"]:
        if given:
            raise usage("name ids, or narrow the list, not both")
        return _show(screen, options)
    using, limit = alias(options), options["limit"]
    try:
        rows = ResultFilter(**given).results(using)
    except ValueError as error:
        raise usage(str(error)) from None
    found = list(rows[: limit + 1])
    now = clock.now(using)
    if screen.as_json:
        screen.json([_short_object(row) for row in found[:limit]])
    elif found:
        _table(screen, found[:limit], now)
    if not found:
        screen.say("nothing matches")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: narrow the filter or raise --limit")
    return 0 if found else 1


def run_cancel(screen: Screen, options: dict[str, Any]) -> int:
    def work(ids: list[int]) -> ActResult:
        return cancel(ids, **about(options))

    plan = ActPlan("cancel", "cancelled", "Cancel")
    return on_ids(screen, options, plan, list(dict.fromkeys(options["ids"])), work, messages=True)


def result_page(row: Result, now: datetime, options: dict[str, Any]) -> list[str]:
    """Return the lines that show one result."""
    hide = not options["reveal"]
    workers = row.workers if isinstance(row.workers, list) else []
    names = list(dict.fromkeys(str(name) for name in workers))
    more = ", …" if len(names) > _WORKERS else ""
    lines = [
        terminal_line(f"result of {row.kind} {row.pk} {row.name}: {row.outcome}"),
        *_call(row, hide),
        f"  queue:     {terminal_line(row.queue)}",
        f"  sent:      {row.created_at:%Y-%m-%d %H:%M:%S %Z}",
        f"  finished:  {row.finished_at:%Y-%m-%d %H:%M:%S %Z}, {ago(row.finished_at, now)}",
        f"  took:      {_took(row)}",
        f"  deleted:   {_deleted(row, now, exact=True)}",
        f"  attempts:  {len(workers)}",
        f"  workers:   {terminal_line(', '.join(names[:_WORKERS]) or '-')}{more}",
    ]
    if progress := show_progress(row, now):
        lines.append(f"  progress:  {terminal_line(progress)}")
    if row.outcome == ResultOutcome.SUCCESSFUL:
        text = json.dumps(_value(row.value, hide), indent=2, ensure_ascii=False, default=str)
        lines += ["", "return value", *terminal_paragraph(text, indent="  ", limit=65_536)]
    lines += _failed_attempts(row, hide)
    return lines + audit_lines(row.pk, now, using=alias(options))


def result_object(row: Result, options: dict[str, Any]) -> dict[str, Any]:
    """Return a result as JSON with everything that it keeps."""
    hide, is_task = not options["reveal"], row.kind == Kind.TASK
    return _short_object(row) | {
        "call": show_call(row.name, row.payload, reveal=not hide) if is_task else None,
        "payload": _value(row.payload, hide),
        "headers": _value(row.headers, hide),
        "value": _value(row.value, hide),
        "history": redact_history(row.history) if hide else row.history,
        "workers": row.workers,
        "progress": row.progress,
        "audit": audit_objects(row.pk, using=alias(options)),
    }


def _show(screen: Screen, options: dict[str, Any]) -> int:
    using = alias(options)
    found, missing = [], []
    for id in options["ids"]:
        row = get_result(id, using=using)
        if row is None:
            missing.append(why_no_result(id, options))
        else:
            found.append(row)
    now = clock.now(using)
    if screen.as_json:
        screen.json([result_object(row, options) for row in found])
    else:
        for row in found:
            screen.lines([*result_page(row, now, options), ""])
    screen.say(*(terminal_line(text) for text in missing))
    return 1 if missing else 0


def _short_object(row: Result) -> dict[str, Any]:
    """Return a result as JSON, without payload and return value."""
    return {
        "message_id": row.pk,
        "queue": row.queue,
        "name": row.name,
        "kind": row.kind,
        "outcome": row.outcome,
        "priority": row.priority,
        "created_at": row.created_at,
        "attempted_at": row.attempted_at,
        "finished_at": row.finished_at,
        "expires_at": row.expires_at,
    }


def _call(row: Result, hide: bool) -> list[str]:
    """Return the call of a task, or the payload of another message."""
    if row.kind == Kind.TASK:
        return [f"  call:      {terminal_line(show_call(row.name, row.payload, reveal=not hide))}"]
    text = json.dumps(_value(row.payload, hide), ensure_ascii=False, default=str)
    return [f"  payload:   {terminal_line(text, width=400)}"]


def _failed_attempts(row: Result, hide: bool) -> list[str]:
    lines: list[str] = []
    history = redact_history(row.history) if hide else row.history
    for entry in history if isinstance(history, list) else []:
        if not isinstance(entry, dict):
            continue
        what = f"{entry.get('at')} #{entry.get('attempt', '-')} {entry.get('worker') or '-'}"
        lines += ["", terminal_line(f"failed attempt {what}")]
        error = entry.get("traceback") or entry.get("error") or "-"
        lines += terminal_paragraph(str(error).rstrip(), indent="  ", limit=_TEXT)
    return lines


def _took(row: Result) -> str:
    if row.attempted_at is None:
        return "-"
    return lasted((row.finished_at - row.attempted_at).total_seconds())


def _deleted(row: Result, now: datetime, *, exact: bool = False) -> str:
    """Say when the sweep deletes a result."""
    if row.expires_at is None:
        return "never"
    text = f"in {span(row.expires_at - now)}" if row.expires_at > now else "now"
    return f"{row.expires_at:%Y-%m-%d %H:%M:%S %Z}, {text}" if exact else text


def _value(value: Any, hide: bool) -> Any:
    if hide:
        return redact(value)
    return value.text if isinstance(value, Damaged) else value


def _table(screen: Screen, rows: list[Result], now: datetime) -> None:
    names = calls_of(rows)
    screen.table(
        ("message", "queue", "outcome", "sent", "finished", "took", "deleted", "call or name"),
        [
            (
                row.pk,
                row.queue,
                row.outcome,
                ago(row.created_at, now),
                ago(row.finished_at, now),
                _took(row),
                _deleted(row, now),
                names.get(row.pk, row.name),
            )
            for row in rows
        ],
    )
