"""manage.py deadletter health: a health check for probes and supervisors."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..operations import Health, health
from ..operations.health_checks import MOST
from ..text import terminal_line
from .args import seconds
from .output import Screen

HELP = "exit 0 when the database answers and live workers serve every queue with work"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-age",
        type=seconds,
        default=30.0,
        metavar="S",
        help="a worker is alive if it was seen within so many seconds",
    )
    parser.add_argument(
        "--max-wait",
        type=seconds,
        metavar="S",
        help="a message that has been due for longer is a problem",
    )
    parser.add_argument(
        "--max-poison",
        type=_number,
        metavar="N",
        help="more than N poison records within --window are a problem",
    )
    parser.add_argument(
        "--window",
        type=seconds,
        default=3600.0,
        metavar="S",
        help="for --max-poison (default: 3600)",
    )
    parser.add_argument(
        "--min-workers",
        type=_number,
        default=1,
        metavar="N",
        help="fewer live workers are a problem; 0: only a queue with work needs one",
    )
    parser.add_argument("--worker", metavar="NAME", help="only the worker of this name")
    parser.add_argument("--host", metavar="HOST", help="only workers of this host")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="a database that does not answer within so many seconds is unreachable",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="open circuit breakers and halted streams are problems, not only warnings",
    )
    parser.add_argument("--format", choices=["text", "table", "json"], default="text")
    parser.add_argument("--database", metavar="ALIAS", help="alias to look at")


def run(screen: Screen, options: dict[str, Any]) -> int:
    found = health(
        max_age=options["max_age"],
        max_wait=options["max_wait"],
        max_poison=options["max_poison"],
        window=options["window"],
        min_workers=options["min_workers"],
        worker=options["worker"],
        host=options["host"],
        timeout=options["timeout"],
        strict=options["strict"],
        using=options["database"],
    )
    screen.lines([json.dumps(found.as_dict())] if screen.as_json else _as_text(found))
    return 0 if found.ok else 1


def _as_text(found: Health) -> list[str]:
    warnings = [text for text in found.warnings if text not in found.problems]
    shown = [f"- warning: {terminal_line(text)}" for text in warnings]
    if not found.ok:
        problems = [f"- {terminal_line(problem)}" for problem in found.problems]
        return ["not healthy:", *problems, *shown]
    names = terminal_line(", ".join(found.workers))
    return [f"healthy: {len(found.workers)} live worker(s): {names}", *shown]


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 5 or int(text) > MOST:
        raise argparse.ArgumentTypeError(f"expected a number up to {MOST}, got {text!r}")
    return int(text)
