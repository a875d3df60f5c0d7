"""manage.py deadletter stats: exact counts by queue, state, kind, attempts and reason."""

from __future__ import annotations

import argparse
from typing import Any

from .. import clock
from ..models import UNTIL_RESET
from ..operations import Stats, stats
from ..operations.statistics import QueueStats
from .args import add_common, alias, check_source
from .output import Screen
from .text import ago

HELP = "count messages by queue and state, kinds, retries and reasons"
STATES = ("pending", "scheduled", "failed", "active", "blocked", "dead")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue", metavar="NAME", help="only this queue, or those that a pattern matches"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using = alias(options)
    if options["queue"] is not None:
        check_source(options["queue"], options)
    found = stats(using=using, queue=options["queue"])
    if screen.as_json:
        screen.json(found.as_dict())
        return 0
    now = clock.now(using)

    def row(name: str, queue: QueueStats) -> list[object]:
        counts = [getattr(queue, state) for state in STATES]
        return [name, *counts, ago(queue.oldest, now), ago(queue.next_retry, now)]

    rows = [row(name, queue) for name, queue in found.queues.items()]
    rows.append(row("total", found.total))
    screen.table(["queue", *STATES, "oldest", "next retry"], rows)
    _more(screen, found, now)
    return 0


def _more(screen: Screen, found: Stats, now: Any) -> None:
    if found.kinds:
        rows = [[kind, n["waiting"], n["dead"]] for kind, n in found.kinds.items()]
        screen.lines([""])
        screen.table(["kind", "waiting", "dead"], rows)
    if found.instances:
        screen.lines([""])
        counts = [*found.instances.items(), *([("stuck", found.stuck)] if found.stuck else [])]
        screen.table(["instances", "count"], [list(x) for x in counts])
    if found.retries:
        screen.lines([""])
        screen.table(["attempts", "failed messages"], [list(x) for x in found.retries.items()])
    if found.reasons:
        screen.lines([""])
        reasons = [[name.lower(), n] for name, n in found.reasons.items()]
        screen.table(["reason", "failed messages"], reasons)
    screen.lines(
        [
            "",
            f"waiting for a time: {found.backlog.count:,}"
            + (
                f" (the first {ago(found.backlog.first, now)}, the last "
                f"{ago(found.backlog.last, now)})"
                if found.backlog.count
                else ""
            ),
            f"candidates for poison (10 attempts and more): {found.candidates:,}",
        ]
    )
    if found.breakers:
        rows = [
            [name, "it is reset" if until >= UNTIL_RESET else ago(until, now)]
            for name, until in found.breakers.items()
        ]
        screen.lines([""])
        screen.table(["held by a breaker", "until"], rows)
