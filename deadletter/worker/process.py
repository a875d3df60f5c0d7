"""One worker process: a pump, executors, a listener and a housekeeper, put together."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.db import connections

from .. import tracing
from ..forks import CAN_FORK
from ..logs import event, flush
from . import pools
from .breaker import Breakers
from .crash_ledger import Ledger, Phase
from .executors import Executors
from .housekeeper import Housekeeper
from .in_flight import Holdings
from .listener import Listener
from .observer import Observer
from .options import Options
from .outages import check_tables
from .pump import Pump
from .registry import Registry, registry
from .shutdown import Shutdown

#: Seconds after which a signal is noticed at the latest.
SIGNALS = 0.5
#: Characters of the handlers' names in the line that says that a worker has started.
LISTED = 300
#: Seconds that Sentry has at the end to send its events.
SENTRY = 2.0
#: Exit code that asks a supervisor for a fresh process at once (EX_TEMPFAIL).
RECYCLE = 75


class WorkerProcess:
    """Runs in the main thread until it is told to stop, or has nothing left to drain."""

    def __init__(
        self,
        options: Options,
        *,
        handlers: Registry = registry,
        ledger: Ledger | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.options = options
        self.woken = threading.Event()
        self.recycling = ""
        self._is_orphan = False
        self._crash: BaseException | None = None
        self._holdings = Holdings(ledger or Ledger())
        self._breakers = Breakers(worker=options.name, using=options.using, handlers=handlers)
        self._handlers = handlers
        self._executors = Executors(
            concurrency=options.concurrency,
            holdings=self._holdings,
            handlers=handlers,
            using=options.using,
            woken=self.woken,
        )
        self._housekeeper = Housekeeper(
            options=options,
            holdings=self._holdings,
            breakers=self._breakers,
            replace=self.replace,
            orphaned=self.orphaned,
            handlers=handlers,
        )
        self.pump = Pump(
            options=options,
            handlers=handlers,
            holdings=self._holdings,
            executors=self._executors,
            breakers=self._breakers,
            queues=self._housekeeper.queues,
            woken=self.woken,
        )
        self._housekeeper.pump = self.pump
        self.pump.observer = self._housekeeper.observer = observer
        self._listener: Listener | None = None

    def run(self, shutdown: Shutdown | None = None) -> int:
        """Work; return the exit code."""
        if shutdown is not None:
            shutdown.connect(self.stop)
        event(
            logging.INFO,
            "worker_started",
            "worker {worker} started: process {pid}, concurrency {concurrency}, queues {queues}, "
            "handlers {handlers}",
            worker=self.options.name,
            pid=os.getpid(),
            concurrency=self.options.concurrency,
            queues=", ".join(self.options.queues or ["all"]),
            handlers=_listed(self._handlers.all_names()),
        )
        self.pump.prepare = self._prepare
        # Not in the main thread: a signal handler that sets an event its own thread is just about
        # to wait for would wait for itself.
        pump = threading.Thread(target=self._pump, name="deadletter-pump", daemon=True)
        pump.start()
        while pump.is_alive():
            # Not without end: a signal that comes just before the wait, or to another thread, wakes
            # nobody, and its handler runs only when this thread does.
            pump.join(SIGNALS)
        self._end()
        if self._crash is not None:
            raise self._crash
        return RECYCLE if self.recycling else 0

    def _pump(self) -> None:
        try:
            pools.leave_pools()
            self.pump.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._crash = error
        finally:
            connections.close_all()

    def stop(self, *, at_once: bool = False) -> None:
        """Finish what runs within the grace; at once: give everything back now."""
        event(
            logging.INFO,
            "worker_stopping",
            "worker {worker} stops {how}",
            worker=self.options.name,
            how="at once" if at_once else f"within {self.options.grace:g} s",
        )
        self.pump.stop(grace=0.0 if at_once else self.options.grace)

    def replace(self, why: str, *, is_urgent: bool) -> bool:
        """
        Claim no more, let the handlers finish and go; a fresh process takes over. Say whether so.

        Under a supervisor at most one process of a place does that at a time. Another one goes on
        with its work until it may, unless it is urgent: then it drains before its place is filled.
        """
        ledger = self._holdings.ledger
        if self.recycling:
            return True
        if self.options.supervisor and not (is_urgent or ledger.may_drain):
            ledger.phase = Phase.ASKING
            return False
        self.recycling = why
        event(
            logging.WARNING,
            "worker_recycling",
            "worker {worker} claims no more, and is replaced when its handlers have ended: {why}",
            worker=self.options.name,
            why=why,
        )
        self.pump.finish()
        return True

    def orphaned(self) -> None:
        """Its supervisor is gone: stop as if it had said so."""
        if not self._is_orphan:
            self._is_orphan = True
            self.recycling = self.recycling or "its supervisor is gone"
            event(
                logging.WARNING,
                "worker_recycling",
                "worker {worker} stops: {why}",
                worker=self.options.name,
                why="its supervisor is gone",
            )
            self.pump.stop(grace=self.options.grace)

    def _prepare(self) -> None:
        """What needs the database before the first claim; repeated while it is away."""
        if not self._housekeeper.is_alive():
            # First: it notices when the supervisor is gone, also while the database is away.
            self._housekeeper.start()
        check_tables(self.options.using)
        self._housekeeper.refresh()
        self._breakers.exchange()
        self._housekeeper.beat()
        if connections[self.options.using].vendor == "postgresql" and self._listener is None:
            self._listener = Listener(self.options.using, self.pump.hear, worker=self.options.name)
            self._listener.start()
        self._holdings.ledger.begin()

    def _end(self) -> None:
        self._executors.stop()
        if self._listener is not None:
            self._listener.stop()
        if self._housekeeper.is_alive():
            self._housekeeper.stop()
            self._housekeeper.join(5.0)
        tracing.flush()
        _flush_sentry()
        connections.close_all()
        tally = self.pump.tally
        event(
            logging.INFO,
            "worker_stopped",
            "worker {worker} stopped: {completed} completed, {failed} failed, {poisoned} poisoned, "
            "{released} released, {deferred} deferred",
            worker=self.options.name,
            completed=tally.completed,
            failed=tally.failed,
            poisoned=tally.poisoned,
            released=tally.released,
            deferred=tally.deferred,
        )

    @property
    def has_stuck_threads(self) -> bool:
        return bool(self.pump.leases.stuck) or bool(self.pump.abandoned)

    @property
    def reached_its_limit(self) -> bool:
        limit = self.options.max_messages
        return limit is not None and self.pump.tally.executed >= limit


def _listed(names: Sequence[str]) -> str:
    """Return names for one line: as many as fit, and how many there are beside them."""
    shown: list[str] = []
    for name in names:
        if shown and len(", ".join([*shown, name])) > LISTED:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown) or "none"


def _flush_sentry() -> None:
    """Let Sentry send what it has: processes under a supervisor end without exit handlers."""
    sentry: Any = sys.modules.get("sentry_sdk")
    if sentry is not None:
        with suppress(Exception):
            sentry.flush(timeout=SENTRY)


def leave(code: int, *, at_once: bool) -> None:
    """Exit; at once where threads are stuck in handlers that the interpreter would wait for."""
    if at_once:
        flush()
        os._exit(code)
    pools.close_all()
    sys.exit(code)


def start_again(shutdown: Shutdown) -> None:
    """
    Replace this process by a fresh one with the same command line, unless it is to stop.

    Windows cannot: its exec starts a process that nobody waits for. There this process ends with
    the code RECYCLE, and what started it starts it again.
    """
    if not CAN_FORK:
        if not shutdown.count:
            leave(RECYCLE, at_once=True)
        return
    # Blocked signals stay pending across exec: one that comes too late for us is for the next.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    if shutdown.count:
        return
    flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - our own command line, no shell
