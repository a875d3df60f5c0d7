"""The processes under attack: workers that are replaced when they die, and producers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.processes import Worker, Workers

from .broker_sites import BrokerSite
from .plan import WORKERS

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = "tests.chaos.settings"
#: The last one lives an hour in the future, in another time zone.
SKEWED = WORKERS - 1
#: By these a worker says that somebody else may have run what it ran.
LOST = ("lease_lost", "report_unsure")
#: The third one is two processes under a supervisor.
SUPERVISED = WORKERS - 2


#: Arguments of the places in a run with a broker, where two or four relays share the lanes: in a
#: worker, alone, and in both processes under a supervisor.
TWO_RELAYS = (["--no-relay"], ["--relay"], ["--no-relay"], [])
FOUR_RELAYS = ([], ["--relay"], [], ["--no-relay"])
#: Where a relay kills itself, and how often it passes there before.
RELAY_POINTS = {
    "relay.published": 30,
    "relay.exchanged": 40,
    "outbox.deleted": 30,
    "outbox.settled": 30,
    "outbox.quarantined": 2,
}


class Crew:
    """
    Four workers in their places; who dies is replaced after a moment.

    With a broker some of them are relays, and kill themselves at one of the relay's points.
    """

    def __init__(
        self,
        directory: Path,
        urls: list[str],
        *,
        skewed: bool,
        broker: BrokerSite | None = None,
        seed: int = 0,
    ) -> None:
        self._broker = broker
        self._chance = random.Random(f"crew {seed}")
        self._relays = FOUR_RELAYS if seed % 2 else TWO_RELAYS
        #: False: who starts from now on kills himself no more.
        self.is_armed = broker is not None
        self._armed: list[Worker] = []
        #: Not where the clock of the process is that of the database.
        self._skewed = skewed
        self.workers = [Workers(directory, url) for url in urls]
        self.places: list[Worker | None] = [None] * WORKERS
        self._return = [0.0] * WORKERS
        #: Workers that ended and were not killed; there should be none.
        self.deserters: list[str] = []

    def start(self, place: int) -> None:
        processes = 2 if place == SUPERVISED else 1
        environment = {"DJANGO_SETTINGS_MODULE": SETTINGS}
        if place == SKEWED and self._skewed:
            environment |= skew()
        arguments: list[Any] = ["--name", f"w{place}", "--poll", 0.2, "--grace", 10]
        if self._broker is not None:
            arguments += self._relays[place]
            environment["CHAOS_BROKERS"] = json.dumps(self._broker.options(place))
            if processes == 1 and self.is_armed and self._chance.random() < 0.5:
                point = self._chance.choice(list(RELAY_POINTS))
                nth = self._chance.randint(1, RELAY_POINTS[point])
                environment["DEADLETTER_CRASH_AT"] = f"{point}:{nth}"
        if not self._is_relay(place):
            arguments += ["--concurrency", 4, "--processes", processes]
        self.places[place] = worker = self.workers[place].start(*arguments, **environment)
        if "DEADLETTER_CRASH_AT" in environment:
            self._armed.append(worker)

    def _is_relay(self, place: int) -> bool:
        """Say whether this place only publishes."""
        return self._broker is not None and "--relay" in self._relays[place]

    def wait_started(self) -> None:
        """Return when each of them listens to signals; on a busy machine that takes a while."""
        for place, worker in enumerate(self.places):
            if worker is not None:
                worker.wait_for("relay_started" if self._is_relay(place) else "worker_started")

    def pids(self, place: int) -> list[int]:
        worker = self.places[place]
        if worker is None or worker.process.poll() is not None:
            return []
        return [worker.pid, *worker.children()]

    def signal(self, place: int, number: signal.Signals) -> None:
        worker = self.places[place]
        if worker is not None and worker.process.poll() is None:
            worker.signal_group(number)

    def kill(self, place: int, *, pause: float) -> None:
        self._return[place] = time.monotonic() + pause
        self.signal(place, signal.SIGKILL)

    def replace_dead(self) -> None:
        for place, worker in enumerate(self.places):
            if worker is None:
                if time.monotonic() >= self._return[place]:
                    self.start(place)
            elif (code := worker.process.poll()) is not None:
                if code != -signal.SIGKILL:
                    self.deserters.append(f"worker {place} ended with {code}: {worker.log}")
                self.places[place] = None

    def stop(self) -> list[str]:
        """Ask all to go; return the complaints."""
        self.wait_started()
        for worker in self.places:
            if worker is not None:
                worker.signal(signal.SIGTERM)
        codes = {worker: worker.wait() for worker in self.places if worker is not None}
        return [
            f"did not stop cleanly: {worker.log} {code}"
            for worker, code in codes.items()
            # It may come past its point for the last time when it is told to go.
            if code and not (code == -signal.SIGKILL and worker in self._armed)
        ]

    def leases_lost(self) -> frozenset[int]:
        logs = [worker for workers in self.workers for worker in workers.all]
        lines = (line for log in logs for event in LOST for line in log.lines(event))
        return frozenset(line["message_id"] for line in lines)

    def close(self) -> None:
        for workers in self.workers:
            for worker in workers.all:
                worker.close()


def skew() -> dict[str, str]:
    """Give a process another clock, where the library for it is installed; else another zone."""
    zone = {"TZ": "Asia/Tokyo"}
    library = faketime()
    if library is None:
        return zone
    # The monotonic clock stays: no operating system lets it jump.
    return zone | {"LD_PRELOAD": library, "FAKETIME": "+1h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def faketime() -> str | None:
    if shutil.which("faketime") is None:
        return None
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else None


def producer(
    number: int, *, seed: int, seconds: float, url: str, directory: Path, **environment: str
) -> subprocess.Popen:
    with (directory / f"producer-{number}.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.producer", str(number), str(seed), str(seconds)],
            cwd=ROOT,
            env={
                **os.environ,
                "DATABASE_URL": url,
                "DJANGO_SETTINGS_MODULE": SETTINGS,
                "SAMPLE_DIRECTORY": str(directory),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
