"""What do signals mean? The first: finish and go. The second: go now."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Protocol

from ..forks import at_fork


class Stop(Protocol):
    def __call__(self, *, at_once: bool) -> None: ...


#: How a supervisor tells a child to go at once. None on Windows, which has no supervisor.
AT_ONCE: Any = getattr(signal, "SIGQUIT", None)
#: What Ctrl-Break and the end of a console session send on Windows; None elsewhere.
BREAK: Any = getattr(signal, "SIGBREAK", None)

_STOP = {signal.SIGTERM, signal.SIGINT}
_SIGNALS = frozenset(number for number in (*_STOP, AT_ONCE, BREAK) if number is not None)
#: Windows has no signal mask; there nobody forks or executes anew, which it is needed for.
_CAN_BLOCK = hasattr(signal, "pthread_sigmask")


class Shutdown:
    """
    SIGTERM and SIGINT. Under a supervisor: SIGTERM, and AT_ONCE instead of a second one.

    There Ctrl-C is the parent's affair; and systemd sends SIGTERM to every process of a service, so
    that a child receives two, its own and the one the supervisor passes on, and must not hurry.

    A copy of this process that a handler made inherits these meanings and is no worker: a signal
    does to it what it does to any program. `multiprocessing` ends its processes by SIGTERM, and
    would wait for ever for one that takes it for a request.
    """

    def __init__(self, *, supervised: bool = False) -> None:
        self.count = 0
        self._told = 0
        self._telling = False
        self._supervised = supervised
        self._stop: Stop | None = None
        signal.signal(signal.SIGTERM, self._received)
        signal.signal(signal.SIGINT, signal.SIG_IGN if supervised else self._received)
        if supervised and AT_ONCE is not None:
            signal.signal(AT_ONCE, self._received)
        if BREAK is not None:
            signal.signal(BREAK, self._received)
        self._fork = threading.local()
        at_fork(
            before=self._hold_signals,
            after_in_parent=self._let_signals,
            after_in_child=self._mean_nothing,
        )
        if _CAN_BLOCK:
            # Blocked when this process took the place of one that recycled: see `start_again`.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)

    def connect(self, stop: Stop) -> None:
        """Name what is to be stopped; a signal that came before counts."""
        self._stop = stop
        self._tell()

    def _hold_signals(self) -> None:
        """Before a fork, in the thread that forks: Python forgets what a copy receives at first."""
        self._fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _let_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._fork.mask)

    def _mean_nothing(self) -> None:
        """In the copy: what it has received by now ends it."""
        for number in _SIGNALS:
            if signal.getsignal(number) == self._received:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._fork.mask)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count = 2 if number == AT_ONCE else 1 if self._supervised else self.count + 1
        self._tell()

    def _tell(self) -> None:
        """
        Say it once for each count, and never inside of itself.

        A signal may come while this very thread is here, holding the lock of an event that it is
        about to set. Its handler would wait for that lock for ever; it leaves the telling to the
        call it interrupted, which looks again.
        """
        while self._stop is not None and self._told < self.count and not self._telling:
            self._telling = True
            try:
                self._told = self.count
                self._stop(at_once=self.count > 1)
            finally:
                self._telling = False
