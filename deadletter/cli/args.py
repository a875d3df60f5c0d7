"""The arguments that sub-commands share, and the functions that read their values."""

from __future__ import annotations

import argparse
import difflib
import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from .. import clock
from ..durations import as_timedelta, has_unit
from ..exceptions import UnknownQueue
from ..models import Kind, primary_alias
from ..operations import PoisonFilter, require_queue
from ..patterns import is_pattern
from ..status import FailureReason
from ..text import terminal_line
from .output import usage

FILTERS = (
    "queue",
    "name",
    "kind",
    "instance",
    "reason",
    "fingerprint",
    "exception",
    "stream",
    "tag",
    "text",
    "since",
    "until",
)


class MixedParser(CommandParser):
    """
    Accepts options between positional arguments: `schedules run --by ann "nightly report"`.

    argparse would take an optional positional argument as absent at the first option.
    """

    _is_mixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_mixed:  # called by the method below
            return super().parse_known_args(args, namespace)
        self._is_mixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixed = False


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--database", metavar="ALIAS", help="alias of the database")


def add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which records (all that are given must match)")
    group.add_argument(
        "--queue", metavar="NAME", help="the queue it died in, or a pattern such as 'tenant-a/*'"
    )
    group.add_argument("--name", metavar="NAME", help="the message's name")
    group.add_argument("--kind", choices=Kind.values)
    group.add_argument("--instance", metavar="ID")
    group.add_argument(
        "--reason", metavar="REASON", help=", ".join(r.name.lower() for r in FailureReason)
    )
    group.add_argument("--fingerprint", metavar="HEX", help="records of one group")
    group.add_argument(
        "--exception", metavar="PATH", help="the exact path, for example shop.errors.Full"
    )
    group.add_argument("--stream", metavar="NAME")
    group.add_argument("--tag", metavar="KEY=VALUE", help="a tag that the failed message had")
    group.add_argument("--text", metavar="TEXT", help="a part of the last error")
    group.add_argument("--since", metavar="WHEN", help="died since: 2h, 3d, or 2026-01-31T12:00")
    group.add_argument("--until", metavar="WHEN", help="died before: as for --since")


def add_act(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, report what would be done"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--by", metavar="WHO", help="for the audit trail (default: the OS user)")
    parser.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")
    add_common(parser)


@dataclass(frozen=True)
class ActSelection:
    """The records or messages of an act. Exactly one field is set."""

    poison_ids: list[int] = field(default_factory=list)
    message_ids: list[int] = field(default_factory=list)
    wanted: PoisonFilter | None = None


def add_selection(parser: argparse.ArgumentParser, *, message: str) -> None:
    parser.add_argument("ids", nargs="*", type=number, metavar="ID", help="ids of poison records")
    parser.add_argument("--message", nargs="+", type=number, metavar="ID", default=[], help=message)
    parser.add_argument("--all", action="store_true", help="every poison record")
    add_filters(parser)
    parser.add_argument(
        "--limit", type=number, metavar="N", help="only the N matches that died first"
    )
    parser.add_argument(
        "--progress", action="store_true", help="report progress, also without a terminal"
    )


def select(options: dict[str, Any]) -> ActSelection:
    """Read the selection. Raises CommandError (2) if there is none, or more than one."""
    wanted = poison_filter(options)
    given = {
        "ids": bool(options["ids"]),
        "--message": bool(options["message"]),
        "a filter": bool(wanted),
        "--all": options["all"],
    }
    named = [name for name, there in given.items() if there]
    if not named:
        raise usage("name ids, --message ids, a filter, or --all")
    if len(named) > 1:
        raise usage(f"{' and '.join(named)} contradict each other: use one of them")
    if options["limit"] is not None and not (wanted or options["all"]):
        raise usage("--limit is for filters and --all")
    if options["ids"]:
        return ActSelection(poison_ids=list(dict.fromkeys(options["ids"])))
    if options["message"]:
        return ActSelection(message_ids=list(dict.fromkeys(options["message"])))
    return ActSelection(wanted=wanted)


def person(options: dict[str, Any]) -> str:
    if options.get("by"):
        return str(options["by"])
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container whose user has no name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def poison_filter(options: dict[str, Any]) -> PoisonFilter:
    """Return the filter of the options. Raises CommandError with exit code 2."""
    given: dict[str, Any] = {key: options[key] for key in FILTERS if options[key] is not None}
    for key, value in given.items():
        if value == "":
            raise usage(f"--{key}: expected a value")
    for key in ("since", "until"):
        if key in given:
            given[key] = moment(key, given[key], options)
    try:
        wanted = PoisonFilter.from_dict(given)
    except ValueError as error:
        raise usage(f"--{error}") from None
    if wanted.queue is not None:
        # Records of a deleted queue can still be read, retried in another queue and removed.
        check_source(wanted.queue, options)
    return wanted


def check_source(name: str, options: dict[str, Any]) -> None:
    """Refuse a queue or pattern that matches neither a queue nor the queue of a poison record."""
    try:
        require_queue(name, or_pattern=True, or_poison=True, using=options["database"])
    except UnknownQueue as error:
        raise unknown_queue(error) from None


def check_queue(name: str, options: dict[str, Any]) -> None:
    try:
        require_queue(name, using=options["database"])
    except UnknownQueue as error:
        raise unknown_queue(error) from None


def unknown_queue(error: UnknownQueue) -> CommandError:
    close = difflib.get_close_matches(error.name, error.existing, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else "."
    shown = ", ".join(error.existing[:20]) or "none"
    if is_pattern(error.name):
        return usage(
            f"no queue matches {error.name!r} (existing: {shown}); dead queues, the internal "
            "queue and destinations are named exactly"
        )
    return usage(f"there is no queue {error.name!r}{meant} (existing: {shown})")


def matched(names: Sequence[str], pattern: str) -> str:
    """Return the sentence that names the queues that a pattern matches."""
    return terminal_line(f"{pattern} matches {len(names):,}: {', '.join(names[:20])}") + (
        " …" if len(names) > 20 else ""
    )


def number(text: str) -> int:
    """Read an id or a count."""
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:20]) < 2**63:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text[:40]!r}")
    return int(text)


def rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number per second, got {text!r}") from None


def span(text: str) -> timedelta:
    """Read an age: 90s, 15m, 2h, 1d12h. A number without a unit is refused: days may be meant."""
    if not has_unit(text):
        raise argparse.ArgumentTypeError(
            f"expected a duration with a unit, 2h or 30d, got {text!r}"
        )
    return duration(text)


def duration(text: str) -> timedelta:
    """Read a duration; a number without a unit is seconds."""
    try:
        return as_timedelta(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("duration: ")) from None


def seconds(text: str) -> float:
    """Read a duration that is longer than 0, as seconds."""
    found = duration(text).total_seconds()
    if not found:
        raise argparse.ArgumentTypeError("must be more than 0")
    return found


def moment(key: str, text: str, options: dict[str, Any]) -> datetime:
    """Read a time, or a duration before now. A time without a zone is in TIME_ZONE."""
    try:
        return clock.now(alias(options)) - span(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        found = parse_datetime(text)
        day = parse_date(text) if found is None else None
    except ValueError:
        found = day = None
    if day is not None:
        found = datetime.combine(day, time())
    if found is None:
        raise usage(f"--{key}: expected 2h, 3d or a time such as 2026-01-31T12:00, got {text!r}")
    try:
        return timezone.make_aware(found) if found.tzinfo is None else found
    except OverflowError:
        raise usage(f"--{key}: {text} is too far away") from None


def alias(options: dict[str, Any]) -> str:
    return primary_alias(options["database"])
