"""
One process of a measured system: whatever needs its library happens here.

    python -m benchmarks.client SYSTEM setup
    python -m benchmarks.client SYSTEM work
    python -m benchmarks.client SYSTEM send-one COUNT [SIZE]
    python -m benchmarks.client SYSTEM send-many COUNT [SIZE]
    python -m benchmarks.client SYSTEM get-result COUNT
    python -m benchmarks.client SYSTEM pickup COUNT RATE
    python -m benchmarks.client SYSTEM feed COUNT BACKLOG
    python -m benchmarks.client SYSTEM trickle COUNT RATE

Sending and reading results print the seconds they took and the processor time of the process:
neither the start of the process nor the connection counts.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import cycle, islice

from . import work
from .peers import load
from .stores import ask
from .system import System, url

#: Sent before the clock starts: prepared statements, caches, pools.
WARM_UP = 3


def main(name: str, verb: str, *arguments: str) -> None:
    system = load(name)
    if verb in ("setup", "work"):
        getattr(system, verb)()
        return
    system.open()
    numbers = [int(argument) for argument in arguments]
    actions = {
        "send-one": send_one,
        "send-many": send_many,
        "get-result": get_result,
        "pickup": pickup,
        "feed": feed,
        "trickle": trickle,
    }
    print(actions[verb](system, *numbers), flush=True)
    # Not every client library lets its process end by itself.
    os._exit(0)


class Stopwatch:
    """The time that its blocks took, and the processor time of this process meanwhile."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0

    def __enter__(self) -> None:
        self._start = (time.perf_counter(), time.process_time())

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._start[0]
        self.cpu += time.process_time() - self._start[1]

    def __str__(self) -> str:
        return f"{self.seconds} {self.cpu}"


def send_one(system: System, count: int, size: int = 100) -> Stopwatch:
    payloads = [work.payload(n, size=size) for n in range(count + WARM_UP)]
    for payload in payloads[:WARM_UP]:
        system.send_one("nothing", payload)
    taken = Stopwatch()
    with taken:
        for payload in payloads[WARM_UP:]:
            system.send_one("nothing", payload)
    return taken


def send_many(system: System, count: int, size: int = 100) -> Stopwatch:
    """Send exactly `count`, in the system's chunks."""
    name = os.environ.get("BENCH_HANDLER", "nothing")
    taken = Stopwatch()
    for first in range(0, count, system.chunk):
        # A chunk at a time, so that large payloads do not fill the memory.
        numbers = range(first, min(first + system.chunk, count))
        payloads = [work.payload(number, size=size) for number in numbers]
        with taken:
            system.send_many(name, payloads)
    return taken


def get_result(system: System, count: int) -> Stopwatch:
    """Read results of tasks that have ended, all in turn, `count` times."""
    ids = [str(row[0]) for row in ask(url(), system.ids_sql)]
    for id in ids[:WARM_UP]:
        system.get_result(id)
    taken = Stopwatch()
    with taken:
        for id in islice(cycle(ids), count):
            system.get_result(id)
    return taken


def pickup(system: System, count: int, rate: int) -> float:
    """Send `count` messages evenly, `rate` a second, each with the time it was sent."""
    start = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        system.send_one("pickup", {"sent": time.monotonic_ns(), "filling": "x" * 60})
    return time.monotonic() - start


def feed(system: System, count: int, backlog: int) -> float:
    """Send `count` messages, never more than `backlog` ahead of what was handled."""
    counter = work.Counter(os.environ["BENCH_COUNTER"])
    chunk = max(1, min(system.chunk, backlog // 5))
    sent, start = 0, time.perf_counter()
    while sent < count:
        if sent - counter.read() + chunk > backlog:
            time.sleep(0.002)
            continue
        size = min(chunk, count - sent)
        system.send_many("nothing", [work.payload(sent + n) for n in range(size)])
        sent += size
    return time.perf_counter() - start


def trickle(system: System, count: int, rate: int) -> float:
    """Send `count` messages evenly, `rate` a second, and note when each was committed."""
    start = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        system.send_one("nothing", work.payload(number))
        work.note(number)
    return time.monotonic() - start


if __name__ == "__main__":
    main(*sys.argv[1:])
