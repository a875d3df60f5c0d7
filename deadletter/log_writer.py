"""The log writer passes log records to the handlers from one thread at a time."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from .forks import at_fork


class LogWriter:
    """
    Passes records to the handlers, one thread at a time; other threads queue theirs and go on.

    A handler releases the interpreter lock while it holds its own lock: threads that failed at the
    same time waited there, and a failure took three times as long as writing its line.
    """

    #: Records that one thread writes before others have to wait, and records that may be queued.
    TURN = 50
    #: Seconds to wait for the writing thread, which may be stuck in a handler or wait for a lock
    #: that the caller holds.
    PATIENCE = 1.0

    def __init__(self, handle: Callable[[logging.LogRecord], None]) -> None:
        self._handle = handle
        self._queued: deque[logging.LogRecord] = deque()
        self._lock = threading.RLock()
        self._turn_is_over = False
        at_fork(after_in_child=self._reset)
        atexit.register(self.flush)

    def write(self, record: logging.LogRecord) -> None:
        self._queued.append(record)
        self._write_queued(patience=self.PATIENCE if self._is_full() else 0)

    def flush(self) -> None:
        """Return when all records that were logged before are written."""
        with suppress(Exception):
            # Even with an empty queue: the last record is being written while the lock is held.
            if self._lock.acquire(timeout=self.PATIENCE):
                self._lock.release()
            self._write_queued(patience=self.PATIENCE)

    def _write_queued(self, *, patience: float) -> None:
        # Look again after the release: a record may have been queued in between.
        while self._queued and self._lock.acquire(timeout=patience):
            try:
                self._write_all()
            finally:
                self._lock.release()

    def _is_full(self) -> bool:
        return self._turn_is_over or len(self._queued) > self.TURN

    def _write_all(self) -> None:
        self._turn_is_over = False
        problem: Exception | None = None
        for written in count(1):
            try:
                record = self._queued.popleft()
            except IndexError:
                break
            try:
                self._handle(record)
            except Exception as error:  # noqa: BLE001 - the other records must still be written
                problem = error
            self._turn_is_over = written >= self.TURN
        if problem is not None:
            raise problem

    def _reset(self) -> None:
        """Start empty after a fork: the thread that holds the lock exists in the parent only."""
        self._queued.clear()
        self._lock = threading.RLock()
