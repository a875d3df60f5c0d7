"""
Counters that the processes of one worker share in memory.

A worker process writes, and the process or thread that answers a scrape reads and adds up. The
memory belongs to the place of a process, not to the process: the next process in that place
continues where a dead one stopped. So no sum ever decreases, and there is no file to clean up.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..lifecycle import Completion, Failure, WorkBatch
    from ..lifecycle.sweeps import Sweep
    from ..worker.execute import Settled
    from ..worker.in_flight import InFlight
    from ..worker.reports import Reports, Tally

#: Stands for every name without a series of its own; no message can have this name.
OTHER = "(other)"

#: Upper ends in seconds. A handler may take any time, a transaction should take milliseconds.
HANDLER = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
TRANSACTION = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

#: Cells before the histograms.
_LOST, _REPAIRED, _FIRST = 0, 1, 2


@dataclass(frozen=True)
class Distribution:
    """The number of values in each bucket (the last one has no end), and the sum in seconds."""

    ends: tuple[float, ...]
    hits: tuple[int, ...]
    sum: float

    def __add__(self, other: Distribution) -> Distribution:
        hits = tuple(a + b for a, b in zip(self.hits, other.hits, strict=True))
        return Distribution(self.ends, hits, self.sum + other.sum)


class Histogram:
    """A range of cells of the counters. Only one thread may observe."""

    __slots__ = ("_cells", "_ends", "_start", "_sum")

    def __init__(self, cells: memoryview[float], start: int, ends: tuple[float, ...]) -> None:
        self._cells = cells
        self._start = start
        self._ends = ends
        self._sum = start + len(ends) + 1

    def observe(self, seconds: float) -> None:
        self._cells[self._start + bisect_left(self._ends, seconds)] += 1
        self._cells[self._sum] += seconds

    def read(self) -> Distribution:
        hits = tuple(int(n) for n in self._cells[self._start : self._sum])
        return Distribution(self._ends, hits, self._cells[self._sum])


class ProcessCounters:
    """The cells of one place: eight bytes each, written whole, so a reader never sees half."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = (*sorted(set(names)), OTHER)
        width, handler = len(TRANSACTION) + 2, len(HANDLER) + 2
        size = _FIRST + 2 * width + len(self.names) * handler
        self._cells = memoryview(mmap.mmap(-1, 8 * size)).cast("d")
        self.claims = Histogram(self._cells, _FIRST, TRANSACTION)
        self.settles = Histogram(self._cells, _FIRST + width, TRANSACTION)
        first = _FIRST + 2 * width
        self.handlers = {
            name: Histogram(self._cells, first + place * handler, HANDLER)
            for place, name in enumerate(self.names)
        }

    def handled(self, name: str, seconds: float) -> None:
        (self.handlers.get(name) or self.handlers[OTHER]).observe(seconds)

    def add_lost(self, count: int) -> None:
        self._cells[_LOST] += count

    def add_repaired(self, count: int) -> None:
        self._cells[_REPAIRED] += count

    @property
    def lost(self) -> int:
        return int(self._cells[_LOST])

    @property
    def repaired(self) -> int:
        return int(self._cells[_REPAIRED])


class CounterObserver:
    """`worker.observer.Observer` for one process: made after the fork, once for each process."""

    def __init__(self, counters: ProcessCounters) -> None:
        self._counters = counters
        self._lost = 0

    def handled(self, reports: Reports, in_flight: InFlight) -> None:
        done: list[Completion | Failure | Settled]
        done = [*reports.completions, *reports.failures, *reports.settled]
        for report in done:
            item = in_flight.get(report.id)
            # A message that could not be started (no handler, payload not readable) took no time.
            if item is not None and report.seconds is not None:
                self._counters.handled(item.message.name, report.seconds)

    def exchanged(self, seconds: float, reports: Reports, batch: WorkBatch, tally: Tally) -> None:
        if reports:
            # Includes the commit: the reports are safe only after it.
            self._counters.settles.observe(seconds - batch.claim_seconds)
            if batch.token:
                self._counters.claims.observe(batch.claim_seconds)
        else:
            self._counters.claims.observe(seconds)
        if tally.lost != self._lost:
            self._counters.add_lost(tally.lost - self._lost)
            self._lost = tally.lost

    def swept(self, found: Sweep) -> None:
        self._counters.add_repaired(found.repaired)


@dataclass(frozen=True)
class ProcessTotals:
    """The sum over the counters of all places."""

    lost: int
    repaired: int
    claims: Distribution
    settles: Distribution
    #: By message name; only names that were handled.
    handlers: dict[str, Distribution]


def add_up(places: Sequence[ProcessCounters]) -> ProcessTotals:
    handlers: dict[str, Distribution] = {}
    for counters in places:
        for name, histogram in counters.handlers.items():
            found = histogram.read()
            if any(found.hits):
                handlers[name] = handlers[name] + found if name in handlers else found
    return ProcessTotals(
        lost=sum(counters.lost for counters in places),
        repaired=sum(counters.repaired for counters in places),
        claims=_sum([counters.claims for counters in places]),
        settles=_sum([counters.settles for counters in places]),
        handlers=dict(sorted(handlers.items())),
    )


def _sum(histograms: Sequence[Histogram]) -> Distribution:
    first, *rest = (histogram.read() for histogram in histograms)
    for found in rest:
        first += found
    return first
