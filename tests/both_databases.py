"""
Run the suite on SQLite, then on PostgreSQL: `python -m tests.both_databases [arguments of pytest]`.

DATABASE_URL names the PostgreSQL server to use; without it a private one lives as long as the run.
PRIVATE_POSTGRES_VERSION (16 or 18) chooses the version of the private one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.private_postgres import private_postgres

POSTGRESQL_SCHEMES = ("postgres://", "postgresql://", "pgsql://", "psql://")


class Interrupted(Exception):
    """The run was told to end; the exit code says by which signal."""


class Run:
    """One run of both halves; keeps count of what was asked of it and what came of it."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.results: dict[str, int] = {}
        self.signal: int | None = None
        self.pytest: subprocess.Popen | None = None

    def half(self, name: str, database_url: str | None) -> None:
        self.stop_if_interrupted()
        print(f"\n=== {name} ===", flush=True)
        environment = {k: v for k, v in os.environ.items() if k != "DATABASE_URL"}
        if database_url:
            environment["DATABASE_URL"] = database_url
        command = [sys.executable, "-m", "pytest", *self.arguments]
        self.pytest = subprocess.Popen(command, env=environment)
        self.results[name] = self.pytest.wait()
        self.stop_if_interrupted()

    def interrupt(self, number: int, frame: object) -> None:
        self.signal = number
        # The terminal sends Ctrl-C to pytest as well; any other signal reached only this process.
        if number != signal.SIGINT and self.pytest and self.pytest.poll() is None:
            self.pytest.send_signal(signal.SIGINT)

    def stop_if_interrupted(self) -> None:
        if self.signal is not None:
            raise Interrupted


@contextmanager
def postgresql() -> Iterator[str]:
    given = os.environ.get("DATABASE_URL", "")
    if given.startswith(POSTGRESQL_SCHEMES):
        yield given
    else:
        with private_postgres(os.environ.get("PRIVATE_POSTGRES_VERSION", "18")) as url:
            yield url


def main(arguments: list[str]) -> int:
    run = Run(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, run.interrupt)
    try:
        run.half("SQLite", None)
        with postgresql() as url:
            run.half("PostgreSQL", url)
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
