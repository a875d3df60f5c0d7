"""manage.py deadletter candidates: messages that failed so often that they may never succeed."""

from __future__ import annotations

import argparse
from typing import Any

from .. import clock
from ..operations import poison_candidates
from .args import add_common, alias, number
from .output import Screen
from .rows import message_object, message_table

HELP = "list failed messages with many attempts that wait for a retry, most attempts first"
ATTEMPTS = 10


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attempts",
        type=number,
        default=ATTEMPTS,
        metavar="N",
        help=f"with at least so many attempts (default {ATTEMPTS})",
    )
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"]
    found = poison_candidates(options["attempts"], limit=limit + 1, using=using)
    now = clock.now(using)
    if screen.as_json:
        screen.json([message_object(message, now) for message in found[:limit]])
    elif found:
        message_table(screen, found[:limit], now)
    if not found:
        screen.say(f"no failed message was tried {options['attempts']:,} times or more")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: raise --attempts or --limit")
    return 0 if found else 1
