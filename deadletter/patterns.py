"""
Selections of queues: names, and patterns such as `tenant-a/*`.

Patterns have the syntax of `fnmatch`: `*`, `?` and `[ab]`, case-sensitive; `/` is an ordinary
character. A pattern never matches a dead queue or the internal queue: these must be named exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from functools import lru_cache

#: The name of the internal queue: bulk jobs, notices of alerts, timers of instances.
OWN_QUEUE = "deadletter"
_WILDCARDS = frozenset("*?[")


def is_pattern(text: str) -> bool:
    """Return True for a pattern; no name of a queue contains a wildcard."""
    return not _WILDCARDS.isdisjoint(text)


class QueueSelection:
    """Names and patterns of queues in order of preference."""

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
        """Return the position of the first name or pattern that selects a queue, or None."""
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
        """Return the selected names of pairs (name, is_dead_queue), in order of preference."""
        places = (
            (self.place(name, is_dead_queue=is_dead_queue), name) for name, is_dead_queue in queues
        )
        return [
            name for _, name in sorted((place, name) for place, name in places if place is not None)
        ]


@lru_cache(maxsize=256)
def queue_selection(given: tuple[str, ...]) -> QueueSelection:
    """Return a cached selection: a worker asks for the same one at every claim."""
    return QueueSelection(given)


class ServedQueues:
    """The queues that some workers serve, from the `queues` columns of their rows."""

    def __init__(self, rows: Iterable[object]) -> None:
        self._rows = [queue_selection(tuple(_names(row))) for row in rows]

    def __contains__(self, name: str) -> bool:
        """Return True if any of the workers serves a queue that is not a dead queue."""
        return self.count(name) > 0

    def count(self, name: str, *, is_dead_queue: bool = False) -> int:
        """Return how many of the workers serve a queue."""
        places = (row.place(name, is_dead_queue=is_dead_queue) for row in self._rows)
        return sum(place is not None for place in places)


def _names(row: object) -> Iterator[str]:
    """Yield the names of one row; other versions may have written other JSON."""
    if isinstance(row, Sequence) and not isinstance(row, str):
        yield from (name for name in row if isinstance(name, str))
