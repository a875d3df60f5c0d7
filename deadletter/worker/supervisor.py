"""
The supervisor: the parent that forks worker processes and replaces those that die.

It frees at once the leases that a dead process held, and charges an attempt only to messages whose
handlers ran.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import NoReturn

from django.db import connections
from django.db.utils import Error as DatabaseError
from django.db.utils import InterfaceError, OperationalError

from .. import crash_points
from ..lifecycle.transaction import bounded
from ..logs import crash, event, flush
from ..models import WorkerProcess
from . import thread_connections
from .crash_ledger import CrashLedger, Phase
from .housekeeper import draining_name
from .observer import Companion
from .orphans import Orphans
from .outages import DatabaseUnusable
from .process import RECYCLE
from .process_death import ProcessDeath
from .shutdown import AT_ONCE

_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
#: SIGALRM comes from a timer of this process: it ends a wait in which nothing happens.
_OTHERS = {signal.SIGCHLD, signal.SIGALRM}
#: Seconds between two rounds in which the children are checked, at most.
ROUND = 0.5
#: A child that lived so many seconds is not in a crash loop.
HEALTHY = 30.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0
#: Seconds until a fork that the system refused is tried again.
FORK_PAUSE = 1.0
#: Seconds beyond the grace after which a child that does not end is killed.
PATIENCE = 10.0
#: Deaths that are kept while the database is away.
DEATHS = 100
#: Bytes of one unit of `ru_maxrss`.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass
class ChildProcess:
    """A place for a process: the process in it changes, the place stays."""

    name: str
    ledger: CrashLedger = field(default_factory=CrashLedger)
    pid: int = 0
    started: float = 0.0
    crashes: int = 0
    start_at: float = 0.0
    finished: bool = False
    #: Messages became due that this process may have missed: it must look once more.
    is_behind: bool = False
    #: It drains, and its replacement has the place: it is not followed by another process.
    is_leaving: bool = False
    orphans: Orphans = field(init=False)

    def __post_init__(self) -> None:
        self.orphans = Orphans(self.name)


class Supervisor:
    """`run_child(name, ledger)` runs in the forked process and returns its exit code."""

    def __init__(
        self,
        names: Sequence[str],
        run_child: Callable[[str, CrashLedger], int],
        *,
        using: str,
        grace: float,
        reloader: int = 0,
        companion: Companion | None = None,
    ) -> None:
        """`reloader` is the process id of the reloader that started this process, or 0."""
        self._companion = companion
        self._children = [ChildProcess(name) for name in names]
        self._run_child = run_child
        self._using = using
        self._grace = grace
        self._reloader = reloader
        # As a child does under a supervisor: see `Shutdown`.
        self._stops = {signal.SIGTERM, signal.SIGHUP, AT_ONCE} if reloader else _STOP
        self._signals = 0
        self._kill_at = 0.0
        #: True if a process has found a database that it can use.
        self._has_begun = False
        #: True if the database refuses all processes, and they end.
        self._is_refused = False
        #: Deaths that are not stored yet; the oldest are dropped.
        self._deaths: deque[ProcessDeath] = deque(maxlen=DEATHS)

    def run(self) -> int:
        """Keep every place filled until a signal, or until all have drained."""
        # Connections must not cross a fork. Garbage that a child collects would unshare memory.
        thread_connections.close_all()
        gc.collect()
        gc.freeze()
        # If our parent ignored SIGCHLD, children would vanish without a status.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if self._reloader:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, self._stops | _OTHERS)
        while not all(child.finished and not child.orphans.busy for child in self._children):
            if self._companion is not None:
                self._companion.keep()
            self._start_missing()
            self._wait()
            self._reap()
            self._record_deaths()
            self._free()
            self._replace_draining()
            self._kill_late()
        if self._companion is not None:
            self._companion.stop()
        return 1 if self._is_refused else 0

    def _start_missing(self) -> None:
        for child in self._children:
            # Orphans are freed first: the next process uses the same ledger.
            if child.pid or child.finished or child.orphans.are_held or self._signals:
                continue
            if child.is_leaving:
                continue
            if monotonic() >= child.start_at:
                self._fork(child)

    def _fork(self, child: ChildProcess) -> None:
        thread_connections.close_all()
        child.ledger.clear()
        child.is_behind = False
        child.started = monotonic()
        try:
            child.pid = os.fork()
        except OSError as error:
            child.start_at = monotonic() + FORK_PAUSE
            event(
                logging.ERROR,
                "worker_not_started",
                "worker {worker} cannot be started: {error}",
                worker=child.name,
                error=str(error),
            )
            return
        if not child.pid:
            self._become(child)

    def _become(self, child: ChildProcess) -> NoReturn:
        """Run the child until the process ends."""
        code = 1
        try:
            thread_connections.discard_inherited()
            signals = _STOP | self._stops | _OTHERS
            for number in signals:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            if self._companion is not None:
                self._companion.leave()
            code = self._run_child(child.name, child.ledger)
            child.ledger.phase = Phase.REPLACED if code == RECYCLE else Phase.FINISHED
        except DatabaseUnusable as error:
            child.ledger.phase = Phase.REFUSED
            event(
                logging.ERROR,
                "worker_refused",
                "worker {worker} cannot work: {error}",
                worker=child.name,
                error=str(error),
            )
        except BaseException as error:  # noqa: BLE001 - logged, and the process ends
            crash("worker_failed", "worker {worker} failed", error, worker=child.name)
        finally:
            # Without the parent's exit handlers; but the output of handlers must not be lost.
            with suppress(Exception):
                flush()
            os._exit(code)

    def _wait(self) -> None:
        """Sleep until a signal arrives or a child is due to start."""
        # Not sigtimedwait: in a process that was suspended until the time was over, it returns what
        # happens to lie in CPython's memory, SIGHUP for example.
        signal.setitimer(signal.ITIMER_REAL, ROUND)
        received = signal.sigwait(self._stops | _OTHERS)
        if self._reloader and not self._signals and os.getppid() != self._reloader:
            event(logging.WARNING, "reloader_gone", "the reloader is gone: stopping all processes")
            self._stop()
        if received not in self._stops:
            return
        if self._reloader:
            if self._signals and received != AT_ONCE:
                return  # the same request, to the whole group
            self._signals = 1 if received == AT_ONCE else 0
        event(
            logging.INFO,
            "stopping",
            "received {signal}: stopping all processes{hurry}",
            signal=signal.Signals(received).name,
            hurry=" at once" if self._signals else "",
        )
        self._stop()

    def _stop(self) -> None:
        """Tell all processes to stop; the second time, at once."""
        self._signals += 1
        self._kill_at = monotonic() + PATIENCE + (self._grace if self._signals == 1 else 0.0)
        for child in self._children:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM if self._signals == 1 else AT_ONCE)
            elif not child.orphans.are_held:
                child.finished = True

    def _reap(self) -> None:
        for child in self._children:
            self._has_begun = self._has_begun or child.ledger.has_begun
        for child in self._children:
            if not child.pid:
                continue
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                self._died(child, status, usage.ru_maxrss * _RSS_UNIT)

    def _died(self, child: ChildProcess, status: int, peak: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        orphans = child.orphans
        orphans.read(child.ledger)
        lived = monotonic() - child.started
        pid, child.pid = child.pid, 0
        # Not the exit code: a handler can exit with any.
        phase = child.ledger.phase
        if phase is Phase.REFUSED and not (self._has_begun or self._signals):
            # As a single process does. Once one has worked, the others go on trying.
            self._is_refused = True
            self._stop()
        if not child.is_leaving and (
            phase is Phase.FINISHED or (self._signals and not orphans.are_held)
        ):
            child.finished = bool(self._signals) or not child.is_behind
            child.start_at = monotonic()
            return
        if phase in (Phase.REPLACED, Phase.FINISHED):
            orphans.death = "recycling"
            child.start_at = monotonic()
            return
        is_replaced = child.is_leaving or not self._signals
        death = ProcessDeath(child.name, pid, code, peak, tuple(orphans.entries), is_replaced)
        orphans.death = death
        self._deaths.append(death)
        child.crashes = 0 if lived > HEALTHY else child.crashes + 1
        pause = 0.0
        if child.crashes > 1:
            pause = min(FIRST_PAUSE * 2 ** (child.crashes - 2), LONGEST_PAUSE)
        child.start_at = monotonic() + pause
        event(
            logging.ERROR,
            "worker_died",
            "worker {worker} (process {pid}) died of {reason} after {lived:.1f} s, peak memory "
            "{peak:.0f} MiB, {held} messages held; {next}",
            worker=child.name,
            pid=pid,
            reason=death.reason,
            lived=lived,
            peak=peak / 2**20,
            held=len(orphans.entries),
            next="not restarted"
            if self._signals
            else "replaced already"
            if child.is_leaving
            else f"restarting in {pause:.1f} s",
        )

    def _record_deaths(self) -> None:
        """Store deaths for the admin; while the database is away, try again each round."""
        while self._deaths:
            try:
                self._deaths[0].store(using=self._using)
            except DatabaseError as error:
                connections.close_all()
                if isinstance(error, OperationalError | InterfaceError):
                    return
                event(
                    logging.WARNING,
                    "worker_death_not_recorded",
                    "the death of worker {worker} cannot be written down: {error}",
                    worker=self._deaths[0].worker,
                    error=str(error),
                )
            self._deaths.popleft()

    def _replace_draining(self) -> None:
        """
        Fill the places of processes that drain: they claim no more, and may take long to end.

        At most one process of a place drains while another works.
        """
        if self._signals:
            return
        leaving = {child.name for child in self._children if child.is_leaving}
        for child in list(self._children):
            if child.name in leaving or not child.pid:
                continue
            if child.ledger.phase is Phase.ASKING:
                child.ledger.let_drain()
            elif child.ledger.phase is Phase.DRAINING:
                former = ChildProcess(
                    child.name, child.ledger, child.pid, child.started, is_leaving=True
                )
                self._children.append(former)
                child.ledger, child.pid = CrashLedger(side=1 - child.ledger.side), 0
                child.start_at = monotonic()

    def _free(self) -> None:
        """Settle what dead children held; while the database is away, try again each round."""
        for child in list(self._children):
            orphans = child.orphans
            if orphans.are_held and not child.pid:
                crash_points.reach("supervisor.freeing")
                try:
                    orphans.free(using=self._using)
                except DatabaseError as error:
                    connections.close_all()
                    event(
                        logging.WARNING,
                        "leases_not_freed",
                        "the messages of worker {worker} cannot be freed yet: {error}",
                        worker=child.name,
                        error=str(error),
                    )
                    continue
                crash_points.reach("supervisor.freed")
                child.ledger.clear()
            elif orphans.busy:
                orphans.free_busy(using=self._using)
                if not orphans.busy:
                    self._reopen(child.name)
            if child.is_leaving and not (child.pid or orphans.are_held or orphans.busy):
                self._remove(child)
            child.finished = child.finished or bool(
                self._signals and not child.pid and not orphans.are_held
            )

    def _remove(self, child: ChildProcess) -> None:
        """Remove a process that drained and has ended."""
        self._children.remove(child)
        self._reopen(child.name)
        with suppress(DatabaseError), bounded(self._using):
            # The process deletes its row itself, unless it died.
            rows = WorkerProcess.objects.using(self._using)
            rows.filter(name=draining_name(child.name)).delete()

    def _reopen(self, name: str) -> None:
        """Drain once more: messages that were released or freed late may be due."""
        for child in self._children:
            if child.name == name and not (child.is_leaving or self._signals):
                child.is_behind, child.finished = True, False

    def _kill_late(self) -> None:
        """Kill children that do not end; what they held is freed as after any death."""
        if self._signals and monotonic() > self._kill_at - PATIENCE:
            for child in self._children:
                child.orphans.leave_busy()
        if self._signals and monotonic() > self._kill_at:
            self._kill_at = monotonic() + PATIENCE
            for child in self._children:
                if child.pid:
                    os.kill(child.pid, signal.SIGKILL)
                child.finished = child.finished or not child.pid
