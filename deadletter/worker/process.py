"""One worker process: a pump, executors, a listener and a housekeeper, connected here."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.db import connections

from .. import tracing
from ..forks import CAN_FORK
from ..logs import event, flush
from . import thread_connections
from .breaker import Breakers
from .busy_reports import BusyReports
from .crash_ledger import CrashLedger, Phase
from .exchange import Exchange
from .executors import Executors
from .housekeeper import Housekeeper
from .in_flight import InFlight
from .intake import Intake
from .leases import Leases
from .listener import Listener
from .observer import Observer
from .options import Options
from .pump import Pump
from .registry import Registry, registry
from .relay import Relays
from .reports import Reporter, Tally
from .shutdown import Shutdown

#: Seconds after which a signal is noticed at the latest.
SIGNALS = 0.5
#: Characters of handler names in the log line `worker_started`.
LISTED = 300
#: Seconds that Sentry has at exit to send its events.
SENTRY = 2.0
#: Seconds that a batch under way has at exit; what is not confirmed then is published again.
RELAYS = 10.0
#: Exit code that asks a supervisor for a fresh process at once (EX_TEMPFAIL).
RECYCLE = 75


class Worker:
    """Runs in the main thread until it is told to stop, or has nothing left to drain."""

    def __init__(
        self,
        options: Options,
        *,
        handlers: Registry = registry,
        ledger: CrashLedger | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.options = options
        #: Why this process is to be replaced; empty if it is not.
        self.recycling = ""
        self._handlers = handlers
        self._is_orphan = False
        self._crash: BaseException | None = None
        self._listener: Listener | None = None
        woken = threading.Event()
        self._in_flight = InFlight(ledger or CrashLedger())
        self._breakers = Breakers(worker=options.name, using=options.using, handlers=handlers)
        self._executors = Executors(
            concurrency=options.concurrency,
            in_flight=self._in_flight,
            handlers=handlers,
            using=options.using,
            woken=woken,
        )
        self.pump = connect_pump(
            options=options,
            handlers=handlers,
            in_flight=self._in_flight,
            executors=self._executors,
            breakers=self._breakers,
            observer=observer,
            woken=woken,
        )
        self._relays = Relays(options) if options.relay else None
        self._housekeeper = Housekeeper(
            options=options,
            handlers=handlers,
            in_flight=self._in_flight,
            breakers=self._breakers,
            pump=self.pump,
            observer=observer,
            replace=self.replace,
            orphaned=self.orphaned,
        )

    def run(self, shutdown: Shutdown | None = None) -> int:
        """Work until the end; return the exit code."""
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
        # Not in the main thread: a signal handler runs there. If it sets an event that its own
        # thread is about to wait for, it waits for itself.
        pump = threading.Thread(target=self._pump, name="deadletter-pump", daemon=True)
        pump.start()
        while pump.is_alive():
            # With a limit: a signal that comes just before the wait, or to another thread, does not
            # end the wait, and its handler runs only when this thread does.
            pump.join(SIGNALS)
        self._end()
        if self._crash is not None:
            raise self._crash
        return RECYCLE if self.recycling else 0

    def _pump(self) -> None:
        try:
            thread_connections.leave_pools()
            self.pump.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._crash = error
        finally:
            connections.close_all()

    def stop(self, *, at_once: bool = False) -> None:
        """Let handlers finish within the grace; `at_once`: release everything now."""
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
        Let the handlers finish and end, so that a fresh process takes over. Return True if so.

        Under a supervisor, at most one process of a place drains at a time. Another one works on
        until it may drain, unless it is urgent: then it drains before its place is filled.
        """
        ledger = self._in_flight.ledger
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
        """Stop because the supervisor, or the reloader, is gone."""
        if not self._is_orphan:
            self._is_orphan = True
            why = f"its {'supervisor' if self.options.supervisor else 'reloader'} is gone"
            if self.options.supervisor:
                self.recycling = self.recycling or why
            event(
                logging.WARNING,
                "worker_recycling",
                "worker {worker} stops: {why}",
                worker=self.options.name,
                why=why,
            )
            self.pump.stop(grace=self.options.grace)

    def _prepare(self) -> None:
        """Do what needs the database before the first claim; repeated while it is away."""
        if not self._housekeeper.is_alive():
            # First: it notices that the supervisor is gone, even while the database is away.
            self._housekeeper.start()
        check_tables(self.options.using)
        self._housekeeper.refresh()
        self._breakers.exchange()
        self._housekeeper.beat()
        if connections[self.options.using].vendor == "postgresql" and self._listener is None:
            self._listener = Listener(self.options.using, self.pump.hear, worker=self.options.name)
            self._listener.start()
        if self._relays is not None and not self.options.drain and not self._relays.is_alive:
            self._relays.start()
        self._in_flight.ledger.begin()

    def _end(self) -> None:
        self._executors.stop()
        self._end_relays()
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

    def _end_relays(self) -> None:
        """Stop publishing; with --drain, only after what the last handlers published, too."""
        if self._relays is None:
            return
        if self.options.drain:
            self._relays.start()
            self._relays.join()
        self._relays.stop()
        self._relays.join(RELAYS)

    @property
    def has_stuck_threads(self) -> bool:
        return bool(self.pump.leases.stuck) or bool(self.pump.abandoned)

    @property
    def reached_its_limit(self) -> bool:
        limit = self.options.max_messages
        return limit is not None and self.pump.tally.executed >= limit


def connect_pump(
    *,
    options: Options,
    handlers: Registry,
    in_flight: InFlight,
    executors: Executors,
    breakers: Breakers,
    observer: Observer | None,
    woken: threading.Event,
) -> Pump:
    """Return a pump with its parts. Each part knows only those that are made before it."""
    tally = Tally()
    busy = BusyReports(in_flight=in_flight, tally=tally, using=options.using)
    leases = Leases(
        options=options, in_flight=in_flight, executors=executors, busy=busy, tally=tally
    )
    reporter = Reporter(
        using=options.using,
        in_flight=in_flight,
        outcomes=executors.outcomes,
        breakers=breakers,
        tally=tally,
        observer=observer,
    )
    intake = Intake(
        options=options,
        handlers=handlers,
        in_flight=in_flight,
        executors=executors,
        breakers=breakers,
        reporter=reporter,
    )
    exchange = Exchange(
        options=options,
        in_flight=in_flight,
        busy=busy,
        leases=leases,
        reporter=reporter,
        intake=intake,
        tally=tally,
        observer=observer,
    )
    return Pump(
        options=options,
        in_flight=in_flight,
        executors=executors,
        busy=busy,
        leases=leases,
        reporter=reporter,
        intake=intake,
        exchange=exchange,
        tally=tally,
        woken=woken,
    )


def check_tables(using: str) -> None:
    """Select every column of every table. Raises: the database's error if one is missing."""
    connection = connections[using]
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        for model in apps.get_app_config("deadletter").get_models():
            columns = [field.column for field in model._meta.concrete_fields]
            names = ", ".join(quote(column) for column in columns if column)
            cursor.execute(
                f"SELECT {names} FROM {quote(model._meta.db_table)} WHERE 1 = 0"  # noqa: S608
            )


def _listed(names: Sequence[str]) -> str:
    """Return as many names as fit into one line, and the number of the others."""
    shown: list[str] = []
    for name in names:
        if shown and len(", ".join([*shown, name])) > LISTED:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown) or "none"


def _flush_sentry() -> None:
    """Let Sentry send its events: processes under a supervisor end without exit handlers."""
    sentry: Any = sys.modules.get("sentry_sdk")
    if sentry is not None:
        with suppress(Exception):
            sentry.flush(timeout=SENTRY)


def leave(code: int, *, at_once: bool) -> None:
    """Exit; `at_once` if threads are stuck in handlers, which the interpreter would wait for."""
    if at_once:
        flush()
        os._exit(code)
    thread_connections.close_all()
    sys.exit(code)


def start_again(shutdown: Shutdown) -> None:
    """
    Replace this process by a fresh one with the same command line, unless it is to stop.

    Not on Windows, where exec starts a process that the service manager does not know. There this
    process ends with the code RECYCLE, and the service manager starts it again.
    """
    if not CAN_FORK:
        if not shutdown.count:
            leave(RECYCLE, at_once=True)
        return
    # Blocked signals stay pending across exec: the next process receives those that come now.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    if shutdown.count:
        return
    flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - our own command line, no shell
