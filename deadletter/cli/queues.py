"""manage.py deadletter queues: list queues; create, set, pause, resume or delete one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import models
from django.db.models import ProtectedError

from ..durations import as_text
from ..exceptions import UnknownQueue
from ..models import OnPoison, Queue
from ..models.fields import SecondsField
from ..operations import (
    POLICY,
    create_queue,
    delete_queue,
    matching_queues,
    pause,
    pause_matching,
    require_queue,
    resume,
    resume_matching,
    set_queue,
    stats,
)
from ..patterns import is_pattern
from ..text import terminal_line
from .args import add_common, alias, duration, matched, person, unknown_queue
from .output import Screen, usage
from .stats import STATES
from .text import span as shown_span

HELP = "list queues with policy and counts; create, set, pause, resume or delete one"
_ACTIONS = ("list", "create", "set", "pause", "resume", "delete")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=_ACTIONS, default="list")
    parser.add_argument(
        "queue_name",
        nargs="?",
        metavar="NAME",
        help="a queue; for list, pause and resume also a pattern: 'tenant-a/*'",
    )
    parser.add_argument(
        "fields",
        nargs="*",
        metavar="field=value",
        help=f"{', '.join(POLICY)}; durations as 90, 90s, 1h30m, 3d; none for no value; "
        "reason_policies as JSON",
    )
    parser.add_argument("--by", metavar="WHO", help="for the audit trail (default: the OS user)")
    parser.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--dry-run", action="store_true", help="pause, resume: only list the matching queues"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    action, name = options["action"], options["queue_name"]
    if action == "list":
        if name is not None and not is_pattern(name):
            raise usage(f"list takes no name but a pattern; show one with: queues set {name}")
        return _list(screen, options, name)
    if name is None:
        raise usage(f"queues {action}: which queue?")
    fields = _fields(options["fields"])
    if fields and action in ("pause", "resume", "delete"):
        raise usage(f"queues {action} takes no fields")
    about: dict[str, Any] = {"by": person(options), "why": options["why"]}
    about["using"] = options["database"]
    if action == "delete":
        return _delete(screen, name, about, yes=options["yes"])
    if action in ("pause", "resume") and is_pattern(name):
        return _switch_matching(screen, action, name, about, options)
    verbs: dict[str, Any] = {"create": create_queue, "set": set_queue}
    verbs |= {"pause": pause, "resume": resume}
    try:
        queue = verbs[action](name, **about, **fields)
    except UnknownQueue as error:
        raise unknown_queue(error) from None
    except ValidationError as error:
        raise usage(_problems(error)) from None
    except ValueError as error:
        raise usage(str(error)) from None
    _show(screen, queue)
    return 0


def _switch_matching(
    screen: Screen, action: str, pattern: str, about: dict[str, Any], options: dict[str, Any]
) -> int:
    """Pause or resume the queues that a pattern matches, after listing them."""
    try:
        require_queue(pattern, or_pattern=True, using=about["using"])
        names = matching_queues(pattern, using=alias(options))
        screen.say(matched(names, pattern))
        if not options["dry_run"]:
            queues = f"{len(names):,} queue{'s' if len(names) != 1 else ''}"
            screen.confirm(f"{action.capitalize()} {queues}?", yes=options["yes"])
            verb = pause_matching if action == "pause" else resume_matching
            names = [queue.name for queue in verb(pattern, **about)]
    except UnknownQueue as error:
        raise unknown_queue(error) from None
    if screen.as_json:
        screen.json({"act": action, "queues": names, "dry_run": options["dry_run"]})
    else:
        done = f"{action}d" if not options["dry_run"] else f"would be {action}d:"
        screen.lines([terminal_line(f"{done} {', '.join(names)}")])
    return 0


def _delete(screen: Screen, name: str, about: dict[str, Any], *, yes: bool) -> int:
    try:
        require_queue(name, using=about["using"])
        screen.confirm(f"Delete queue {name}?", yes=yes)
        delete_queue(name, **about)
    except UnknownQueue as error:
        raise unknown_queue(error) from None
    except ProtectedError as error:
        raise CommandError(terminal_line(error.args[0]), returncode=1) from None
    if screen.as_json:
        screen.json({"act": "delete", "queue": name})
    else:
        screen.lines([terminal_line(f"deleted queue {name}")])
    return 0


def _list(screen: Screen, options: dict[str, Any], pattern: str | None) -> int:
    using = alias(options)
    counts = stats(using=using, queue=pattern).queues
    rows = Queue.objects.using(using).select_related("dead_queue")
    queues = {queue.name: queue for queue in rows}
    if screen.as_json:
        screen.json(
            {
                name: {
                    "policy": _policy(queues[name]) if name in queues else None,
                    "paused": name in queues and queues[name].paused,
                    **{state: getattr(count, state) for state in STATES},
                }
                for name, count in counts.items()
            }
        )
        return 0
    lines = [
        [
            name,
            "gone" if name not in queues else "paused" if queues[name].paused else "open",
            *(getattr(count, state) for state in STATES),
            _summary(queues[name]) if name in queues else "its row was removed",
        ]
        for name, count in counts.items()
    ]
    screen.table(["queue", "is", *STATES, "policy"], lines)
    return 0 if counts else 1


def _show(screen: Screen, queue: Queue) -> None:
    found = {"name": queue.name, "paused": queue.paused, **_policy(queue)}
    if screen.as_json:
        screen.json(found)
    else:
        screen.table(["field", "value"], [[key, _value(value)] for key, value in found.items()])


def _policy(queue: Queue) -> dict[str, Any]:
    found = {field: getattr(queue, field) for field in POLICY}
    found["dead_queue"] = queue.dead_queue.name if queue.dead_queue else None
    return found


def _summary(queue: Queue) -> str:
    limit = "no limit" if queue.max_attempts is None else f"{max(queue.max_attempts, 1)} attempts"
    wait = (
        f"cooldown {shown_span(queue.cooldown)}"
        if queue.cooldown is not None
        else f"backoff {shown_span(queue.backoff_base)} to {shown_span(queue.backoff_cap)}"
    )
    moves = queue.on_poison == OnPoison.DEAD_QUEUE
    target = f"to {queue.dead_queue.name}" if moves and queue.dead_queue else queue.on_poison
    kept = queue.poison_retention
    parts = [limit, wait, f"lease {shown_span(queue.lease_timeout)}", target, queue.stream_policy]
    if queue.reason_policies:
        parts.append(f"differs by reason ({len(queue.reason_policies)})")
    return ", ".join([*parts, *([f"kept {shown_span(kept)}"] if kept is not None else [])])


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return terminal_line(json.dumps(value)) if value else "none"
    if isinstance(value, timedelta):
        return as_text(value)
    return "none" if value is None else str(value)


def _fields(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given:
        field, sign, value = text.partition("=")
        if not sign:
            raise usage(f"expected field=value, got {text!r}")
        if field not in POLICY:
            raise usage(f"a queue has no field {field!r} (there are: {', '.join(POLICY)})")
        if field in found:
            raise usage(f"{field} is given twice")
        found[field] = _read(field, value)
    return found


def _read(name: str, value: str) -> Any:
    """Return the value of a field as its type in the model wants it; "none" or "" is None."""
    if value.lower() in ("none", ""):
        return None
    field = Queue.policy_fields()[name]
    try:
        for kind, read in _READERS:
            if isinstance(field, kind):
                return read(value)
        return value
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise usage(f"{name}: {error}") from None


#: How a value is read, by the class of its field; any other is text.
_READERS: tuple[tuple[type[models.Field[Any, Any]], Callable[[str], Any]], ...] = (
    (SecondsField, duration),
    (models.JSONField, json.loads),
    (models.IntegerField, int),
    (models.FloatField, float),
)


def _problems(error: ValidationError) -> str:
    return "; ".join(
        f"{field}: {' '.join(terminal_line(text) for text in texts)}"
        for field, texts in error.message_dict.items()
    )
