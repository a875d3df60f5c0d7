"""manage.py deadletter audit, jobs: what people did, and bulk jobs with their progress."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

from .. import clock
from ..models import Act, AuditEntry, BulkJob
from ..operations import control_job, get_job, list_audit, list_jobs
from ..operations.retry_outcomes import outcomes_of
from ..text import terminal_line
from .args import add_common, alias, moment, number, person
from .output import Screen, usage
from .text import ago

HELP = "list what people did, the latest first"
HELP_JOBS = "list bulk jobs with their progress; pause, resume or cancel one"
_ACTIONS = {
    "pause": BulkJob.State.PAUSED,
    "resume": BulkJob.State.RUNNING,
    "cancel": BulkJob.State.CANCELLED,
}
#: Characters of a selection in a table.
_SELECTION = 80


def add(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which entries (all that are given must match)")
    group.add_argument("--act", choices=Act.values, metavar="ACT", help=", ".join(Act.values))
    group.add_argument("--by", metavar="WHO", help="acts of this person")
    group.add_argument("--since", metavar="WHEN", help="since: 2h, 3d, or 2026-01-31T12:00")
    group.add_argument("--until", metavar="WHEN", help="before: as for --since")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"]
    given: dict[str, Any] = {"act": options["act"], "by": options["by"]}
    for key in ("since", "until"):
        given[key] = None if options[key] is None else moment(key, options[key], options)
    try:
        found = list_audit(**given, limit=limit + 1, using=using)
    except ValueError as error:
        raise usage(f"--{error}") from None
    if screen.as_json:
        screen.json([audit_object(entry) for entry in found[:limit]])
    elif found:
        _table(screen, found[:limit], clock.now(using))
    if not found:
        screen.say("nothing matches")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: narrow the filter or raise --limit")
    return 0 if found else 1


def audit_object(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry without the payloads of an edit."""
    outcomes = outcomes_of(entry)
    return {
        "id": entry.pk,
        "at": entry.at,
        "by": entry.by,
        "act": entry.act,
        "why": entry.why,
        "selection": entry.selection,
        "detail": entry.detail,
        "done": entry.done,
        "missing": entry.missing,
        "refused": entry.refused,
        "succeeded": outcomes.succeeded,
        "died_same": outcomes.died_same,
        "died_other": outcomes.died_other,
        "open": outcomes.open,
    }


def _table(screen: Screen, entries: list[AuditEntry], now: datetime) -> None:
    screen.table(
        ["entry", "when", "by", "act", "done", "refused", "outcome", "what", "why"],
        [
            [
                entry.pk,
                ago(entry.at, now),
                entry.by or "-",
                entry.act,
                entry.done,
                entry.refused,
                _outcome(entry),
                _selection(entry.selection),
                entry.why or "-",
            ]
            for entry in entries
        ],
    )


def _outcome(entry: AuditEntry) -> str:
    if entry.act != Act.RETRY:
        return "-"
    found = outcomes_of(entry)
    died = found.died_same + found.died_other
    return f"{found.succeeded:,} ok, {died:,} died, {found.open:,} open"


def _selection(selection: object) -> str:
    if not isinstance(selection, dict):
        return "-"
    parts = []
    for key, value in selection.items():
        shown = value if isinstance(value, str | int) else json.dumps(value)[: _SELECTION + 1]
        parts.append(f"{key}={shown}")
    return terminal_line(" ".join(parts), width=_SELECTION) or "-"


def add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=["list", *_ACTIONS],
        default="list",
        help="list (default): the jobs, the latest first; pause, resume, cancel: one of them",
    )
    parser.add_argument("job", nargs="?", type=number, metavar="JOB", help="the id of a job")
    parser.add_argument("--state", choices=BulkJob.State.values, help="list: only these jobs")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="list: at most (default 50)"
    )
    parser.add_argument("--by", metavar="WHO", help="for the audit trail (default: the OS user)")
    add_common(parser)


def run_jobs(screen: Screen, options: dict[str, Any]) -> int:
    action = options["action"]
    if action != "list":
        return _control(screen, action, options)
    if options["job"] is not None:
        raise usage("jobs list takes no job")
    using, limit = alias(options), options["limit"]
    found = list_jobs(state=options["state"], limit=limit + 1, using=using)
    _show_jobs(screen, found[:limit], using)
    if not found:
        screen.say("there is no job")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: raise --limit")
    return 0 if found else 1


def job_object(job: BulkJob) -> dict[str, Any]:
    looked_at = job.done + job.refused
    return {
        "id": job.pk,
        "act": job.entry.act,
        "state": job.state,
        "by": job.entry.by,
        "why": job.entry.why,
        "selection": job.entry.selection,
        "total": job.total,
        "done": job.done,
        "refused": job.refused,
        "percent": min(100, looked_at * 100 // job.total) if job.total else 100,
        "audit_entry": job.entry_id,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
    }


def _control(screen: Screen, action: str, options: dict[str, Any]) -> int:
    using, id = alias(options), options["job"]
    if id is None:
        raise usage(f"jobs {action}: which job?")
    if options["state"] is not None:
        raise usage("--state is for list")
    if get_job(id, using=using) is None:
        raise usage(f"there is no job {id}")
    try:
        control_job(id, _ACTIONS[action], by=person(options), using=using)
    except ValueError as error:
        screen.say(terminal_line(error))
        return 1
    job = get_job(id, using=using)
    _show_jobs(screen, [] if job is None else [job], using)
    return 0


def _show_jobs(screen: Screen, jobs: list[BulkJob], using: str) -> None:
    if screen.as_json:
        screen.json([job_object(job) for job in jobs])
        return
    now = clock.now(using)
    rows = [(job, job_object(job)) for job in jobs]
    if rows:
        screen.table(
            ["job", "act", "is", "done", "of", "%", "refused", "began", "last", "by", "what"],
            [
                [
                    job.pk,
                    shown["act"],
                    job.state,
                    job.done,
                    job.total,
                    shown["percent"],
                    job.refused,
                    ago(job.created_at, now),
                    ago(job.updated_at, now),
                    shown["by"] or "-",
                    _selection(shown["selection"]),
                ]
                for job, shown in rows
            ],
        )
