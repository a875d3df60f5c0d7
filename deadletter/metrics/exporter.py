"""
The exporter: answers scrapes of one worker.

In a single worker process it is a thread. Under a supervisor it is a process of its own, so that
the supervisor stays without threads (it forks) and one port covers all processes.
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
from ..worker import thread_connections
from .cache import TableReader
from .process_counters import CounterObserver, ProcessCounters
from .server import Server, listen

if TYPE_CHECKING:
    from .exposition import MetricsPage

#: Seconds until a dead exporter is started again.
PAUSE = 1.0


class Exporter:
    """`worker.observer.Companion` for `places` processes with counters of their own."""

    def __init__(self, host: str, port: int, *, names: Iterable[str], places: int, using: str):
        """Raises: CannotListen, and ImportError without prometheus-client."""
        from .exposition import render

        self._render = render

        self._listener = listen(host, port)
        names = list(names)
        self._processes = [ProcessCounters(names) for _ in range(places)]
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

    def observer(self, place: int) -> CounterObserver:
        return CounterObserver(self._processes[place])

    def serve_in_thread(self) -> None:
        """Answer scrapes in a thread, for a worker without a supervisor."""
        # A process forked by a handler that outlives the worker would keep the port.
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
        thread_connections.close_all()
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
            thread_connections.discard_inherited()
            # A signal to the whole group is for the workers: their metrics can be scraped until
            # they have stopped.
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
        tables = TableReader(self._using, prepare=thread_connections.leave_pools)

        def page(accept: str) -> MetricsPage:
            return self._render(accept, processes=self._processes, reading=tables.latest())

        return Server(self._listener, page, is_needed=is_needed)


def _is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
