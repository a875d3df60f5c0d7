"""manage.py deadletter export, import: poison records as lines of text, and back as messages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..exceptions import MessageRejected, UnknownQueue
from ..operations import Import, export_poison, import_messages
from ..operations.imports import BadRow
from ..text import terminal_line
from .args import add_common, add_filters, person, poison_filter, unknown_queue
from .output import Screen, usage

HELP_EXPORT = "write poison records as JSON lines or CSV, secrets hidden"
HELP_IMPORT = "store messages that `export` wrote, here or elsewhere; each of them once"
#: Characters of a line: the largest payload and history, escaped.
LINE = 16_000_000
#: Ids and reasons printed one by one; the rest is counted. JSON has them all.
_SHOWN = 20


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="- (default): stdout")
    add_filters(parser)
    parser.add_argument("--format", choices=["jsonl", "csv"], default="jsonl")
    parser.add_argument(
        "--reveal",
        action="store_true",
        help="show secrets: `import` refuses redacted rows",
    )
    parser.add_argument("--by", metavar="WHO", help="for the audit trail (default: the OS user)")
    parser.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")
    parser.add_argument("--database", metavar="ALIAS", help="alias to work on")


def add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSON lines; - for standard input")
    parser.add_argument(
        "--origin",
        required=True,
        metavar="NAME",
        help="the source system, always by the same name",
    )
    parser.add_argument(
        "--queue",
        metavar="NAME",
        help="one queue for all rows (default: the queue that each row names)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, report what would be done"
    )
    parser.add_argument("--by", metavar="WHO", help="for the audit trail (default: the OS user)")
    parser.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")
    parser.add_argument(
        "--progress", action="store_true", help="report progress, also without a terminal"
    )
    add_common(parser)


def run_export(screen: Screen, options: dict[str, Any]) -> int:
    wanted = poison_filter(options)
    lines = export_poison(
        wanted,
        format=options["format"],
        reveal=options["reveal"],
        by=person(options),
        why=options["why"],
        using=options["database"],
    )
    count = 0
    with _opened(options["file"], "w", screen) as file:
        for line in lines:
            file.write(line)
            count += 1
    screen.say(f"{count - (options['format'] == 'csv'):,} exported")
    return 0 if count else 1


def run_import(screen: Screen, options: dict[str, Any]) -> int:
    with _opened(options["file"], "r", screen) as file:
        try:
            found = import_messages(
                _rows(file),
                origin=options["origin"],
                queue=options["queue"],
                by=person(options),
                why=options["why"],
                dry_run=options["dry_run"],
                progress=screen.progress(None),
                using=options["database"],
            )
        except UnknownQueue as error:
            raise unknown_queue(error) from None
        except MessageRejected as error:
            raise usage(f"--{error}") from None
    _report(screen, found, dry_run=options["dry_run"])
    return 0 if found.rows and not found.refused else 1


def _report(screen: Screen, found: Import, *, dry_run: bool) -> None:
    if screen.as_json:
        screen.json(
            {
                "act": "import",
                "dry_run": dry_run,
                "rows": found.rows,
                "imported": found.imported,
                "ignored": found.ignored,
                "refused": {str(row): text for row, text in found.refused.items()},
                "ids": {str(source): id for source, id in found.ids.items()},
                "audit_entry": found.entry_id or None,
            }
        )
        return
    word = "would be imported; nothing was changed" if dry_run else "imported"
    lines = [f"{len(found.imported):,} of {found.rows:,} {word}"]
    if found.ignored:
        some = ", ".join(str(id) for id in found.ignored[:_SHOWN])
        more = " …" if len(found.ignored) > _SHOWN else ""
        why = "ignored because they were already imported"
        lines.append(f"{len(found.ignored):,} {why}: {some}{more}")
    refused = list(found.refused.items())
    lines += [f"row {row}: refused: {terminal_line(text)}" for row, text in refused[:_SHOWN]]
    if len(refused) > _SHOWN:
        lines.append(f"refused in all: {len(refused):,}")
    if found.entry_id:
        lines.append(f"audit entry {found.entry_id}")
    screen.lines(lines)


def _rows(file: TextIO) -> Iterator[Any]:
    """Yield the row of each line; a line that is not JSON yields a BadRow, which is refused."""
    while line := file.readline(LINE):
        if len(line) == LINE and not line.endswith("\n"):
            while (rest := file.readline(LINE)) and not rest.endswith("\n"):
                pass
            yield BadRow(f"longer than {LINE:,} characters")
        elif line.strip():
            yield _row(line)


def _row(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow(f"not JSON: {error}")


@contextmanager
def _opened(name: str, mode: str, screen: Screen) -> Iterator[Any]:
    if name == "-":
        yield sys.stdin if mode == "r" else _Standard(screen)
        return
    try:
        with Path(name).open(mode, encoding="utf-8", newline="" if mode == "w" else None) as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{name}: {error}") from None


class _Standard:
    """The standard output of the command, without added line ends."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, text: str) -> None:
        self._screen.stdout.write(text, ending="")
