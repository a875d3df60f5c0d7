"""What do signals mean? The first: finish and go. The second: go now."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Protocol


class Stop(Protocol):
    def __call__(self, *, at_once: bool) -> None: ...


#: How a supervisor tells a child to go at once.
AT_ONCE = signal.SIGQUIT


class Shutdown:
    """
    SIGTERM and SIGINT. Under a supervisor: SIGTERM, and AT_ONCE instead of a second one.

    There Ctrl-C is the parent's affair; and systemd sends SIGTERM to every process of a service, so
    that a child receives two, its own and the one the supervisor passes on, and must not hurry.
    """

    def __init__(self, *, supervised: bool = False) -> None:
        self.count = 0
        self._supervised = supervised
        self._stop: Stop | None = None
        signal.signal(signal.SIGTERM, self._received)
        signal.signal(signal.SIGINT, signal.SIG_IGN if supervised else self._received)
        if supervised:
            signal.signal(AT_ONCE, self._received)
        # Blocked when this process took the place of one that recycled: see `start_again`.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})

    def connect(self, stop: Stop) -> None:
        """Name what is to be stopped; a signal that came before counts."""
        self._stop = stop
        if self.count:
            stop(at_once=self.count > 1)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count = 2 if number == AT_ONCE else 1 if self._supervised else self.count + 1
        if self._stop is not None:
            self._stop(at_once=self.count > 1)
