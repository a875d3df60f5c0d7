"""manage.py deadletter schedules: list them and their next runs; run, pause, sync and import."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import connections

from .. import clock
from ..durations import as_text
from ..exceptions import UnknownSchedule
from ..models import Schedule
from ..operations import (
    BeatImport,
    compare_schedules,
    get_schedule,
    import_celery_beat,
    list_schedules,
    next_runs,
    pause_schedule,
    resume_schedule,
    run_schedule,
    sync_schedules,
    validate_schedule,
)
from ..operations.schedule_states import ScheduleState, schedule_state
from ..schedules import CannotFire, describe_problem
from ..text import terminal_line
from ..timetable import TimetableError, read_zone
from .args import add_act, alias, number, person
from .output import Screen, usage
from .text import ago

HELP = "list schedules and their next runs; run, pause, resume, synchronise or import them"
_ACTS = (
    "list (default): the schedules; next: the next runs of the named ones, or the first of all; "
    "run: send their messages now, no moment is consumed; pause, resume: stop them, or let them go "
    "on; sync: give the rows of declared schedules the values of the code and the settings; "
    "import-celery-beat: create schedules from the tables of django-celery-beat"
)
#: Runs shown by `next`, and rows of lists.
RUNS, ROWS = 10, 50


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=list(_ACTIONS), default="list", help=_ACTS)
    parser.add_argument(
        "schedule_names", nargs="*", metavar="NAME", help="schedules, for next, run, pause, resume"
    )
    parser.add_argument(
        "--limit",
        type=number,
        metavar="N",
        help=f"list: rows at most ({ROWS}); next: runs of each ({RUNS})",
    )
    group = parser.add_argument_group("import-celery-beat")
    group.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="CELERY=OURS",
        help="the task or message that takes the place of a Celery task; may be repeated",
    )
    group.add_argument(
        "--map-queue",
        action="append",
        default=[],
        metavar="CELERY=OURS",
        help="the queue that takes the place of one of Celery's; may be repeated",
    )
    group.add_argument(
        "--redis-priorities",
        action="store_true",
        help="the lowest number is first, as with Redis (default: the highest, as with RabbitMQ)",
    )
    group.add_argument(
        "--source", metavar="ALIAS", help="the database with the tables of django-celery-beat"
    )
    group.add_argument(
        "--progress", action="store_true", help="report progress, also without a terminal"
    )
    add_act(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    action, names = options["action"], options["schedule_names"]
    takes_names = action in ("next", "run", "pause", "resume")
    if names and not takes_names:
        raise usage(f"schedules {action} takes no name")
    if takes_names and action != "next" and not names:
        raise usage(f"schedules {action}: which schedule?")
    return _ACTIONS[action](screen, options)


def _list(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"] or ROWS
    found = list(list_schedules(using=using)[: limit + 1])
    if screen.as_json:
        screen.json([_object(row, clock.now(using)) for row in found[:limit]])
    elif found:
        now = clock.now(using)
        screen.table(
            ["schedule", "is", "when", "time zone", "sends", "next", "last", "error"],
            [_row(row, now) for row in found[:limit]],
        )
    if not found:
        screen.say("there is no schedule")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: raise --limit")
    return 0 if found else 1


def _next(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"] or RUNS
    now = clock.now(using)
    if options["schedule_names"]:
        rows = _rows(options)
        runs = [(moment, row) for row in rows for moment in _moments(row, limit, using)]
    else:
        planned = list_schedules(using=using).filter(next_at__isnull=False)
        rows = list(planned.order_by("next_at", "name")[:limit])
        runs = [(row.next_at, row) for row in rows if row.next_at is not None]
    if screen.as_json:
        screen.json([{"schedule": row.name, "moment": moment} for moment, row in runs])
    elif runs:
        screen.table(
            ["moment", "from now", "schedule"],
            [(_local(moment, row), ago(moment, now), row.name) for moment, row in runs],
        )
    for row in rows:
        if row.paused or row.orphaned_at is not None:
            screen.say(terminal_line(f"{row.name} is {_state(row, now)}: it does not run"))
    if not runs:
        screen.say("no run is planned")
    return 0 if runs else 1


def _run(screen: Screen, options: dict[str, Any]) -> int:
    rows, found, failed = _rows(options), [], False
    for row in rows:
        done: dict[str, Any] = {"schedule": row.name}
        try:
            if options["dry_run"]:
                validate_schedule(row, using=options["database"])
                done["outcome"] = "would be sent"
            else:
                sent = run_schedule(row.name, **_about(options))
                done |= {"outcome": sent.outcome, "message_id": sent.message_id}
                done["why"] = sent.why or None
                failed |= sent.message_id is None
        except UnknownSchedule:
            failed = True
            done |= {"outcome": "failed", "why": "it was deleted meanwhile"}
        except (CannotFire, ValidationError) as error:
            failed = True
            why = describe_problem(error) if isinstance(error, ValidationError) else str(error)
            done |= {"outcome": "failed", "why": why}
        found.append(done)
    if screen.as_json:
        screen.json({"act": "run", "dry_run": options["dry_run"], "runs": found})
    else:
        for done in found:
            message = f": message {done['message_id']}" if done.get("message_id") else ""
            why = f": {done['why']}" if done.get("why") else ""
            screen.lines([terminal_line(f"{done['schedule']}: {done['outcome']}{message}{why}")])
    return 1 if failed else 0


def _switch(screen: Screen, options: dict[str, Any]) -> int:
    action = options["action"]
    rows = _rows(options)
    paused = action == "pause"
    changed = [row for row in rows if row.paused != paused]
    if not options["dry_run"]:
        verb = pause_schedule if paused else resume_schedule
        try:
            rows = [verb(row.name, **_about(options)) for row in rows]
        except UnknownSchedule as error:
            raise _unknown(error, options) from None
        except TimetableError as error:  # no longer readable here; the field says which
            raise CommandError(terminal_line(f"{error.field}: {error}"), returncode=1) from None
    if screen.as_json:
        now = clock.now(alias(options))
        shown = {
            "act": action,
            "dry_run": options["dry_run"],
            "changed": [row.name for row in changed],
            "schedules": [_object(row, now) for row in rows],
        }
        screen.json(shown)
        return 0
    done = f"would be {action}d" if options["dry_run"] else f"{action}d"
    names = {row.name for row in changed}
    for row in rows:
        text = done if row.name in names else "paused already" if paused else "not paused"
        screen.lines([terminal_line(f"{row.name}: {text}{_next_text(row, options)}")])
    return 0


def _next_text(row: Schedule, options: dict[str, Any]) -> str:
    if options["dry_run"] or row.next_at is None:
        return ""
    return f", next {_local(row.next_at, row)}"


def _sync(screen: Screen, options: dict[str, Any]) -> int:
    differences = compare_schedules(using=options["database"])
    lines = []
    for found in differences:
        if found.is_missing:
            text = f"{found.name}: missing, declared in {found.where}"
        elif found.is_orphaned:
            text = f"{found.name}: no longer declared: it stops"
        else:
            cause = "the declaration has changed" if found.is_declaration_new else "it was edited"
            text = f"{found.name}: {', '.join(found.fields)} differ: {cause}"
        lines.append(terminal_line(text))
    done: dict[str, Any] = {"created": [], "changed": {}, "orphaned": [], "restored": []}
    if not options["dry_run"]:
        edited = [found for found in differences if found.fields]
        if edited:
            screen.say(*lines)
            count = f"{len(edited):,} schedule{'s' if len(edited) != 1 else ''}"
            screen.confirm(f"Give {count} the values of the declarations?", yes=options["yes"])
        try:
            changes = sync_schedules(**_about(options))
        except ValueError as error:
            raise usage(str(error)) from None
        done = {key: getattr(changes, key) for key in done}
    if screen.as_json:
        names = [found.name for found in differences]
        screen.json({"act": "sync", "dry_run": options["dry_run"], "differ": names, **done})
    elif options["dry_run"]:
        screen.lines(lines or ["schedules and declarations agree"])
    else:
        texts = [f"{key} {', '.join(names)}" for key, names in done.items() if names]
        screen.lines([terminal_line(text) for text in texts] or ["nothing was to be done"])
    return 0


def _import(screen: Screen, options: dict[str, Any]) -> int:
    source = options["source"]
    if source is not None and source not in connections:
        raise usage(
            f"--source: there is no database {source!r} (there are: {', '.join(connections)})"
        )
    arguments: dict[str, Any] = {
        "mapping": _pairs("--map", options["map"]),
        "queues": _pairs("--map-queue", options["map_queue"]),
        "redis_priorities": options["redis_priorities"],
        "source": source,
    }
    try:
        found = import_celery_beat(**arguments, dry_run=True, using=options["database"])
        if found.imported and not options["dry_run"]:
            screen.say(*_import_lines(found, dry_run=True))
            count = f"{len(found.imported):,} schedule{'s' if len(found.imported) != 1 else ''}"
            screen.confirm(f"Create {count}?", yes=options["yes"])
            progress = screen.progress(found.rows)
            found = import_celery_beat(**arguments, **_about(options), progress=progress)
    except ValueError as error:
        raise usage(str(error)) from None
    if screen.as_json:
        shown = {"imported": found.imported, "unchanged": found.unchanged, "refused": found.refused}
        screen.json({"act": "import-celery-beat", "dry_run": options["dry_run"], **shown})
    else:
        screen.lines(_import_lines(found, dry_run=options["dry_run"]))
    return 1 if found.refused else 0


def _import_lines(found: BeatImport, *, dry_run: bool) -> list[str]:
    lines = [f"{name}: {'would be imported' if dry_run else 'imported'}" for name in found.imported]
    for name, fields in found.unchanged.items():
        differs = f", differs in {', '.join(fields)}" if fields else ""
        lines.append(f"{name}: unchanged{differs}")
    lines += [f"{name}: refused: {reason}" for name, reason in found.refused.items()]
    return [terminal_line(line) for line in lines] or ["there are no periodic tasks"]


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not (sign and key and value):
            raise usage(f"{option}: expected CELERY=OURS, got {text!r}")
        if key in pairs:
            raise usage(f"{option}: {key} is given twice")
        pairs[key] = value
    return pairs


def _about(options: dict[str, Any]) -> dict[str, Any]:
    return {"by": person(options), "why": options["why"], "using": options["database"]}


def _rows(options: dict[str, Any]) -> list[Schedule]:
    """Return the schedules that were named. Raises CommandError (2) for one that is not there."""
    names = list(dict.fromkeys(options["schedule_names"]))
    try:
        return [get_schedule(name, using=options["database"]) for name in names]
    except UnknownSchedule as error:
        raise _unknown(error, options) from None


def _unknown(error: UnknownSchedule, options: dict[str, Any]) -> CommandError:
    there = list_schedules(using=options["database"]).values_list("name", flat=True)
    close = difflib.get_close_matches(error.name, list(there[:1_000]), n=1, cutoff=0.5)
    return usage(f"{error}{f'; did you mean {close[0]!r}?' if close else ''}")


def _moments(row: Schedule, limit: int, using: str) -> list[datetime]:
    if row.paused or row.orphaned_at is not None:
        return []
    try:
        return next_runs(row, limit, using=using)
    except TimetableError as error:
        raise CommandError(terminal_line(f"{row.name}: {error}"), returncode=1) from None


def _object(row: Schedule, now: datetime) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": _state(row, now),
        "kind": row.kind,
        "target": row.target,
        "queue": row.queue or None,
        "cron": row.cron or None,
        "interval": row.interval,
        "at": row.at,
        "time_zone": row.time_zone,
        "start": row.start,
        "end": row.end,
        "max_runs": row.max_runs,
        "run_count": row.run_count,
        "overlap": row.overlap,
        "missed": row.missed,
        "is_declared": row.is_declared,
        "last_at": row.last_at,
        "last_outcome": row.last_outcome or None,
        "next_at": row.next_at,
        "failing_since": row.failing_since,
        "error": row.last_error or None,
    }


def _row(row: Schedule, now: datetime) -> tuple[object, ...]:
    last = "-" if row.last_at is None else f"{row.last_outcome or '-'} {ago(row.last_at, now)}"
    when = row.cron or (f"every {as_text(row.interval)}" if row.interval else f"at {_at(row)}")
    following = (
        "-" if row.next_at is None else f"{_local(row.next_at, row)}, {ago(row.next_at, now)}"
    )
    zone = row.time_zone if row.cron else "-"
    return (
        row.name,
        _state(row, now),
        when,
        zone,
        row.target,
        following,
        last,
        row.last_error or "-",
    )


def _at(row: Schedule) -> str:
    return "-" if row.at is None else _local(row.at, row)


def _state(row: Schedule, now: datetime) -> str:
    state = schedule_state(row, now)
    return "failing" if state == ScheduleState.BROKEN else state.value


def _local(moment: datetime, row: Schedule) -> str:
    """Return a moment in the time zone of its schedule; in UTC if that has become unknown."""
    with suppress(TimetableError):
        moment = moment.astimezone(read_zone(row.time_zone))
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}"


_ACTIONS: dict[str, Callable[[Screen, dict[str, Any]], int]] = {
    "list": _list,
    "next": _next,
    "run": _run,
    "pause": _switch,
    "resume": _switch,
    "sync": _sync,
    "import-celery-beat": _import,
}
