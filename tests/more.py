"""
Run what `make test` leaves out: `python -m tests.more [parts] [-- arguments of pytest]`.

A part is a piece of the suite, a few minutes long: the tests near the database on another version
of PostgreSQL, or those near Django on one pair of Python and Django. The part `conformance` is that
of `make conformance`, the part `wagtail` a site on both databases, the part `cluster` the outbox on
three nodes of RabbitMQ, where it is installed. Without names, all parts run.

    --list      name the parts and say which can run here
    --rotate    add one part: of those that the last change touches, or of all; by day of the year

A server or an interpreter that is not installed is skipped, and said so; a part that is named and
unknown and a test that fails end in exit code 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from tests.private_postgres import is_available, private_postgres

ROOT = Path(__file__).parent.parent

#: The versions beside 18 that deadletter supports; 16 is always here, see tests/private_postgres.
SERVERS = ("15", "16", "17")
#: The Python of each pair of .ci/matrix.
PAIRS = ("3.11", "3.12", "3.13")

#: Tests whose verdict can depend on the version of the server, in pieces of a few minutes.
NEAR_DATABASE = {
    "plans": ("tests/plans", "tests/admin/dashboard/test_plans.py"),
    "lifecycle": ("tests/lifecycle", "tests/models"),
    "races": ("tests/races", "tests/machine"),
    "operations": ("tests/operations", "tests/hostile", "tests/cli"),
    "instances": ("tests/instances", "tests/upgrades", "tests/alerts", "tests/metrics"),
}
#: Tests whose verdict can depend on the version of Django. `make matrix` runs all on each pair.
NEAR_DJANGO = ("tests/admin", "tests/alerts", "tests/cli", "tests/models", "tests/test_*.py")

#: Where a change makes these parts worth running at once.
DATABASE_FILES = tuple(
    f"deadletter/{name}/" for name in ("sql", "lifecycle", "migrations", "models", "instances")
)
OUTBOX_FILES = (
    "deadletter/outbox/",
    "deadletter/worker/relay",
    "tests/outbox/",
    "tests/brokers.py",
)
WAGTAIL_FILES = ("deadletter/tasks/", "docs/wagtail.md", "tests/wagtail/")
DJANGO_FILES = ("deadletter/admin/", "deadletter/alerts/", "deadletter/templates/", "requirements")


@dataclass(frozen=True)
class Part:
    """One piece of the suite under one condition."""

    name: str
    files: tuple[str, ...]
    touched_by: tuple[str, ...]
    server: str = ""
    python: str = ""
    #: Run instead of pytest on the files; takes no arguments of pytest.
    module: str = ""
    #: Choose the tests of a marker that are skipped unless they are asked for; both databases.
    marker: str = ""

    @property
    def is_available(self) -> bool:
        if self.marker:
            return True
        return _has_python(self.python) if self.python else is_available(self.server)

    @property
    def missing(self) -> str:
        return f"Python {self.python}" if self.python else f"PostgreSQL {self.server}"

    def run(self, arguments: list[str]) -> int:
        if self.module:
            return _call([sys.executable, "-m", self.module])
        files = [str(path.relative_to(ROOT)) for f in self.files for path in sorted(ROOT.glob(f))]
        if self.python:
            return _call([".ci/matrix", *files, *arguments], MATRIX=self.python)
        if self.marker:
            chosen = ["-m", self.marker, *files, *arguments]
            return _call([sys.executable, "-m", "tests.both_databases", *chosen])
        with private_postgres(self.server) as url:
            return _call([sys.executable, "-m", "pytest", *files, *arguments], DATABASE_URL=url)


def parts() -> dict[str, Part]:
    """Return every part by its name, in the order in which days choose them."""
    servers = [
        Part(f"postgresql-{version}-{piece}", files, DATABASE_FILES, server=version)
        for piece, files in NEAR_DATABASE.items()
        for version in SERVERS
    ]
    pairs = [
        Part(f"python-{version}-django", NEAR_DJANGO, DJANGO_FILES, python=version)
        for version in PAIRS
    ]
    others = Part(
        "conformance", (), ("deadletter/tasks/",), python=PAIRS[-1], module="tests.conformance"
    )
    wagtail = Part("wagtail", ("tests/wagtail",), WAGTAIL_FILES, marker="wagtail")
    cluster = Part("cluster", ("tests/outbox",), OUTBOX_FILES, marker="cluster")
    return {part.name: part for part in (*servers, *pairs, others, wagtail, cluster)}


def part_of_the_day(day: int, changed: list[str]) -> Part:
    """Choose one part: of those that the changed files touch, else of all that can run here."""
    able = [part for part in parts().values() if part.is_available]
    touched = [part for part in able if any(name.startswith(part.touched_by) for name in changed)]
    choice = touched or able
    return choice[day % len(choice)]


def changed_files() -> list[str]:
    """Return the files of the last commit; none where there is no git or no commit before it."""
    asked = ["git", "diff", "--name-only", "HEAD~1"]
    try:
        said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return said.stdout.splitlines()


def main(arguments: list[str]) -> int:
    # Told to end, it stops its server and the tests on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    asked, for_pytest = _split(arguments)
    known = parts()
    if asked.list:
        for part in known.values():
            print(part.name if part.is_available else f"{part.name} (not installed)")
        return 0
    if unknown := sorted(set(asked.parts) - set(known)):
        print(f"no such part: {', '.join(unknown)}; --list names them", file=sys.stderr)
        return 1
    chosen = [known[name] for name in asked.parts]
    if asked.rotate:
        day = datetime.now(UTC).timetuple().tm_yday
        chosen.append(part_of_the_day(day, changed_files()))
    return _run_all(list(dict.fromkeys(chosen)) or list(known.values()), for_pytest)


def _split(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tests.more", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rotate", action="store_true")
    return parser.parse_args(arguments[:at]), arguments[at + 1 :]


def _run_all(chosen: list[Part], arguments: list[str]) -> int:
    said: dict[str, str] = {}
    for part in chosen:
        print(f"\n=== {part.name} ===", flush=True)
        if not part.is_available:
            said[part.name] = f"skipped: {part.missing} is not installed"
        else:
            code = part.run(arguments)
            said[part.name] = "passed" if code == 0 else f"failed, exit code {code}"
        print(said[part.name], flush=True)
    print("\n" + "\n".join(f"{name}: {result}" for name, result in said.items()))
    return 1 if any(result.startswith("failed") for result in said.values()) else 0


@cache
def _has_python(version: str) -> bool:
    """True if .ci/matrix finds this interpreter."""
    return _call([".ci/matrix", "--has"], MATRIX=version) == 0


def _call(command: list[str], **environment: str) -> int:
    kept = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    return subprocess.run(command, cwd=ROOT, env={**kept, **environment}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
