"""Readings of the tables: answers are reused for a while, and a scrape never waits for long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from django.db.utils import Error as DatabaseError

from .. import clock
from ..logs import event
from ..operations.deadline import within
from .depths import Depths, read_depths, read_poison
from .totals import MonotonicTotals, Totals

T = TypeVar("T")

#: Seconds an answer is reused for further scrapes.
FRESH = 5.0
#: An answer is reused for this many times the time it took: scrapes use at most a twentieth of the
#: database's time.
REST = 20.0
#: Seconds a scrape waits for the tables; Prometheus gives up after 10.
PATIENCE = 3.0
#: Seconds after which an answer is too old to be used while the database does not answer.
STALE = 60.0


@dataclass(frozen=True)
class TableReading:
    """The contents of the tables that metrics show."""

    totals: Totals
    depths: Depths
    poison: dict[str, int]
    #: When the oldest part was read, on the monotonic clock.
    at: float

    @property
    def age(self) -> float:
        """Seconds."""
        return monotonic() - self.at


class CachedQuery(Generic[T]):
    """A query whose answer is reused for a while."""

    def __init__(
        self, ask: Callable[[], T], *, fresh: float = FRESH, time: Callable[[], float] = monotonic
    ) -> None:
        self._ask = ask
        self._fresh = fresh
        self._time = time
        self._answer: tuple[T, float] | None = None
        self._until = 0.0

    def get(self) -> tuple[T, float]:
        """Return the answer, and the time at which the query began."""
        started = self._time()
        if self._answer is None or started >= self._until:
            self._answer = self._ask(), started
            ended = self._time()
            # From the end of the query: see REST.
            self._until = ended + max(self._fresh, REST * (ended - started))
        return self._answer


class TableReader:
    """Reads the tables of one database. Any thread may call it; one reads at a time."""

    def __init__(
        self,
        using: str,
        *,
        fresh: float = FRESH,
        patience: float = PATIENCE,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._using = using
        #: Called in the thread that reads, before it connects.
        self._prepare = prepare
        self._patience = patience
        counted = MonotonicTotals()
        self._totals = CachedQuery(lambda: counted.read(using), fresh=fresh)
        self._depths = CachedQuery(lambda: read_depths(using), fresh=fresh)
        self._poison = CachedQuery(lambda: read_poison(using), fresh=fresh)
        self._turn = threading.Lock()
        self._reading = threading.Lock()
        self._last: TableReading | None = None
        self._is_away = False

    def latest(self) -> TableReading | None:
        """
        Read the tables. Return an earlier reading while the database takes long to answer, and
        None when it cannot be reached. Never waits for long, whatever the database does.
        """
        if not self._turn.acquire(timeout=self._patience):
            return self._recent()
        try:
            self._last = within(self._patience, self._read)
        except TimeoutError:
            return self._recent()
        except (DatabaseError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self._last = None
            self._report(str(error))
        else:
            self._is_away = False
        finally:
            self._turn.release()
        return self._last

    def _read(self) -> TableReading:
        # An abandoned reading may still be under way: one thread that hangs is enough.
        if not self._reading.acquire(blocking=False):
            raise TimeoutError
        try:
            self._prepare()
            # One round trip: reused answers must not hide that the database is away.
            clock.now(self._using)
            totals, at_first = self._totals.get()
            depths, at_second = self._depths.get()
            poison, at_third = self._poison.get()
            return TableReading(totals, depths, poison, min(at_first, at_second, at_third))
        finally:
            self._reading.release()

    def _recent(self) -> TableReading | None:
        if self._last is not None and self._last.age <= STALE:
            return self._last
        self._report("it does not answer")
        return None

    def _report(self, error: str) -> None:
        if not self._is_away:
            self._is_away = True
            event(
                logging.WARNING,
                "metrics_without_database",
                "the tables of database {using} cannot be read for metrics: {error}",
                using=self._using,
                error=error,
            )
