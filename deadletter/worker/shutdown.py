"""What do signals mean? The first: finish and go. The second: go now."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Protocol


class Stop(Protocol):
    def __call__(self, *, at_once: bool) -> None: ...


class Shutdown:
    """SIGTERM and SIGINT (unless ignored: under a supervisor Ctrl-C is the parent's affair)."""

    def __init__(self, *, ignore_interrupt: bool = False) -> None:
        self.count = 0
        self._stop: Stop | None = None
        signal.signal(signal.SIGTERM, self._received)
        handler: Callable[..., None] | signal.Handlers = (
            signal.SIG_IGN if ignore_interrupt else self._received
        )
        signal.signal(signal.SIGINT, handler)

    def connect(self, stop: Stop) -> None:
        """Name what is to be stopped; a signal that came before counts."""
        self._stop = stop
        if self.count:
            stop(at_once=self.count > 1)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._stop is not None:
            self._stop(at_once=self.count > 1)
