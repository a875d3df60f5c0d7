"""manage.py deadletter retry: retry poison records, dead queues, and failed messages."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .. import payload_types
from ..checks import look_up_handlers
from ..conf import get_settings
from ..exceptions import PayloadRejected
from ..lifecycle.values import ActResult
from ..models import Damaged, Message, PoisonRecord, State, is_moved
from ..operations import (
    DeadQueueFilter,
    PoisonFilter,
    Total,
    diff,
    find_moved,
    get_message,
    get_poison,
    redact,
    retry_dead_queue,
    retry_failed,
    retry_matching,
    retry_messages,
    retry_poison,
    whereabouts,
)
from ..operations.hidden_values import refuse_markers, restore
from ..operations.poison_records import AS_IT_WAS, RetryOptions
from ..payload import accept
from .args import (
    FILTERS,
    ActSelection,
    add_act,
    add_selection,
    alias,
    check_queue,
    person,
    poison_filter,
    rate,
    select,
)
from .confirm import ActPlan, on_filter, on_ids, on_messages
from .lists import message_filter
from .output import ProgressLine, Screen, usage

HELP = "put poison back into its queue with a fresh count, or retry failed messages now"


def add(parser: argparse.ArgumentParser) -> None:
    add_selection(
        parser, message="ids of messages: a dead one is put back, a failed one is retried now"
    )
    parser.add_argument(
        "--failed",
        action="store_true",
        help="retry failed messages now, instead of poison; filters narrow them, also --reason",
    )
    parser.add_argument(
        "--keep-attempts",
        action="store_true",
        help="with --failed or --message: do not count attempts from 0 again",
    )
    parser.add_argument(
        "--dead-queue",
        metavar="NAME",
        help="move messages of this dead queue back to where they died; --name and "
        "--fingerprint narrow them",
    )
    parser.add_argument("--to-queue", metavar="NAME", help="into another queue")
    parser.add_argument("--rate", type=rate, metavar="N", help="at most N messages per second")
    parser.add_argument(
        "--payload",
        metavar="JSON",
        help="another payload, for one id only: JSON, @file, or @- for standard input",
    )
    add_act(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    if options["failed"]:
        return _run_failed(screen, options)
    if options["dead_queue"] is not None:
        return _run_dead_queue(screen, options)
    chosen = select(options)
    if options["keep_attempts"] and not chosen.message_ids:
        raise usage("--keep-attempts is for --failed and --message: the dead count from 0 again")
    terms, difference = _retry_options(options, chosen)
    plan = ActPlan("retry", "retried", "Retry", _manner(options), difference)
    about: dict[str, Any] = {"by": person(options), "why": options["why"]}
    about["using"] = options["database"]

    if chosen.wanted is not None:

        def matching(wanted: PoisonFilter, progress: ProgressLine) -> Total:
            place = {"queue": terms["queue"], "rate": terms["rate"]}
            limit = options["limit"]
            return retry_matching(wanted, limit=limit, progress=progress, **place, **about)

        return on_filter(screen, options, plan, chosen.wanted, matching)

    def named(ids: list[int]) -> ActResult:
        if chosen.message_ids:
            reset = not options["keep_attempts"]
            return retry_messages(ids, **terms, reset=reset, **about)
        return retry_poison(ids, **terms, **about)

    messages = bool(chosen.message_ids)
    ids = chosen.message_ids or chosen.poison_ids
    return on_ids(screen, options, plan, ids, named, messages=messages, dead_too=messages)


def _run_failed(screen: Screen, options: dict[str, Any]) -> int:
    for key in ("ids", "message", "all", "to_queue", "rate", "payload"):
        if options[key]:
            raise usage("--failed takes filters: ids go after --message, the rest is for poison")
    wanted = message_filter(options)
    about: dict[str, Any] = {"by": person(options), "why": options["why"]}
    about |= {"using": options["database"], "limit": options["limit"]}
    about["reset"] = not options["keep_attempts"]
    return on_messages(
        screen,
        options,
        ActPlan("retry", "retried", "Retry now", _manner(options)),
        wanted.messages(State.FAILED, alias(options)),
        lambda progress: retry_failed(wanted, progress=progress, **about),
    )


def _run_dead_queue(screen: Screen, options: dict[str, Any]) -> int:
    others = [key for key in FILTERS if key not in ("name", "fingerprint")]
    for key in ("ids", "message", "all", "payload", *others):
        if options[key]:
            raise usage("--dead-queue takes --name, --fingerprint, --limit, --to-queue and --rate")
    for name in (options["dead_queue"], options["to_queue"]):
        if name is not None:
            check_queue(name, options)
    given = poison_filter(options)  # for its checks
    wanted = DeadQueueFilter(
        dead_queue=options["dead_queue"], name=given.name, fingerprint=given.fingerprint
    )
    about: dict[str, Any] = {"by": person(options), "why": options["why"]}
    about |= {"using": options["database"], "limit": options["limit"]}
    about |= {"queue": options["to_queue"], "rate": options["rate"]}
    try:
        RetryOptions(queue=about["queue"], rate=about["rate"])
    except ValueError as error:
        raise usage(str(error)) from None
    return on_messages(
        screen,
        options,
        ActPlan("retry", "retried", "Retry", _manner(options)),
        wanted.messages(alias(options)),
        lambda progress: retry_dead_queue(wanted, progress=progress, **about),
    )


def _retry_options(
    options: dict[str, Any], chosen: ActSelection
) -> tuple[dict[str, Any], list[str] | None]:
    """Check queue, rate and payload before the question; return also how the payload changes."""
    payload, difference = AS_IT_WAS, None
    found = {"queue": options["to_queue"], "rate": options["rate"]}
    try:
        if options["payload"] is not None:
            if len(chosen.poison_ids) + len(chosen.message_ids) != 1:
                raise usage("--payload replaces the payload of one id; name one")
            payload, difference = _repaired(_payload(options["payload"]), options, chosen)
        # A marker that is left was in the payload before: `restore` refuses any other.
        found |= {"payload": payload, "literal": True}
        RetryOptions(**found)
    except PayloadRejected as error:
        raise usage(f"the payload was refused: {error}") from None
    except (ValueError, RecursionError) as error:
        raise usage(str(error)) from None
    if options["to_queue"] is not None:
        check_queue(options["to_queue"], options)
    return found, difference


def _repaired(
    given: Any, options: dict[str, Any], chosen: ActSelection
) -> tuple[Any, list[str] | None]:
    """Return the payload with its hidden values put back, and how it changes."""
    record = _record(options, chosen)
    accept(given, limit=get_settings().payload_limit)
    if record is None:
        refuse_markers(given)
        return given, None
    if isinstance(record.payload, Damaged):
        refuse_markers(given)
        value = given
    else:
        value = restore(given, record.payload)
    look_up_handlers()
    payload_types.check(record.kind, record.name, value)
    return value, _difference(record.payload, value)


def _record(options: dict[str, Any], chosen: ActSelection) -> PoisonRecord | Message | None:
    using = alias(options)
    if chosen.poison_ids:
        return get_poison(chosen.poison_ids[0], using=using)
    id = chosen.message_ids[0]
    place = whereabouts(id, using=using)
    if place is not None and place[1]:
        return get_poison(place[1], using=using)
    found = get_message(id, using=using) or find_moved(id, using=using)
    return found if isinstance(found, Message) and is_moved(found) else None


def _difference(before: Any, after: Any) -> list[str]:
    """Compare two payloads as `show` prints them: redacted."""
    texts = [
        found if isinstance(found, str) else json.dumps(found, indent=2, default=str)
        for found in (redact(before), redact(after))
    ]
    lines = [f"{line.sign} {line.text}" for line in diff.lines(*texts)]
    return lines or ["  nothing but hidden values changes"]


def _payload(given: str) -> Any:
    text = given
    if given.startswith("@"):
        try:
            text = sys.stdin.read() if given == "@-" else Path(given[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"--payload: {error}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise usage(f"--payload: not JSON: {error}") from None


def _manner(options: dict[str, Any]) -> str:
    parts = []
    if options["keep_attempts"]:
        parts.append("without counting from 0 again")
    if options["to_queue"]:
        parts.append(f"into queue {options['to_queue']}")
    if options["rate"]:
        parts.append(f"at {options['rate']:g} per second")
    if options["payload"] is not None:
        parts.append("with the given payload")
    return ", ".join(parts)
