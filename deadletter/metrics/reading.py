"""How often are the tables asked, and what if they do not answer?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from django.db import connections
from django.db.utils import Error as DatabaseError

from ..logs import event
from .depths import Depths, read_depths, read_poison
from .totals import Counted, Totals

T = TypeVar("T")

#: Seconds an answer serves further scrapes.
FRESH = 5.0
#: An answer that took long serves longer: scrapes take at most a twentieth of the database's time.
REST = 20.0
#: Seconds a scrape waits for the tables; Prometheus gives up after 10.
PATIENCE = 3.0
#: Seconds after which an answer is too old to be shown while the database does not answer.
STALE = 60.0


@dataclass(frozen=True)
class Reading:
    """What the tables said, and how many seconds ago the oldest part of it was read."""

    totals: Totals
    depths: Depths
    poison: dict[str, int]
    age: float


class Rested(Generic[T]):
    """A question that is asked again only after an answer has served for a while."""

    def __init__(
        self, ask: Callable[[], T], *, fresh: float = FRESH, time: Callable[[], float] = monotonic
    ) -> None:
        self._ask = ask
        self._fresh = fresh
        self._time = time
        self._answer: tuple[T, float] | None = None
        self._until = 0.0

    def get(self) -> tuple[T, float]:
        """Return the answer, and when it was asked for."""
        started = self._time()
        if self._answer is None or started >= self._until:
            self._answer = self._ask(), started
            ended = self._time()
            # After a long answer the rest begins: see REST.
            self._until = ended + max(self._fresh, REST * (ended - started))
        return self._answer


class Rows:
    """The tables of one database. Any thread may read; they take turns."""

    def __init__(self, using: str, *, fresh: float = FRESH) -> None:
        self.using = using
        counted = Counted()
        self._totals = Rested(lambda: counted.read(using), fresh=fresh)
        self._depths = Rested(lambda: read_depths(using), fresh=fresh)
        self._poison = Rested(lambda: read_poison(using), fresh=fresh)
        self._lock = threading.Lock()

    def read(self) -> Reading:
        """Raises DatabaseError."""
        with self._lock:
            totals, at_first = self._totals.get()
            depths, at_second = self._depths.get()
            poison, at_third = self._poison.get()
        return Reading(totals, depths, poison, monotonic() - min(at_first, at_second, at_third))


def read_or_none(rows: Rows) -> Reading | None:
    """Read; None, with a line in the log, when the database is away."""
    try:
        return rows.read()
    except DatabaseError as error:
        event(
            logging.WARNING,
            "metrics_without_database",
            "the tables of database {using} cannot be read for metrics: {error}",
            using=rows.using,
            error=str(error),
        )
        return None


class Reader(threading.Thread):
    """
    Reads rows in a thread and on a connection of its own, so that nobody waits for ever.

    The connection is closed after each reading: scrapes are rare, connections are precious.
    """

    def __init__(self, rows: Rows, *, patience: float = PATIENCE) -> None:
        super().__init__(name="deadletter-metrics-reader", daemon=True)
        self._rows = rows
        self._patience = patience
        self._turn = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._reading: Reading | None = None
        self._read_at = 0.0

    def latest(self) -> Reading | None:
        """Return a reading, the one before while the database is slow, None when it is away."""
        with self._turn:
            self._asked += 1
            mine = self._asked
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._answered >= mine, self._patience)
            if self._answered < mine and monotonic() - self._read_at > STALE:
                return None
            return self._reading

    def run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._asked > self._answered)
                asked = self._asked
            reading = self._read()
            with self._turn:
                self._reading, self._read_at, self._answered = reading, monotonic(), asked
                self._turn.notify_all()

    def _read(self) -> Reading | None:
        try:
            return read_or_none(self._rows)
        except Exception:
            # This thread must live: a scrape without rows says more than none.
            logging.getLogger("deadletter").exception("the tables could not be read for metrics")
            return None
        finally:
            connections[self._rows.using].close()
