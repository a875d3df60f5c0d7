"""Who writes a line when several threads have one? One of them, and the others go on."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from .forks import at_fork


class Pen:
    """
    Hands lines to the handlers, one thread at a time; others leave theirs to it and go on.

    A handler lets go of the interpreter while it holds its own lock: threads that failed at the
    same time queued up there, and a failure took three times as long as writing its line.
    """

    #: Lines a thread writes before others wait for their turn, and lines that may be left.
    TURN = 50
    #: Seconds to wait: whoever writes may be stuck in a handler, or wait for a lock of ours.
    PATIENCE = 1.0

    def __init__(self, handle: Callable[[logging.LogRecord], None]) -> None:
        self._handle = handle
        self._left: deque[logging.LogRecord] = deque()
        self._lock = threading.RLock()
        self._is_over = False
        at_fork(after_in_child=self._begin_anew)
        atexit.register(self.flush)

    def write(self, record: logging.LogRecord) -> None:
        self._left.append(record)
        self._write_left(patience=self.PATIENCE if self._is_full() else 0)

    def flush(self) -> None:
        """Return when all that was logged before is written."""
        with suppress(Exception):
            # Though nothing may be left: the last line is under way as long as the lock is held.
            if self._lock.acquire(timeout=self.PATIENCE):
                self._lock.release()
            self._write_left(patience=self.PATIENCE)

    def _write_left(self, *, patience: float) -> None:
        # Looks again after letting go: a line may have been left in between.
        while self._left and self._lock.acquire(timeout=patience):
            try:
                self._write_all()
            finally:
                self._lock.release()

    def _is_full(self) -> bool:
        return self._is_over or len(self._left) > self.TURN

    def _write_all(self) -> None:
        self._is_over = False
        problem: Exception | None = None
        for written in count(1):
            try:
                record = self._left.popleft()
            except IndexError:
                break
            try:
                self._handle(record)
            except Exception as error:  # noqa: BLE001 - the other lines have nobody else
                problem = error
            self._is_over = written >= self.TURN
        if problem is not None:
            raise problem

    def _begin_anew(self) -> None:
        """The thread that held the lock, and writes what is left, is one of the parent's."""
        self._left.clear()
        self._lock = threading.RLock()
