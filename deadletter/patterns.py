"""
Queues as they are named: by their names, or by patterns such as `tenant-a/*`.

A pattern is what `fnmatch` reads: `*`, `?` and `[ab]`, upper and lower case apart; `/` is a
character like any other. It never matches a dead queue or deadletter's own queue: these are named
exactly. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from functools import lru_cache

#: The name of the queue of deadletter's own work.
OWN_QUEUE = "deadletter"
_WILDCARDS = frozenset("*?[")


def is_pattern(text: str) -> bool:
    """Say whether a text may match several names; no queue's name contains such a character."""
    return not _WILDCARDS.isdisjoint(text)


class QueueSelection:
    """Names and patterns in order of preference, ready to be compared with names of queues."""

    def __init__(self, given: Iterable[str]) -> None:
        self.names: dict[str, int] = {}
        self._patterns: list[tuple[int, Callable[[str], object]]] = []
        for place, text in enumerate(given):
            self.names.setdefault(text, place)
            if is_pattern(text):
                self._patterns.append((place, re.compile(translate(text)).match))

    @property
    def has_patterns(self) -> bool:
        return bool(self._patterns)

    def place(self, name: str, *, is_dead_queue: bool) -> int | None:
        """Return the place of the first that names or matches a queue; None: it is not wanted."""
        exact = self.names.get(name)
        if not self._patterns or is_dead_queue or name == OWN_QUEUE:
            return exact
        for place, matches in self._patterns:
            if exact is not None and exact < place:
                break
            if matches(name):
                return place
        return exact

    def choose(self, queues: Iterable[tuple[str, bool]]) -> list[str]:
        """Return the names wanted of pairs (name, is a dead queue), in order of preference."""
        places = (
            (self.place(name, is_dead_queue=is_dead_queue), name) for name, is_dead_queue in queues
        )
        return [
            name for _, name in sorted((place, name) for place, name in places if place is not None)
        ]


@lru_cache(maxsize=256)
def queue_selection(given: tuple[str, ...]) -> QueueSelection:
    """Return the same for the same names: a worker asks at every claim."""
    return QueueSelection(given)


class ServedQueues:
    """The queues that some workers serve, by what their rows say: names, patterns or both."""

    def __init__(self, rows: Iterable[object]) -> None:
        self._rows = [queue_selection(tuple(_names(row))) for row in rows]

    def __contains__(self, name: str) -> bool:
        """Say whether any of them serves a queue that is not a dead queue."""
        return self.count(name) > 0

    def count(self, name: str, *, is_dead_queue: bool = False) -> int:
        """Return how many of them serve a queue."""
        places = (row.place(name, is_dead_queue=is_dead_queue) for row in self._rows)
        return sum(place is not None for place in places)


def _names(row: object) -> Iterator[str]:
    """The rows are JSON that other versions may have written."""
    if isinstance(row, Sequence) and not isinstance(row, str):
        yield from (name for name in row if isinstance(name, str))
