"""manage.py deadletter streams: streams with messages that cannot run, and what holds them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from typing import Any

from .. import clock
from ..operations import HeldStream, get_stream, list_streams
from ..operations.streams import COUNTED
from .args import add_common, alias, check_queue, number
from .output import Screen, usage
from .text import ago

HELP = "list streams with messages that cannot run, and what holds them"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queue", metavar="NAME", help="with --stream: one stream of this queue")
    parser.add_argument("--stream", metavar="NAME", help="with --queue: this stream only")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"]
    if (options["queue"] is None) != (options["stream"] is None):
        raise usage("--queue and --stream name one stream together: give both or none")
    if options["queue"] is not None:
        check_queue(options["queue"], options)
        one = get_stream(options["queue"], options["stream"], using=using)
        found = [] if one is None else [one]
    else:
        found = list_streams(limit=limit + 1, using=using)
    if screen.as_json:
        screen.json([stream_object(stream) for stream in found[:limit]])
    elif found:
        _table(screen, found[:limit], clock.now(using))
    if not found:
        screen.say("no stream is blocked or halted")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: raise --limit")
    return 0 if found else 1


def stream_object(stream: HeldStream) -> dict[str, Any]:
    """Return a stream as JSON; `waiting_more` tells that `waiting` is only a lower bound."""
    found = asdict(stream)
    found["waiting"] = min(stream.waiting, COUNTED)
    found["waiting_more"] = stream.waiting > COUNTED
    return found


def _table(screen: Screen, streams: list[HeldStream], now: datetime) -> None:
    screen.table(
        ["queue", "stream", "is", "head", "name", "behind it", "since", "why"],
        [
            [
                stream.queue,
                stream.stream,
                stream.why,
                stream.message_id or "-",
                stream.message_name or "-",
                f"{COUNTED:,}+" if stream.waiting > COUNTED else f"{stream.waiting:,}",
                ago(stream.since, now),
                _why(stream, now),
            ]
            for stream in streams
        ],
    )


def _why(stream: HeldStream, now: datetime) -> str:
    """Return what must happen before the stream continues."""
    if stream.why == "halted":
        return f"poison record {stream.poison_id} halts it: retry or remove it"
    if stream.why == "waiting":
        what = "failed and is tried again" if stream.failed else "is scheduled"
        return f"its head {what} {ago(stream.until, now)}"
    if stream.why == "active":
        return "a worker has its head"
    return "its head is due: a worker will claim it"
