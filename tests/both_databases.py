"""
Run the suite on SQLite and on PostgreSQL: `python -m tests.both_databases [arguments of pytest]`.

Side by side where there is more than one processor: SQLite as it goes, then what PostgreSQL said.
SQLite is the quicker of the two: after it, its processor takes the tests of the worker over from
PostgreSQL, on a server of their own, unless arguments choose tests or DATABASE_URL a server.
One after the other with an argument that wants the terminal (-s, --pdb, --trace).
DATABASE_URL names the PostgreSQL server to use; without it a private one lives as long as the run.
Without arguments the plans run on the older server too: planners differ more than anything else.
PRIVATE_POSTGRES_VERSION (16, 18, or one that Debian installed) chooses that of the private one.
`--fast` as the first argument leaves out what is marked `process` or `slow`, and uses pytest-xdist.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from tests.private_postgres import private_postgres

#: What is left to whoever is done first: about a third of PostgreSQL's time.
LATER = "tests/worker"
#: What also runs on another server: version and tests. More of that is in tests.more.
OLDER, ALSO = "16", "tests/plans"
#: The arguments of pytest that `--fast` stands for. The databases are kept and made anew each time:
#: a thread that a test left may still be connected when they would be removed.
FAST = ("-q", "-m", "not process and not slow", "-n", "2", "--dist", "worksteal")
FAST += ("--reuse-db", "--create-db")
#: Tests that use no database: `--fast` runs them once.
WITHOUT_DATABASE = (
    "tests/mutants",
    "tests/pure",
    "tests/structure",
    "tests/test_behaviours.py",
    "tests/test_docs.py",
    "tests/test_reliability.py",
    "tests/test_security.py",
    "tests/test_translations.py",
)
POSTGRESQL_SCHEMES = ("postgres://", "postgresql://", "pgsql://", "psql://")


class Interrupted(Exception):
    """The run was told to end; the exit code says by which signal."""


class Run:
    """One run of both halves; keeps count of what was asked of it and what came of it."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.results: dict[str, int] = {}
        self.signal: int | None = None
        self.running: list[subprocess.Popen] = []

    @property
    def is_side_by_side(self) -> bool:
        wants_terminal = {"-s", "--pdb", "--trace"} & set(self.arguments)
        return not wants_terminal and (os.cpu_count() or 1) > 1

    @property
    def is_shared_out(self) -> bool:
        return self.is_side_by_side and self.is_whole

    @property
    def is_whole(self) -> bool:
        return not self.arguments and not given_server()

    def halves(self, url: str) -> None:
        if not self.is_side_by_side:
            self.end("SQLite", self.start(None))
            self.end("PostgreSQL", self.start(url))
            self.also_on_older()
            return
        with tempfile.TemporaryFile() as said:
            second = self.start(url, said, [f"--ignore={LATER}"] if self.is_shared_out else [])
            self.end("SQLite", self.start(None))
            if self.is_shared_out:
                with postgresql() as another:
                    self.end(f"PostgreSQL: {LATER}", self.start(another, more=[LATER]))
            self.also_on_older()
            self.end("PostgreSQL", second, said)

    def also_on_older(self) -> None:
        if self.is_whole and private_version() != OLDER:
            with private_postgres(OLDER) as older:
                self.end(f"PostgreSQL {OLDER}: {ALSO}", self.start(older, more=[ALSO]))

    def start(
        self, url: str | None, said: IO[bytes] | None = None, more: Sequence[str] = ()
    ) -> subprocess.Popen:
        self.stop_if_interrupted()
        environment = {k: v for k, v in os.environ.items() if k != "DATABASE_URL"}
        if url:
            environment["DATABASE_URL"] = url
        if url and self.arguments[: len(FAST)] == [*FAST]:
            more = [*more, *(f"--ignore={path}" for path in WITHOUT_DATABASE)]
        command = [sys.executable, "-m", "pytest", *self.arguments, *more]
        half = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        self.running.append(half)
        return half

    def end(self, name: str, half: subprocess.Popen, said: IO[bytes] | None = None) -> None:
        print(f"\n=== {name} ===", flush=True)
        self.results[name] = half.wait()
        if said is not None:
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout.buffer)
            sys.stdout.flush()
        self.running.remove(half)
        self.stop_if_interrupted()

    def interrupt(self, number: int, frame: object) -> None:
        self.signal = number
        # The terminal sends Ctrl-C to pytest as well; any other signal reached only this process.
        for half in self.running:
            if number != signal.SIGINT and half.poll() is None:
                half.send_signal(signal.SIGINT)

    def stop_if_interrupted(self) -> None:
        if self.signal is not None:
            for half in self.running:
                half.wait()
            raise Interrupted


def given_server() -> str | None:
    given = os.environ.get("DATABASE_URL", "")
    return given if given.startswith(POSTGRESQL_SCHEMES) else None


@contextmanager
def postgresql() -> Iterator[str]:
    if given := given_server():
        yield given
    else:
        with private_postgres(private_version()) as url:
            yield url


def private_version() -> str:
    return os.environ.get("PRIVATE_POSTGRES_VERSION", "18")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--fast"]:
        arguments = [*FAST, *arguments[1:]]
    run = Run(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, run.interrupt)
    try:
        with postgresql() as url:
            run.halves(url)
    except Interrupted:
        pass
    except RuntimeError as error:
        # Also what a server that is interrupted while it starts ends in.
        if run.signal is None:
            print(error, file=sys.stderr)
            return 1
    if run.signal is not None:
        return 128 + run.signal
    return 1 if any(run.results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
