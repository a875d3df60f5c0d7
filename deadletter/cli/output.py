"""Output of the command: results to stdout as tables or JSON, questions to stderr."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import reset_queries

from ..text import terminal_line
from .text import table

#: Columns of output into a file or a pipe.
_PIPED = 200


def usage(text: str) -> CommandError:
    """Return the error of a wrong use of the command: exit code 2."""
    return CommandError(terminal_line(text), returncode=2)


class Screen:
    """Writes results and messages, as text or as JSON."""

    def __init__(self, command: BaseCommand, options: dict[str, Any]) -> None:
        self.stdout, self.stderr = command.stdout, command.stderr
        self.as_json = options.get("format") == "json"
        self.always_progress = bool(options.get("progress"))
        terminal = self.stdout.isatty()
        self.width = shutil.get_terminal_size((120, 24)).columns if terminal else _PIPED

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.stdout.write(_encodable(line, self.stdout), _unstyled)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.lines(table(headings, rows, width=self.width))

    def json(self, value: object) -> None:
        # ASCII only: characters that move the cursor or change the direction are escaped.
        self.stdout.write(json.dumps(value, indent=2, default=_for_json))

    def aside(self) -> Screen:
        """Return a screen that writes to stderr, for text that is not part of the result."""
        other = copy.copy(self)
        other.stdout = self.stderr
        return other

    def say(self, *lines: str) -> None:
        """Write to stderr: for people, not part of the result."""
        for line in lines:
            self.stderr.write(_encodable(line, self.stderr), _unstyled)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask on a terminal, and refuse without one. Raises CommandError for a no."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise usage(f"{question} There is no terminal: add --yes, or preview with --dry-run.")
        self.stderr.write(f"{question} [y/N] ", _unstyled, ending="")
        self.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("nothing was changed", returncode=1)

    def progress(self, total: int | None) -> ProgressLine:
        """Return a progress report; `total` is None if the amount of work is not known."""
        live = self.stderr.isatty()
        return ProgressLine(self, total, live=live, silent=not live and not self.always_progress)


class ProgressLine:
    """Reports the progress of long work, once a second."""

    def __init__(self, screen: Screen, total: int | None, *, live: bool, silent: bool) -> None:
        self.screen, self.total, self.live, self.silent = screen, total, live, silent
        self.said = 0.0

    def __call__(self, looked_at: int) -> None:
        # With DEBUG, Django keeps the text of the last 9,000 statements, with 1,000 ids in each.
        reset_queries()
        if self.silent:
            return
        last = self.total is not None and looked_at >= self.total
        if time.monotonic() - self.said < 1 and not last:
            return
        self.said = time.monotonic()
        text = f"{looked_at:,}" if self.total is None else f"{looked_at:,} of {self.total:,}"
        # On a terminal the line overwrites itself.
        ending = "" if self.live and not last else "\n"
        start = "\r" if self.live else ""
        self.screen.stderr.write(f"{start}{text}", _unstyled, ending=ending)


def _unstyled(text: str) -> str:
    """Style function that changes nothing: Django would color everything on stderr red."""
    return text


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _for_json(value: object) -> object:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
