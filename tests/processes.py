"""
Real worker processes for tests: started on the test database, watched, signalled, put away.

Nothing here sleeps to "let it happen": every wait is for a row, an event of the log or a line of
the handlers' journal, and fails with what was seen when it does not come.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings
from django.db import connection, connections

from tests.patience import PATIENCE, row_counts, wait_until
from tests.sample.journal import DIRECTORY

Line = dict[str, Any]


def database_url(alias: str = "default") -> str:
    """Return the URL under which another process finds the test database."""
    database = connections[alias].settings_dict
    if connections[alias].vendor == "sqlite":
        return f"sqlite:///{database['NAME']}"
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{database['NAME']}"))


def _can_write() -> bool:
    """Say whether SQLite gives the write lock to somebody else."""
    file = sqlite3.connect(connection.settings_dict["NAME"], timeout=0.3, isolation_level=None)
    try:
        file.execute("BEGIN IMMEDIATE")
        file.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        file.close()
    return True


class Worker:
    """One `manage.py run_worker` and everything it forks, in a process group of its own."""

    def __init__(
        self, arguments: list[str], *, directory: Path, environment: dict[str, str], root: Path
    ):
        number = len(list(directory.glob("*.log")))
        self.log = directory / f"{number}.log"
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "run_worker", "--log-format", "json", *arguments],
                cwd=root,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self, event: str | None = None, **fields: Any) -> list[Line]:
        """Return the events logged so far; a line that is not JSON has the event "text"."""
        found = []
        for text in self.text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                line = {"event": "text", "text": text}
            if event in (None, line["event"]) and fields.items() <= line.items():
                found.append(line)
        return found

    def wait_for(self, event: str, *, count: int = 1, **fields: Any) -> list[Line]:
        def seen() -> list[Line] | None:
            lines = self.lines(event, **fields)
            if len(lines) >= count:
                return lines
            assert self.process.poll() is None or len(self.lines(event, **fields)) >= count, (
                f"ended with {self.process.returncode} before {event}:\n{self.text()}"
            )
            return None

        return wait_until(seen, why=lambda: f"no {event} {fields} in:\n{self.text()}")

    def wait_ready(self) -> Worker:
        self.wait_for("worker_started")
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def suspend(self) -> None:
        """Stop it as a lid does, but not inside a transaction of SQLite: nobody could write."""
        while True:
            self.signal(signal.SIGSTOP)
            if connection.vendor != "sqlite" or _can_write():
                return
            self.signal(signal.SIGCONT)
            time.sleep(0.02)

    def signal_group(self, number: signal.Signals) -> None:
        """As a terminal does with Ctrl-C: the worker and all it forked."""
        os.killpg(self.pid, number)

    def wait(self, patience: float = PATIENCE) -> int:
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            counts = row_counts()
            raise AssertionError(f"did not end in {patience} s, {counts}:\n{self.text()}") from None

    def stop(self) -> int:
        # Before that, nobody listens to signals yet, and nothing is held that could be given back.
        self.wait_ready()
        self.signal(signal.SIGTERM)
        return self.wait()

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End whatever is left of the group this worker leads."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
        self.process.wait()


class Workers:
    """
    Starts workers for one test and reads what their handlers did.

    `root` is the folder of the code that they run: that of another release, see tests/upgrades.
    """

    def __init__(self, directory: Path, url: str, root: Path | None = None) -> None:
        self.directory = directory
        self.url = url
        self.root = root or settings.BASE_DIR
        self.all: list[Worker] = []

    def start(self, *arguments: Any, **environment: str) -> Worker:
        worker = Worker(
            [str(argument) for argument in arguments],
            root=self.root,
            directory=self.directory,
            environment={
                "DATABASE_URL": self.url,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "PYTHONUNBUFFERED": "1",
                DIRECTORY: str(self.directory),
                **environment,
            },
        )
        self.all.append(worker)
        return worker

    def drain(self, *arguments: Any, **environment: str) -> Worker:
        """Run a worker until nothing is due."""
        worker = self.start("--drain", *arguments, **environment)
        assert worker.wait() == 0, worker.text()
        return worker

    def open(self, gate: str) -> None:
        (self.directory / f"gate-{gate}").touch()

    def journal(self, what: str | None = None, **fields: Any) -> list[Line]:
        path = self.directory / "journal"
        text = path.read_text() if path.exists() else ""
        # Behind the last line break is a line that is just being written.
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
        return [
            line
            for line in lines
            if what in (None, line["what"]) and fields.items() <= line.items()
        ]

    def wait_for(self, what: str, *, count: int = 1, **fields: Any) -> list[Line]:
        """Wait until handlers have noted this so often."""

        def seen() -> list[Line] | None:
            lines = self.journal(what, **fields)
            return lines if len(lines) >= count else None

        return wait_until(seen, why=lambda: self.report(f"no {count} x {what} {fields}"))

    def report(self, problem: str) -> str:
        logs = "\n".join(f"--- {worker.log.name}\n{worker.text()}" for worker in self.all)
        return f"{problem} in {self.journal()}\n{logs}"

    def close(self) -> None:
        for worker in self.all:
            worker.close()
            print(f"--- {worker.log.name}\n{worker.text()}")  # shown by pytest on failure


@contextmanager
def worker_processes(directory: Path, url: str, root: Path | None = None) -> Iterator[Workers]:
    workers = Workers(directory, url, root)
    try:
        yield workers
    finally:
        workers.close()
