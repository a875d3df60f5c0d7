"""Signals that stop a worker. The first: finish and exit. The second: exit at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Protocol

from ..forks import at_fork


class StopWorker(Protocol):
    """Stops the worker: within the grace, or at once."""

    def __call__(self, *, at_once: bool) -> None: ...


#: The signal by which a supervisor or a reloader stops a child at once. None on Windows, which has
#: neither.
AT_ONCE: Any = getattr(signal, "SIGQUIT", None)
#: The signal of Ctrl-Break and of the end of a console session on Windows; None elsewhere.
BREAK: Any = getattr(signal, "SIGBREAK", None)

_STOP = {signal.SIGTERM, signal.SIGINT}
_SIGNALS = frozenset(number for number in (*_STOP, AT_ONCE, BREAK) if number is not None)
#: Windows has no signal mask. It is needed for fork and exec, which Windows workers do not use.
_CAN_BLOCK = hasattr(signal, "pthread_sigmask")


class Shutdown:
    """
    Handles SIGTERM and SIGINT. Under a supervisor: SIGTERM, and AT_ONCE instead of a second one.

    Under a supervisor, the parent handles Ctrl-C. And systemd sends SIGTERM to every process of a
    service: a child receives two, that one and the one the supervisor passes on, and must not take
    the second for a request to exit at once. A reloader is a supervisor in this respect.

    A process that a handler forks inherits these signal handlers but is no worker: there they are
    reset to the default. `multiprocessing` ends its processes by SIGTERM, and would wait for ever
    for one that takes it for a request.
    """

    def __init__(self, *, supervised: bool = False) -> None:
        self.count = 0
        self._stopped_for = 0
        self._is_stopping = False
        self._supervised = supervised
        self._stop: StopWorker | None = None
        signal.signal(signal.SIGTERM, self._received)
        signal.signal(signal.SIGINT, signal.SIG_IGN if supervised else self._received)
        if supervised and AT_ONCE is not None:
            signal.signal(AT_ONCE, self._received)
        if BREAK is not None:
            signal.signal(BREAK, self._received)
        self._fork = threading.local()
        at_fork(
            before=self._block_signals,
            after_in_parent=self._unblock_signals,
            after_in_child=self._reset_signals,
        )
        if _CAN_BLOCK:
            # They are blocked if this process replaced one that recycled: see `start_again`.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)

    def connect(self, stop: StopWorker) -> None:
        """Set the function that stops the worker; signals that came before count."""
        self._stop = stop
        self._call_stop()

    def _block_signals(self) -> None:
        """
        Block signals before a fork, in the thread that forks.

        Python drops signals that a forked process receives before it has set itself up.
        """
        self._fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _unblock_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._fork.mask)

    def _reset_signals(self) -> None:
        """Reset the signal handlers in a forked process: a signal received by now ends it."""
        for number in _SIGNALS:
            if signal.getsignal(number) == self._received:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._fork.mask)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count = 2 if number == AT_ONCE else 1 if self._supervised else self.count + 1
        self._call_stop()

    def _call_stop(self) -> None:
        """
        Call the stop function once for each count, and never inside of itself.

        A signal may arrive while this very thread is in here and holds the lock of an event that it
        is about to set. The signal handler would wait for that lock for ever. So it leaves the call
        to the one it interrupted, which checks the count again.
        """
        while self._stop is not None and self._stopped_for < self.count and not self._is_stopping:
            self._is_stopping = True
            try:
                self._stopped_for = self.count
                self._stop(at_once=self.count > 1)
            finally:
                self._is_stopping = False
