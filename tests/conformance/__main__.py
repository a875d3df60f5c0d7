"""
Run the tests of Django Tasks against our backend: `python -m tests.conformance [names] [--sqlite]`.

Names choose suites whose names contain one of them, `--list` shows them. Each runs on SQLite and on
PostgreSQL (DATABASE_URL, or a private server). An interpreter that is not installed is named, and
its suites do not run. The last line is `N passed, N failed, N skipped`; the exit code is 1 if a
test failed or none ran.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.both_databases import postgresql

from . import sources


@dataclass(frozen=True)
class Suite:
    """The tests of one project for one library, on one pair of Python and Django."""

    name: str
    python: str
    library: str

    @property
    def interpreter(self) -> Path:
        return sources.ROOT / ".matrix" / self.python / "bin" / "python"

    def folder(self) -> Path:
        if self.name.startswith("django-tasks-db"):
            return sources.tasks_db_suite(self.library)
        if self.library == "django_tasks":
            return sources.django_suite(sources.DJANGO, self.library)
        version = [self.interpreter, "-m", "django", "--version"]
        installed = subprocess.run(version, check=True, capture_output=True, text=True)
        return sources.django_suite(installed.stdout.strip(), self.library)


SUITES = (
    Suite("django-6.1", "3.13", "django.tasks"),
    Suite("django-6.0", "3.12", "django.tasks"),
    Suite("backport-on-5.2", "3.11", "django_tasks"),
    Suite("backport-on-6.1", "3.13", "django_tasks"),
    Suite("django-tasks-db-on-6.1", "3.13", "django.tasks"),
    Suite("django-tasks-db-on-5.2", "3.11", "django_tasks"),
)

#: The last line of a suite.
COUNTS = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")


def main(arguments: list[str]) -> int:
    # Told to end, it stops its server on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sqlite", action="store_true", help="leave out PostgreSQL")
    asked = parser.parse_args(arguments)
    chosen = [s for s in SUITES if not asked.names or any(name in s.name for name in asked.names)]
    if asked.list:
        print("\n".join(suite.name for suite in chosen))
        return 0
    with nullcontext() if asked.sqlite else postgresql() as url:
        counts = list(_run_all(chosen, {"SQLite": "", **({"PostgreSQL": url} if url else {})}))
    passed, failed, skipped = (sum(numbers) for numbers in zip((0, 0, 0), *counts, strict=True))
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


def _run_all(chosen: list[Suite], databases: dict[str, str]) -> Iterator[tuple[int, int, int]]:
    for suite in chosen:
        if not _has_python(suite.python):
            print(f"\n=== {suite.name}: Python {suite.python} is not installed", flush=True)
            continue
        if not _install(suite.python):
            print(f"\n=== {suite.name}: its environment cannot be installed", flush=True)
            yield 0, 1, 0
            continue
        folder = suite.folder()
        for database, url in databases.items():
            print(f"\n=== {suite.name}, {database}", flush=True)
            yield _run(suite, folder, url)


def _run(suite: Suite, folder: Path, url: str) -> tuple[int, int, int]:
    """Run a suite on a database; return what passed, failed and was skipped."""
    command = [suite.interpreter, "-m", "tests.conformance.suite", folder, suite.library]
    environment = {**os.environ, "DATABASE_URL": url}
    done = subprocess.run(
        command, cwd=sources.ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, end="", flush=True)
    if found := COUNTS.fullmatch((done.stdout.splitlines() or [""])[-1]):
        passed, failed, skipped = map(int, found.groups())
        return passed, failed, skipped
    print(f"the suite ended without a count, exit code {done.returncode}", flush=True)
    return 0, 1, 0


@cache
def _has_python(version: str) -> bool:
    return _matrix("--has", version).returncode == 0


@cache
def _install(version: str) -> bool:
    done = _matrix("--install", version)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return done.returncode == 0


def _matrix(option: str, version: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MATRIX": version}
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run([".ci/matrix", option], cwd=sources.ROOT, env=environment, **said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
