"""manage.py deadletter: what operators and supervisors ask on the command line."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...operations import Health, health


class Command(BaseCommand):
    help = "Look after queues, messages and workers."
    # A liveness probe must be able to say that the database is away.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parts = parser.add_subparsers(dest="part", required=True, metavar="COMMAND")
        part = parts.add_parser(
            "health",
            help="exit 0 when the database answers and live workers serve every queue with work",
        )
        part.add_argument(
            "--max-age",
            type=_seconds,
            default=30.0,
            metavar="S",
            help="a worker counts when it was seen within so many seconds",
        )
        part.add_argument(
            "--max-wait",
            type=_seconds,
            metavar="S",
            help="a message that is due for longer is a problem",
        )
        part.add_argument("--worker", metavar="NAME", help="only the worker of this name")
        part.add_argument("--host", metavar="HOST", help="only workers of this host")
        part.add_argument("--format", choices=["text", "json"], default="text")
        part.add_argument("--database", metavar="ALIAS", help="alias to look at")

    def handle(self, *args: Any, **options: Any) -> None:
        found = health(
            max_age=options["max_age"],
            max_wait=options["max_wait"],
            worker=options["worker"],
            host=options["host"],
            using=options["database"],
        )
        self.stdout.write(_as_json(found) if options["format"] == "json" else _as_text(found))
        if not found.ok:
            sys.exit(1)


def _as_text(found: Health) -> str:
    if found.ok:
        return f"healthy: {len(found.workers)} live worker(s): {', '.join(found.workers)}"
    return "\n".join(["not healthy:", *(f"- {problem}" for problem in found.problems)])


def _as_json(found: Health) -> str:
    return json.dumps({"ok": found.ok, "problems": found.problems, "workers": found.workers})


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds, got {text!r}")
    return seconds
