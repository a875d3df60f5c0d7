"""What does a system have to offer to be measured? One small subclass for each, in `peers`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any

Payload = dict[str, Any]
#: The topic of measured messages, and the queue or stream in which they arrive.
TOPIC = "bench.nothing"


class System:
    """
    A queue with its best documented settings.

    The harness calls `missing`, `worker` and `left`; everything that needs the system's own library
    runs in a process of its own (`python -m benchmarks.client`), where BENCH_URL says where it is.
    """

    #: What `--only` calls it, and what tables call it.
    name = ""
    title = ""
    #: The settings that make it fast, for the reader of the table.
    settings = ""
    #: postgresql, redis or sqlite.
    store = "postgresql"
    #: The broker to which it publishes, and the kind of its queue: see `benchmarks.brokers`.
    broker = ""
    #: The system whose tables it uses, where they are not its own.
    schema = ""
    #: Messages per second to expect, roughly: decides how many a measurement takes.
    rates = {"send-one": 1_000, "send-many": 20_000, "drain": 10_000}
    #: Messages of one call of send_many.
    chunk = 1_000
    #: What it can do; a column it cannot do stays empty.
    measures = ("send-one", "send-many", "drain-1", "drain-2", "pickup", "idle")
    #: How many messages are not settled, in SQL.
    left_sql = ""
    #: The ids of stored results, in SQL, where "get-result" is measured.
    ids_sql = ""
    #: Distributions whose versions belong in the report.
    packages: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Say what has to be installed, or None when it can be measured."""
        return None

    def versions(self) -> dict[str, str]:
        """Say which releases are measured."""
        found = {}
        for package in self.packages:
            with suppress(metadata.PackageNotFoundError):
                found[package] = metadata.version(package)
        return found

    def setup(self) -> None:
        """Create the tables in the empty database of BENCH_URL."""

    def open(self) -> None:
        """Connect, before sending is measured."""

    def send_one(self, name: str, payload: Payload) -> None:
        raise NotImplementedError

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        raise NotImplementedError

    def get_result(self, id: str) -> object:
        """Return the return value of a task that has ended."""
        raise NotImplementedError

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        """Return the commands of a worker with so many processes."""
        return [[*client(self.name), "work"] for _ in range(processes)]

    def work(self) -> None:
        """Be a worker process, until SIGTERM."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return what its processes need besides BENCH_URL."""
        return {}

    def left(self, url: str) -> int:
        """Count what is not settled yet."""
        if self.store == "sqlite":
            return _sqlite(url, self.left_sql)
        from .stores import ask

        return int(ask(url, self.left_sql)[0][0])


def client(name: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.client", name]


def url() -> str:
    """Where the measured store is; empty in the harness itself."""
    return os.environ.get("BENCH_URL", "")


def _sqlite(url: str, question: str) -> int:
    import sqlite3

    connection = sqlite3.connect(url, timeout=20)
    try:
        return int(connection.execute(question).fetchone()[0])
    finally:
        connection.close()
