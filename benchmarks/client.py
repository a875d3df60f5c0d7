"""
One process of a measured system: whatever needs its library happens here.

    python -m benchmarks.client SYSTEM setup
    python -m benchmarks.client SYSTEM work
    python -m benchmarks.client SYSTEM send-one COUNT [SIZE]
    python -m benchmarks.client SYSTEM send-many COUNT [SIZE]
    python -m benchmarks.client SYSTEM pickup COUNT RATE
    python -m benchmarks.client SYSTEM feed COUNT BACKLOG

Sending prints the seconds it took: neither the start of the process nor the connection counts.
"""

from __future__ import annotations

import os
import sys
import time

from . import work
from .peers import load
from .system import System

#: Sent before the clock starts: prepared statements, caches, pools.
WARM_UP = 3


def main(name: str, verb: str, *arguments: str) -> None:
    system = load(name)
    if verb in ("setup", "work"):
        getattr(system, verb)()
        return
    system.open()
    numbers = [int(argument) for argument in arguments]
    actions = {"send-one": send_one, "send-many": send_many, "pickup": pickup, "feed": feed}
    print(actions[verb](system, *numbers), flush=True)
    # Not every client library lets its process end by itself.
    os._exit(0)


def send_one(system: System, count: int, size: int = 100) -> float:
    payloads = [work.payload(n, size=size) for n in range(count + WARM_UP)]
    for payload in payloads[:WARM_UP]:
        system.send_one("nothing", payload)
    start = time.perf_counter()
    for payload in payloads[WARM_UP:]:
        system.send_one("nothing", payload)
    return time.perf_counter() - start


def send_many(system: System, count: int, size: int = 100) -> float:
    """Send exactly `count`, in the system's chunks."""
    name = os.environ.get("BENCH_HANDLER", "nothing")
    taken = 0.0
    for first in range(0, count, system.chunk):
        # A chunk at a time, so that large payloads do not fill the memory.
        numbers = range(first, min(first + system.chunk, count))
        payloads = [work.payload(number, size=size) for number in numbers]
        start = time.perf_counter()
        system.send_many(name, payloads)
        taken += time.perf_counter() - start
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


if __name__ == "__main__":
    main(*sys.argv[1:])
