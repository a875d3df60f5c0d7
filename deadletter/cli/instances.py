"""manage.py deadletter instances, instance: list instances; show or cancel one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .. import clock
from ..models import Instance, InstanceEvent, InstanceStatus, PoisonRecord
from ..operations import cancel_instance, events_of, get_instance, list_instances, redact
from ..operations.instances import STUCK
from ..text import terminal_line
from .args import add_common, alias, number, person
from .output import Screen, usage
from .text import ago

HELP = "list instances, the latest activity first"
HELP_ONE = "show or cancel one instance"
#: Events shown by default, and poison records shown.
EVENTS, POISON = 30, 20


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--status", choices=[*InstanceStatus.values, STUCK])
    parser.add_argument("--name", metavar="NAME", help="of the orchestration")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"]
    name = options["name"]
    if name is not None and (not name or "\x00" in name):
        raise usage("--name: expected a name")
    found = list_instances(status=options["status"], name=name, limit=limit + 1, using=using)
    if screen.as_json:
        screen.json([instance_object(instance) for instance in found[:limit]])
    elif found:
        _table(screen, found[:limit], clock.now(using))
    if not found:
        screen.say("nothing matches")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: narrow the filter or raise --limit")
    return 0 if found else 1


def add_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show", "cancel"])
    parser.add_argument("instance_id", metavar="ID")
    parser.add_argument("--reveal", action="store_true", help="show: also secret values")
    parser.add_argument(
        "--limit", type=number, default=EVENTS, metavar="N", help=f"show: events ({EVENTS})"
    )
    parser.add_argument("--dry-run", action="store_true", help="cancel: change nothing")
    parser.add_argument("--yes", action="store_true", help="cancel: do not ask")
    parser.add_argument("--by", metavar="WHO", help="for the audit trail (default: the OS user)")
    parser.add_argument("--why", default="", metavar="TEXT", help="cancel: for the audit trail")
    add_common(parser)


def run_one(screen: Screen, options: dict[str, Any]) -> int:
    found = get_instance(options["instance_id"], using=alias(options))
    if found is None:
        screen.say(terminal_line(f"there is no instance {options['instance_id']}"))
        return 1
    if options["action"] == "show":
        return _show(screen, found, options)
    return _cancel(screen, found, options)


def instance_object(instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.id,
        "name": instance.name,
        "version": instance.version,
        "execution_id": instance.execution_id,
        "queue": instance.queue,
        "status": instance.status,
        "error": None if instance.error_details is None else instance.error_details.as_dict(),
        "failed_by": instance.failed_by,
        "parent": instance.parent,
        "pending": instance.pending,
        "created_at": instance.created_at,
        "updated_at": instance.updated_at,
        "ended_at": instance.ended_at,
        "stuck_since": instance.stuck_since if instance.is_stuck else None,
    }


def _table(screen: Screen, instances: list[Instance], now: datetime) -> None:
    rows = [
        (
            instance.id,
            instance.name,
            instance.version or "-",
            STUCK if instance.is_stuck else instance.status,
            instance.execution_id,
            len(instance.pending),
            ago(instance.updated_at, now),
            _why(instance) or "-",
        )
        for instance in instances
    ]
    heads = ("id", "name", "version", "status", "execution", "waits for", "active", "error")
    screen.table(heads, rows)


def _show(screen: Screen, found: Instance, options: dict[str, Any]) -> int:
    using = alias(options)
    events = events_of(found.id, limit=options["limit"], using=using)
    rows = (
        PoisonRecord.objects.using(using).without_bodies().filter(instance=found.id).order_by("-pk")
    )
    poison = list(rows[:POISON])
    hide: Callable[[Any], Any] = _as_it_is if options["reveal"] else redact
    content = {key: hide(getattr(found, key)) for key in ("input", "state", "output")}
    if screen.as_json:
        screen.json(
            instance_object(found)
            | content
            | {
                "history": found.history,
                "events": [_event_object(event, hide) for event in events],
                "poison": [
                    {"id": record.pk, "message_id": record.message_id, "name": record.name}
                    for record in poison
                ],
            }
        )
        return 0
    facts = {**instance_object(found), **content, "error": _why(found)}
    screen.table(["field", "value"], [[key, _shown(value)] for key, value in facts.items()])
    now = clock.now(using)
    screen.lines(["", "what happened, the latest first:"])
    lines = [(ago(event.at, now), *_event_row(event)) for event in events]
    screen.table(["when", "event", "name", "activity", "message"], lines)
    if poison:
        screen.lines(["", "its poison; a retry of what failed it reopens it:"])
        dead = [(r.pk, r.message_id, r.kind, r.name, r.last_error or r.verdict) for r in poison]
        screen.table(["id", "message", "kind", "name", "error"], dead)
    return 0


def _cancel(screen: Screen, found: Instance, options: dict[str, Any]) -> int:
    if not options["why"].strip():
        raise usage("--why: say why; its error, its parent and the audit trail will")
    if options["dry_run"] or not found.is_running:
        return _report(screen, found, [], "" if found.is_running else f"it has {found.status}", 0)
    screen.confirm(terminal_line(f"Cancel {found.name} {found.id}?"), yes=options["yes"])
    outcome = cancel_instance(
        found.id, by=person(options), why=options["why"], using=options["database"]
    )
    return _report(screen, found, outcome.cancelled, outcome.refused, outcome.entry_id)


def _report(screen: Screen, found: Instance, cancelled: list[str], refused: str, entry: int) -> int:
    if screen.as_json:
        screen.json(
            {
                "act": "cancel",
                "instance": found.id,
                "dry_run": not cancelled and not refused,
                "cancelled": cancelled,
                "refused": refused or None,
                "audit_entry": entry or None,
            }
        )
    elif refused:
        screen.lines([terminal_line(f"{found.id}: refused: {refused}")])
    elif cancelled:
        screen.lines([terminal_line(f"cancelled {', '.join(cancelled)}"), f"audit entry {entry}"])
    else:
        text = f"{found.id} would be cancelled, with all that runs below it; nothing was changed"
        screen.lines([terminal_line(text)])
    return 1 if refused else 0


def _why(instance: Instance) -> str:
    return "" if instance.error_details is None else instance.error_details.text


def _event_row(event: InstanceEvent) -> tuple[object, ...]:
    activity = "-" if event.activity_id is None else event.activity_id
    return event.event, event.name or "-", activity, event.message_id or "-"


def _event_object(event: InstanceEvent, hide: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        "id": event.pk,
        "at": event.at,
        "execution_id": event.execution_id,
        "event": event.event,
        "name": event.name,
        "activity_id": event.activity_id,
        "message_id": event.message_id,
        "data": hide(event.data),
    }


def _as_it_is(value: Any) -> Any:
    return value


def _shown(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
