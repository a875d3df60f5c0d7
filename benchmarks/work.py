"""
What do the measured messages do? Nothing but be counted, the same for every system.

Each process that runs handlers has a slot of a small shared file and adds one for every message.
The harness looks at the file every few milliseconds: no server is asked, so looking costs the
measured system nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

SLOTS = 512
#: The file is this large whoever opens it.
SIZE = SLOTS * 8
#: Of a hundred failing messages so many fail at their first attempt.
FAILING = 20


def payload(number: int, *, size: int = 100) -> dict[str, Any]:
    """Make a payload whose JSON has `size` bytes (from 40 on)."""
    made = {"n": number, "filling": ""}
    return made | {"filling": "x" * (size - len(json.dumps(made)))}


class Counter:
    """How many messages were handled so far, by all processes together."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123
            self._map = mmap.mmap(file.fileno(), SIZE)
        self.slots = memoryview(self._map).cast("Q")

    @staticmethod
    def create(path: Path) -> Counter:
        path.write_bytes(bytes(SIZE))
        return Counter(path)

    def read(self) -> int:
        return sum(self.slots)


#: Where the moments of the measured messages are written, if they are asked for.
NOTES = os.environ.get("BENCH_NOTES", "")

_slots: Any = None
_slot = 0


def _open() -> None:
    """Take this process's own slot; a forked child takes another."""
    global _slots, _slot
    _slot = os.getpid() % SLOTS
    if _slots is None and "BENCH_COUNTER" in os.environ:
        _slots = Counter(os.environ["BENCH_COUNTER"]).slots


_open()
os.register_at_fork(after_in_child=_open)


def nothing() -> None:
    # No call and no jump between reading and writing: threads of CPython do not come in between.
    _slots[_slot] += 1


def add(number: int) -> None:
    """Count a whole batch: for loops written by hand."""
    _slots[_slot] += number


def failing(number: int, *, attempt: int = 1) -> None:
    nothing()
    if attempt == 1 and number % 100 < FAILING:
        raise ConnectionError(f"the other side did not answer to {number}")


def pickup(sent: int) -> None:
    """Write how long the message waited, in nanoseconds of a clock all processes share."""
    waited = time.monotonic_ns() - sent
    with open(os.environ["BENCH_OUTPUT"], "a") as file:  # noqa: PTH123
        file.write(f"{waited}\n")


def note(number: int) -> None:
    """Write that something happened to a message now, on a clock that all processes share."""
    now = time.monotonic_ns()
    with open(NOTES, "a") as file:  # noqa: PTH123
        file.write(f"{number} {now}\n")


def read_notes(path: str | Path) -> dict[int, int]:
    """Return when each message was noted first, in nanoseconds."""
    found: dict[int, int] = {}
    for line in Path(path).read_text().splitlines():
        number, _, moment = line.partition(" ")
        found.setdefault(int(number), int(moment))
    return found
