"""
Where does the answer to a scrape come from? From a thread of a lone worker process; under a
supervisor from a process of its own, so that the supervisor stays without threads (it forks) and
one port tells of all processes.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from ..forks import at_fork
from ..logs import crash, event, flush
from ..worker import connection_pools
from .cache import Rows
from .observer import BoardObserver
from .process_counters import Board
from .server import Server, listen

if TYPE_CHECKING:
    from .page import Page

#: Seconds until an exporter that died is started again.
PAUSE = 1.0


class Exporter:
    """`worker.observer.Companion`, for `places` processes that write on boards of their own."""

    def __init__(self, host: str, port: int, *, names: Iterable[str], places: int, using: str):
        """Raises CannotListen, and ImportError without prometheus-client."""
        from .page import render

        self._render = render

        self._listener = listen(host, port)
        names = list(names)
        self._boards = [Board(names) for _ in range(places)]
        self._using = using
        self._pid = 0
        self._start_at = 0.0
        address, port = self._listener.getsockname()[:2]
        event(
            logging.INFO,
            "metrics_listening",
            "metrics at http://{host}:{port}/metrics",
            host=f"[{address}]" if ":" in address else address,
            port=port,
        )

    def observer(self, place: int) -> BoardObserver:
        return BoardObserver(self._boards[place])

    def serve_in_thread(self) -> None:
        """For a worker without a supervisor."""
        # A process that a handler forks and that outlives the worker would keep the port.
        at_fork(after_in_child=self._listener.close)
        threading.Thread(
            target=self._server().serve, name="deadletter-metrics", daemon=True
        ).start()

    def keep(self) -> None:
        if self._pid and not _is_gone(self._pid):
            return
        if self._pid:
            self._pid, self._start_at = 0, monotonic() + PAUSE
            event(
                logging.ERROR,
                "metrics_died",
                "the process that answers scrapes died; starting it again",
            )
        if monotonic() >= self._start_at:
            self._fork()

    def leave(self) -> None:
        self._listener.close()

    def stop(self) -> None:
        self._listener.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _fork(self) -> None:
        parent = os.getpid()
        connection_pools.close_all()
        try:
            self._pid = os.fork()
        except OSError as error:
            self._start_at = monotonic() + PAUSE
            event(
                logging.ERROR,
                "metrics_not_started",
                "the process that answers scrapes cannot be started: {error}",
                error=str(error),
            )
            return
        if not self._pid:
            self._become(lambda: os.getppid() == parent)

    def _become(self, is_needed: Callable[[], bool]) -> NoReturn:
        """Answer scrapes until the supervisor is gone, or kills this process."""
        code = 1
        try:
            connection_pools.discard_inherited()
            # A signal to the whole group is for the workers: what they do until they have stopped
            # is still to be seen.
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            self._server(is_needed).serve()
            code = 0
        except BaseException as error:  # noqa: BLE001 - logged, and the process ends
            crash("metrics_failed", "scrapes can no longer be answered", error)
        finally:
            with suppress(Exception):
                flush()
                logging.shutdown()
            os._exit(code)

    def _server(self, is_needed: Callable[[], bool] = lambda: True) -> Server:
        rows = Rows(self._using, prepare=connection_pools.leave_pools)

        def page(accept: str) -> Page:
            return self._render(accept, boards=self._boards, reading=rows.latest())

        return Server(self._listener, page, is_needed=is_needed)


def _is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
