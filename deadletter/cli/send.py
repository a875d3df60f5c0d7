"""manage.py deadletter send: store one message and print its id."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..checks import look_up_handlers
from ..exceptions import MessageRejected, UnknownQueue
from ..lifecycle import send
from ..models import Message
from .args import add_common, alias, span, unknown_queue
from .output import Screen, usage

HELP = "send one message and print its id"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the message's name, as in its handler")
    parser.add_argument(
        "--payload", metavar="JSON", help="JSON, @file, or - for standard input (default: null)"
    )
    parser.add_argument("--queue", metavar="NAME", default="default", help="(default: default)")
    parser.add_argument("--stream", metavar="NAME", help="its messages are handled in order")
    parser.add_argument("--key", metavar="TEXT", help="at most one unfinished message has a key")
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="-100 (first) to 100 (last)"
    )
    parser.add_argument(
        "--delay", type=_duration, metavar="TIME", help="not due before: 90, 90s, 2h"
    )
    parser.add_argument(
        "--expires-in", type=_duration, metavar="TIME", help="dead if not handled by then"
    )
    parser.add_argument("--headers", metavar="JSON", help="an object: JSON or @file")
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    payload = _json("--payload", options["payload"])
    headers = _json("--headers", options["headers"])
    before = _holder(options)
    look_up_handlers()
    try:
        message = send(
            options["name"],
            payload,
            queue=options["queue"],
            stream=options["stream"],
            delay=options["delay"],
            expires_in=options["expires_in"],
            key=options["key"],
            priority=options["priority"],
            headers=headers,
            using=options["database"],
        )
    except UnknownQueue as error:
        raise unknown_queue(error) from None
    except MessageRejected as error:
        raise usage(f"the message was refused: {error}") from None
    is_new = message.pk != before
    if not is_new:
        screen.say(f"message {message.pk} has this key and is not finished; nothing was stored")
    if screen.as_json:
        found = {"message_id": message.pk, "queue": options["queue"], "name": message.name}
        screen.json(found | {"stored": is_new, "available_at": message.available_at})
    else:
        screen.lines([str(message.pk)])
    return 0


def _holder(options: dict[str, Any]) -> int | None:
    """Return the unfinished message that has the key already."""
    if options["key"] is None:
        return None
    rows = Message.objects.using(alias(options)).filter(queue__name=options["queue"])
    return rows.filter(key=options["key"]).values_list("pk", flat=True).first()


def _json(option: str, given: str | None) -> Any:
    """Read an option that is JSON, or names a file with it. Raises CommandError (2)."""
    if given is None:
        return None
    text = given
    try:
        if given in ("-", "@-"):
            text = sys.stdin.read()
        elif given.startswith("@"):
            text = Path(given[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise usage(f"{option}: {error}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise usage(f"{option}: not JSON: {error}") from None


def _duration(text: str) -> timedelta:
    """Read 90 (seconds), 90s, 2h, 3d."""
    if text.isascii() and text.isdecimal():
        text += "s"
    return span(text)
