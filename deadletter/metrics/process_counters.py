"""
What did the processes of this worker see? Counters in memory that they share.

A worker writes, whoever answers a scrape reads and adds up. The memory belongs to the place of a
process, not to the process: the next one in that place goes on counting where a dead one stopped,
so no sum ever goes backwards, and there is no file to tidy up.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Stands for every name without a series of its own; no message can be called that.
OTHER = "(other)"

#: Upper ends in seconds. A handler may take anything, a transaction should take milliseconds.
HANDLER = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
TRANSACTION = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

#: Cells before the histograms.
_LOST, _REPAIRED, _FIRST = 0, 1, 2


@dataclass(frozen=True)
class Distribution:
    """How often each bucket was hit (the last one is without an end), and the sum in seconds."""

    ends: tuple[float, ...]
    hits: tuple[int, ...]
    sum: float

    def __add__(self, other: Distribution) -> Distribution:
        hits = tuple(a + b for a, b in zip(self.hits, other.hits, strict=True))
        return Distribution(self.ends, hits, self.sum + other.sum)


class Histogram:
    """Some cells of a board. Only one thread may observe."""

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


class Board:
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


@dataclass(frozen=True)
class Seen:
    """The sum over the boards of all places."""

    lost: int
    repaired: int
    claims: Distribution
    settles: Distribution
    #: By message name; only those that were handled.
    handlers: dict[str, Distribution]


def add_up(boards: Sequence[Board]) -> Seen:
    handlers: dict[str, Distribution] = {}
    for board in boards:
        for name, histogram in board.handlers.items():
            found = histogram.read()
            if any(found.hits):
                handlers[name] = handlers[name] + found if name in handlers else found
    return Seen(
        lost=sum(board.lost for board in boards),
        repaired=sum(board.repaired for board in boards),
        claims=_sum([board.claims for board in boards]),
        settles=_sum([board.settles for board in boards]),
        handlers=dict(sorted(handlers.items())),
    )


def _sum(histograms: Sequence[Histogram]) -> Distribution:
    first, *rest = (histogram.read() for histogram in histograms)
    for found in rest:
        first += found
    return first
