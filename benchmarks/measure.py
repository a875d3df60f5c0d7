"""
How fast is it? Every system is measured by the same code, in the same way.

A drain begins when the first message has been handled and ends when the last is settled in the
system's own store, so starting a process, importing and connecting do not count. Between the two
only a shared file is looked at (`benchmarks.work`).
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from . import processes, stores
from .system import System
from .work import Counter

#: Seconds between two looks at the counter.
LOOK = 0.002
#: Seconds without progress after which a measurement has failed.
PATIENCE = 30.0
#: Seconds between two looks at the memory.
MEMORY_LOOK = 0.1

Figures = dict[str, float]


@dataclass
class Drain:
    """What is to be drained, and how."""

    messages: int
    processes: int = 1
    #: Stop here instead of at an empty queue: for backlogs that take too long.
    until: int | None = None
    #: Which handler runs.
    handler: str = "nothing"
    extra: dict[str, str] = field(default_factory=dict)


def send(system: System, store: stores.Postgres, verb: str, count: int) -> Figures:
    """Send `count` messages to an empty queue, one at a time or in chunks."""
    with store.fresh(system) as url:
        return _of_client(system, url, verb, count)


def drain(system: System, store: stores.Postgres, wanted: Drain) -> Figures:
    """Fill an empty queue with the system's own means, then drain it."""
    with store.fresh(system) as url:
        stores.run_client(system, url, "send-many", wanted.messages, BENCH_HANDLER=wanted.handler)
        store.settle(url)
        return drain_filled(system, store, url, wanted)


def drain_filled(system: System, store: stores.Postgres, url: str, wanted: Drain) -> Figures:
    """Start workers on a filled queue and watch the counter."""
    extra = {"BENCH_DRAIN": "1", "BENCH_HANDLER": wanted.handler, **wanted.extra}
    with working(system, url, wanted.processes, drain=True, extra=extra) as watch:
        launched = time.monotonic()
        watch.wait_for(1)
        first = Sample.take(watch, store)
        target = wanted.until or wanted.messages
        watch.wait_for(target, quiet=lambda: wanted.until is None and not system.left(url))
        if wanted.until is None:
            watch.wait_until_settled(system, url)
        last = Sample.take(watch, store)
        handled = max(last.count - first.count, 1)
        seconds = last.at - first.at
        return {
            "rate": handled / seconds,
            "seconds": seconds,
            "start": first.at - launched,
            "handled": last.count,
            "worker_us": (last.worker - first.worker) / handled * 1e6,
            "server_us": (last.server - first.server) / handled * 1e6,
            "memory": watch.peak,
            "growth": watch.growth(),
        }


def get_result(system: System, store: stores.Postgres, tasks: int, calls: int) -> Figures:
    """Let some tasks end, then read their results."""
    with store.fresh(system) as url:
        stores.run_client(system, url, "send-many", tasks)
        drain_filled(system, store, url, Drain(tasks))
        store.settle(url)
        return _of_client(system, url, "get-result", calls)


def pickup(system: System, store: stores.Postgres, count: int, rate: int) -> Figures:
    """Send at an even rate to an idle worker; the handler notes how long each message waited."""
    with store.fresh(system) as url, tempfile.NamedTemporaryFile("r") as output:
        extra = {"BENCH_OUTPUT": output.name}
        with working(system, url, 1, drain=False, extra=extra) as watch:
            _await_pickup(system, url, watch, Path(output.name))
            seen = len(Path(output.name).read_text().split())
            stores.run_client(system, url, "pickup", count, rate)
            _await_lines(Path(output.name), seen + count, watch)
        waited = [int(line) / 1e6 for line in Path(output.name).read_text().split()[seen:]]
    cuts = statistics.quantiles(waited, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "longest": max(waited)}


def idle(system: System, store: stores.Postgres, seconds: float) -> Figures:
    """Let a worker have nothing to do: processor time, transactions and memory."""
    with store.fresh(system) as url, tempfile.NamedTemporaryFile("r") as output:
        extra = {"BENCH_OUTPUT": output.name}
        with working(system, url, 1, drain=False, extra=extra) as watch:
            _await_pickup(system, url, watch, Path(output.name))
            time.sleep(min(2.0, seconds))
            before, commits = Sample.take(watch, store), _commits(url)
            time.sleep(seconds)
            after = Sample.take(watch, store)
            figures = {
                "worker": (after.worker - before.worker) / seconds * 100,
                "server": (after.server - before.server) / seconds * 100,
                "memory": processes.memory(*watch.pids),
            }
            if commits is not None:
                # Connecting and asking are two transactions of our own.
                figures["transactions"] = ((_commits(url) or 0) - commits - 2) / seconds
            return figures


def steady(system: System, store: stores.Postgres, count: int, backlog: int) -> Figures:
    """Keep a backlog while `count` messages pass; compare the tenths of the run."""
    with store.fresh(system) as url, working(system, url, 1, drain=False) as watch:
        command = [*stores.client(system.name), "feed", str(count), str(backlog)]
        environment = stores.environment(system, url) | {"BENCH_COUNTER": str(watch.file)}
        log = watch.file.with_suffix(".feed")
        with processes.started([command], environment, log):
            marks = []
            for tenth in range(11):
                watch.wait_for(max(1, count * tenth // 10), quiet=lambda: False)
                marks.append((time.monotonic(), watch.count()))
        rates = [(m - n) / (t - s) for (s, n), (t, m) in pairwise(marks)]
        size = stores.ask(url, "SELECT pg_total_relation_size('deadletter_message')")[0][0]
        tenths = {f"tenth_{n}": rate for n, rate in enumerate(rates, 1)}
        return {
            "rate": (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0]),
            # A batch may be larger than the first tenth, when there are few messages in all.
            "ratio": rates[-1] / rates[0] if rates[0] else 0.0,
            "table_mb": size / 1e6,
            "memory": watch.peak,
            "growth": watch.growth(),
            **tenths,
        }


@dataclass
class Watch:
    """Running workers, seen from outside."""

    running: list[subprocess.Popen[bytes]]
    counter: Counter
    file: Path
    log: Path
    memories: list[float] = field(default_factory=list)
    _looked: float = 0.0

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.running]

    @property
    def peak(self) -> float:
        return max(self.memories, default=0.0)

    def growth(self) -> float:
        """How many MB the last quarter of the samples is above the second: 0 when it is flat."""
        quarter = len(self.memories) // 4
        if not quarter:
            return 0.0
        second, last = self.memories[quarter : 2 * quarter], self.memories[-quarter:]
        return statistics.median(last) - statistics.median(second)

    def count(self) -> int:
        return self.counter.read()

    def wait_for(self, target: int, *, quiet: object = None) -> None:
        """Return as soon as so many were handled; `quiet` may say that no more will come."""
        seen, since = self.count(), time.monotonic()
        while seen < target:
            time.sleep(LOOK)
            now, count = time.monotonic(), self.count()
            if now - self._looked > MEMORY_LOOK:
                self.look(now)
            if count != seen:
                seen, since = count, now
            elif now - since > 1.0 and callable(quiet) and quiet():
                return
            elif now - since > 1.0 and processes.have_ended(self.running):
                if self.count() > count:
                    continue  # handled between the two looks
                self.fail(f"the worker ended at {count:,} of {target:,} messages")
            elif now - since > PATIENCE:
                self.fail(f"only {count:,} of {target:,} messages were handled")

    def wait_until_settled(self, system: System, url: str) -> None:
        since = time.monotonic()
        while system.left(url):
            if time.monotonic() - since > PATIENCE:
                self.fail(f"{system.left(url):,} messages were handled but not settled")
            time.sleep(LOOK)

    def look(self, now: float) -> None:
        self._looked = now
        if self.count() and (used := processes.memory(*self.pids)):
            self.memories.append(used)

    def fail(self, why: str) -> None:
        raise RuntimeError(f"{why}\n{processes.last_words(self.log)}")


@dataclass(frozen=True)
class Sample:
    at: float
    count: int
    worker: float
    server: float

    @staticmethod
    def take(watch: Watch, store: stores.Postgres) -> Sample:
        at, count = time.monotonic(), watch.count()
        watch.look(at)
        # Not waited for yet, so that a worker that has just ended is still there to be read.
        return Sample(at, count, processes.cpu(*watch.pids), processes.cpu(*store.pids))


@contextmanager
def working(
    system: System, url: str, count: int, *, drain: bool, extra: dict[str, str] | None = None
) -> Iterator[Watch]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file, log = Path(folder) / "counter", Path(folder) / "log"
        counter = Counter.create(file)
        environment = stores.environment(system, url) | {
            "BENCH_COUNTER": str(file),
            **(extra or {}),
        }
        with processes.started(system.worker(count, drain=drain), environment, log) as running:
            yield Watch(running, counter, file, log)


def _of_client(system: System, url: str, verb: str, count: int) -> Figures:
    seconds, cpu = map(float, stores.run_client(system, url, verb, count).split())
    return {"rate": count / seconds, "client_us": cpu / count * 1e6}


def _await_pickup(system: System, url: str, watch: Watch, output: Path) -> None:
    """Wait until the worker is there: the first message arrives late, and is not counted."""
    stores.run_client(system, url, "pickup", 1, 50)
    _await_lines(output, 1, watch)


def _await_lines(output: Path, count: int, watch: Watch) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(output.read_text().split()) < count:
        if time.monotonic() > deadline:
            watch.fail(f"only {len(output.read_text().split())} of {count} messages were picked up")
        time.sleep(0.02)


def _commits(url: str) -> int | None:
    """Count the transactions of a database so far; other stores do not say."""
    if not url.startswith("postgresql"):
        return None
    question = (
        "SELECT xact_commit + xact_rollback, pg_stat_force_next_flush() FROM pg_stat_database "
        "WHERE datname = current_database()"
    )
    return int(stores.ask(url, question)[0][0])
