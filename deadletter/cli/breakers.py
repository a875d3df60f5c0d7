"""manage.py deadletter breakers: list the circuit breakers, hold a message name, reset one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from typing import Any

from .. import clock
from ..operations import BreakerReport, hold_breaker, list_breakers, reset_breaker
from ..operations.breakers import check_name, known_names, similar_name
from ..text import terminal_line
from .args import add_common, alias, number, person, seconds
from .output import Screen, usage
from .text import ago

HELP = "list the circuit breakers and what they hold; hold a message name, or reset one"
_ACTIONS = ("list", "hold", "reset")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=_ACTIONS,
        default="list",
        help="list (default): the open ones; hold: let no message of a name start; reset: let them "
        "start again, whoever opened the breaker",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a message name, for hold and reset"
    )
    parser.add_argument(
        "--for",
        dest="duration",
        type=seconds,
        metavar="TIME",
        help="hold: 90, 30m, 4h, 2d (default: until it is reset)",
    )
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="list: at most (default 50)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, report what would be done"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--by", metavar="WHO", help="for the audit trail (default: the OS user)")
    parser.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    action, name = options["action"], options["name"]
    if options["duration"] is not None and action != "hold":
        raise usage("--for is for hold")
    if action == "list":
        if name is not None:
            raise usage("list takes no name")
        return _list(screen, options)
    if name is None:
        raise usage(f"breakers {action}: which message name?")
    return _hold(screen, name, options) if action == "hold" else _reset(screen, name, options)


def _list(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"]
    found = list_breakers(limit=limit + 1, using=using)
    if screen.as_json:
        screen.json([asdict(breaker) for breaker in found[:limit]])
    elif found:
        _table(screen, found[:limit], clock.now(using))
    if not found:
        screen.say("no circuit breaker is open, and no message name is held")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: raise --limit")
    return 0 if found else 1


def _hold(screen: Screen, name: str, options: dict[str, Any]) -> int:
    using = alias(options)
    try:
        check_name(name)
    except ValueError as error:
        raise usage(str(error)) from None
    known = known_names(using=using)
    if known and name not in known:
        close = similar_name(name, known)
        meant = f"; did you mean {close}?" if close else ""
        screen.say(terminal_line(f"no live worker has a handler for {name}{meant}"))
    if not options["dry_run"]:
        screen.confirm(f"Hold messages named {name}?", yes=options["yes"])
        try:
            hold_breaker(
                name,
                duration=options["duration"],
                by=person(options),
                why=options["why"],
                using=using,
            )
        except ValueError as error:
            raise usage(str(error)) from None
    return _report(screen, "hold", name, "held", options)


def _reset(screen: Screen, name: str, options: dict[str, Any]) -> int:
    using = alias(options)
    is_there = _find(name, using) is not None
    if is_there and not options["dry_run"]:
        screen.confirm(f"Reset the breaker of {name}?", yes=options["yes"])
        # Another person may have been faster, or a probe.
        is_there = (
            reset_breaker(name, by=person(options), why=options["why"], using=using) is not None
        )
    if not is_there:
        screen.say(terminal_line(f"{name} is not held: there is nothing to reset"))
        if not screen.as_json:
            return 1
    return _report(screen, "reset", name, "reset", options, is_done=is_there)


def _report(
    screen: Screen,
    act: str,
    name: str,
    word: str,
    options: dict[str, Any],
    *,
    is_done: bool = True,
) -> int:
    dry_run = options["dry_run"]
    breaker = _find(name, alias(options))
    if screen.as_json:
        found = {"act": act, "name": name, "dry_run": dry_run}
        found["done"] = is_done and not dry_run
        screen.json({**found, "breaker": None if breaker is None else asdict(breaker)})
    elif dry_run:
        screen.lines([terminal_line(f"{name} would be {word}; nothing was changed")])
    else:
        screen.lines([terminal_line(f"{word} {name}")])
    return 0 if is_done else 1


def _find(name: str, using: str) -> BreakerReport | None:
    found = (breaker for breaker in list_breakers(names=[name], using=using))
    return next(found, None)


def _table(screen: Screen, breakers: list[BreakerReport], now: datetime) -> None:
    screen.table(
        ["name", "is", "since", "until", "holds", "failures", "by", "why"],
        [
            [
                breaker.name,
                breaker.state,
                ago(breaker.since, now),
                _until(breaker, now),
                f"{breaker.waiting:,}{'+' if breaker.waiting_more else ''}",
                breaker.failures,
                breaker.by,
                breaker.why or breaker.error or "-",
            ]
            for breaker in breakers
        ],
    )


def _until(breaker: BreakerReport, now: datetime) -> str:
    if breaker.until is None:
        return "reset"
    return "the next message" if breaker.state == "probe" else ago(breaker.until, now)
