"""manage.py deadletter list: poison records, newest first, or messages in one state."""

from __future__ import annotations

import argparse
from typing import Any

from .. import clock
from ..models import State
from ..operations import MessageFilter
from .args import FILTERS, add_common, add_filters, alias, number, poison_filter
from .output import Screen, usage
from .rows import message_object, message_table, poison_object, poison_table

HELP = "list poison records, or messages in another state"
#: Filters that messages in a queue have too.
OF_MESSAGES = ("queue", "name", "kind", "instance", "stream", "reason")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        choices=State.values,
        default=State.DEAD,
        help="dead (default): poison records, newest first; others: messages, oldest first",
    )
    add_filters(parser)
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    dead = options["state"] == State.DEAD
    using, limit = alias(options), options["limit"]
    now = clock.now(using)
    if dead:
        wanted = poison_filter(options)
        records = list(wanted.records(using).order_by("-pk")[: limit + 1])
        found = len(records)
        if screen.as_json:
            screen.json([poison_object(record) for record in records[:limit]])
        elif found:
            poison_table(screen, records[:limit], now)
    else:
        rows = message_filter(options).messages(options["state"], using).with_error_start()
        messages = list(rows[: limit + 1])
        found = len(messages)
        if screen.as_json:
            screen.json([message_object(message, now) for message in messages[:limit]])
        elif found:
            message_table(screen, messages[:limit], now)
    if not found:
        screen.say("nothing matches")
    elif found > limit:
        screen.say(f"there are more than {limit:,}: narrow the filter or raise --limit")
    return 0 if found else 1


def message_filter(options: dict[str, Any]) -> MessageFilter:
    """Return the filter of messages in a queue. Raises CommandError with exit code 2."""
    for key in FILTERS:
        if options[key] is not None and key not in OF_MESSAGES:
            raise usage(f"--{key} is for poison records; messages in a queue do not have it")
    wanted = poison_filter(options)  # for its checks
    return MessageFilter(**{key: getattr(wanted, key) for key in OF_MESSAGES})
