"""
Who waits for the database while the pump keeps its books? A thread, when there is much to do.

The pump hands it one errand at a time and collects the answer in the end; in between it does what
the last answer asked for. Both use the pump's connection, never at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from . import pools

T = TypeVar("T")


class Courier(Generic[T]):
    """Its thread is started by the first errand and ends with `stop`."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._errands: SimpleQueue[tuple[Callable[[], T], BaseDatabaseWrapper] | None]
        self._errands = SimpleQueue()
        self._answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, errand: Callable[[], T]) -> None:
        """Begin an errand. The caller leaves its connection alone until `wait` returns."""
        connection = connections[self._using]
        if self._thread is None:
            connection.inc_thread_sharing()
            self._thread = threading.Thread(
                target=self._serve, name="deadletter-courier", daemon=True
            )
            self._thread.start()
        self._errands.put((errand, connection))

    def wait(self) -> T:
        """Return what the errand brought, or raise what it raised."""
        answer, error = self._answers.get()
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]

    def stop(self) -> None:
        if self._thread is not None:
            self._errands.put(None)
            self._thread.join()
            self._thread = None
            connections[self._using].dec_thread_sharing()

    def _serve(self) -> None:
        pools.leave_pools()
        while (given := self._errands.get()) is not None:
            errand, connection = given
            connections[self._using] = connection
            try:
                self._answers.put((errand(), None))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                self._answers.put((None, error))
        # The connection is the pump's, who closes it; whatever a listener opened here is not.
        del connections[self._using]
        connections.close_all()
