"""
Who watches the workers? A parent that forks them, replaces those that die, and frees at once what
a dead one held, charging only what was really running.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import NoReturn

from django.db import connections
from django.db.utils import Error as DatabaseError
from django.db.utils import InterfaceError, OperationalError

from .. import crash_points
from ..failure_policy import Policy
from ..lifecycle import Completion, Failure, Release, process_batch
from ..lifecycle.transaction import bounded
from ..logs import crash, event, flush
from ..models import Kind, Message, WorkerProcess
from ..status import FailureReason
from . import pools
from .crash_ledger import Entry, Ledger, Phase, Stage
from .housekeeper import draining_name
from .leases import claimed_under
from .observer import Companion
from .outages import Unusable
from .process import RECYCLE
from .process_death import Death
from .registry import registry
from .shutdown import AT_ONCE

_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
#: SIGALRM is our own: it ends a wait in which nothing happens.
_SIGNALS = _STOP | {signal.SIGCHLD, signal.SIGALRM}
#: Seconds after which the children are looked after at the latest.
ROUND = 0.5
#: A child that lived this long died by accident, not of a crash loop.
HEALTHY = 30.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0
#: Seconds until a fork that the system refused is tried again.
FORK_PAUSE = 1.0
#: Seconds beyond the grace after which a child that will not go is killed.
PATIENCE = 10.0
#: Deaths that wait to be written down while the database is away.
DEATHS = 100
#: What one of `ru_maxrss` is in bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass
class Child:
    """A place for a process: the process in it changes, the place stays."""

    name: str
    ledger: Ledger = field(default_factory=Ledger)
    pid: int = 0
    started: float = 0.0
    crashes: int = 0
    start_at: float = 0.0
    finished: bool = False
    #: Something became due that this process, which may have looked before, need not have seen.
    is_behind: bool = False
    #: It drains, and another process has its place: nobody follows it.
    is_leaving: bool = False
    #: What the last process left behind and is not freed yet, with the reason of its death.
    legacy: list[Entry] = field(default_factory=list)
    #: The tokens of claims it died in: what those took is not among the entries.
    claiming: list[str] = field(default_factory=list)
    death: Death | str = ""
    #: What another transaction has locked, by its death: freed later, nobody waits for it.
    busy: dict[Death | str, list[Entry]] = field(default_factory=dict)

    @property
    def has_legacy(self) -> bool:
        return bool(self.legacy or self.claiming)


class Supervisor:
    """`run_child(name, ledger)` runs in the forked process and returns its exit code."""

    def __init__(
        self,
        names: Sequence[str],
        run_child: Callable[[str, Ledger], int],
        *,
        using: str,
        grace: float,
        companion: Companion | None = None,
    ) -> None:
        self._companion = companion
        self._children = [Child(name) for name in names]
        self._run_child = run_child
        self._using = using
        self._grace = grace
        self._signals = 0
        self._kill_at = 0.0
        #: A process has found a database that it can work with.
        self._has_begun = False
        #: None has: the database refuses all of them, and they end.
        self._is_refused = False
        #: Deaths that are not written down yet; the oldest make room.
        self._deaths: deque[Death] = deque(maxlen=DEATHS)

    def run(self) -> int:
        """Keep every place filled until a signal, or until all have drained."""
        # Connections must not cross a fork, and collected garbage would unshare memory.
        pools.close_all()
        gc.collect()
        gc.freeze()
        # A parent that ignores it would have our children vanish unseen.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while not all(child.finished and not child.busy for child in self._children):
            if self._companion is not None:
                self._companion.keep()
            self._start_missing()
            self._wait()
            self._reap()
            self._record_deaths()
            self._free()
            self._relieve()
            self._hurry()
        if self._companion is not None:
            self._companion.stop()
        return 1 if self._is_refused else 0

    def _start_missing(self) -> None:
        for child in self._children:
            # What the last process left is freed first: its ledger is the next one's too.
            if child.pid or child.finished or child.has_legacy or self._signals:
                continue
            if child.is_leaving:
                continue
            if monotonic() >= child.start_at:
                self._fork(child)

    def _fork(self, child: Child) -> None:
        pools.close_all()
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

    def _become(self, child: Child) -> NoReturn:
        """Be the child from here to the end of the process."""
        code = 1
        try:
            pools.forget_inherited()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            if self._companion is not None:
                self._companion.leave()
            code = self._run_child(child.name, child.ledger)
            child.ledger.phase = Phase.REPLACED if code == RECYCLE else Phase.FINISHED
        except Unusable as error:
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
            # Not the parent's exit handlers; but what handlers printed must not be lost.
            with suppress(Exception):
                flush()
            os._exit(code)

    def _wait(self) -> None:
        """Sleep until a signal arrives or a child is due to start."""
        # Not sigtimedwait: in a process that was suspended and goes on when the time is over, it
        # answers with what happens to lie in CPython's memory, SIGHUP for one.
        signal.setitimer(signal.ITIMER_REAL, ROUND)
        received = signal.sigwait(_SIGNALS)
        if received not in _STOP:
            return
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
            elif not child.has_legacy:
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

    def _died(self, child: Child, status: int, peak: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        child.legacy = child.ledger.entries()
        child.claiming = child.ledger.announced
        lived = monotonic() - child.started
        pid, child.pid = child.pid, 0
        # What it said last, not its exit code: a handler can exit with any.
        phase = child.ledger.phase
        if phase is Phase.REFUSED and not (self._has_begun or self._signals):
            # As one process alone does. Once they work, it may be repaired while they try again.
            self._is_refused = True
            self._stop()
        if not child.is_leaving and (
            phase is Phase.FINISHED or (self._signals and not child.has_legacy)
        ):
            child.finished = bool(self._signals) or not child.is_behind
            child.start_at = monotonic()
            return
        if phase in (Phase.REPLACED, Phase.FINISHED):
            child.death = "recycling"
            child.start_at = monotonic()
            return
        is_replaced = child.is_leaving or not self._signals
        death = Death(child.name, pid, code, peak, tuple(child.legacy), is_replaced)
        child.death = death
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
            held=len(child.legacy),
            next="not restarted"
            if self._signals
            else "replaced already"
            if child.is_leaving
            else f"restarting in {pause:.1f} s",
        )

    def _record_deaths(self) -> None:
        """Write deaths down for people; while the database is away, try again each round."""
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

    def _relieve(self) -> None:
        """
        Fill the places of processes that drain: they claim no more, and may take long to end.

        At most one of a place drains beside the one that works; others go on until it has gone.
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
                former = Child(child.name, child.ledger, child.pid, child.started, is_leaving=True)
                self._children.append(former)
                child.ledger, child.pid = Ledger(side=1 - child.ledger.side), 0
                child.start_at = monotonic()

    def _free(self) -> None:
        """Settle what dead children left; while the database is away, try again each round."""
        for child in list(self._children):
            if child.has_legacy and not child.pid:
                crash_points.reach("supervisor.freeing")
                try:
                    busy = free(
                        child.name,
                        child.legacy,
                        child.death,
                        claiming=child.claiming,
                        using=self._using,
                    )
                except DatabaseError as error:
                    connections.close_all()
                    event(
                        logging.WARNING,
                        "leases_not_freed",
                        "what worker {worker} held cannot be freed yet: {error}",
                        worker=child.name,
                        error=str(error),
                    )
                    continue
                crash_points.reach("supervisor.freed")
                if busy:
                    child.busy[child.death] = [*child.busy.get(child.death, []), *busy]
                child.legacy, child.claiming = [], []
                child.ledger.clear()
            elif child.busy:
                self._free_busy(child)
                if not child.busy:
                    self._reopen(child.name)
            if child.is_leaving and not (child.pid or child.has_legacy or child.busy):
                self._forget(child)
            child.finished = child.finished or bool(
                self._signals and not child.pid and not child.has_legacy
            )

    def _free_busy(self, child: Child) -> None:
        """Try again what was locked; what is locked beyond its lease is left to the claims."""
        try:
            for death, entries in list(child.busy.items()):
                child.busy[death] = free(child.name, entries, death, using=self._using)
        except DatabaseError:
            connections.close_all()
        child.busy = {death: entries for death, entries in child.busy.items() if entries}

    def _forget(self, child: Child) -> None:
        """Take a process that drained, and has gone, off the list."""
        self._children.remove(child)
        self._reopen(child.name)
        with suppress(DatabaseError), bounded(self._using):
            # It took it along itself, unless it died.
            rows = WorkerProcess.objects.using(self._using)
            rows.filter(name=draining_name(child.name)).delete()

    def _reopen(self, name: str) -> None:
        """Drain once more: what was given back or freed late may be due, and all may have ended."""
        for child in self._children:
            if child.name == name and not (child.is_leaving or self._signals):
                child.is_behind, child.finished = True, False

    def _hurry(self) -> None:
        """A child that does not go is killed, and what it held is freed like after any death."""
        if self._signals and monotonic() > self._kill_at - PATIENCE:
            self._leave_busy()
        if self._signals and monotonic() > self._kill_at:
            self._kill_at = monotonic() + PATIENCE
            for child in self._children:
                if child.pid:
                    os.kill(child.pid, signal.SIGKILL)
                child.finished = child.finished or not child.pid

    def _leave_busy(self) -> None:
        """The grace is over: say what is left to its lease, because others have locked it."""
        for child in self._children:
            ids = sorted(entry.id for entries in child.busy.values() for entry in entries)
            child.busy = {}
            if ids:
                event(
                    logging.WARNING,
                    "reports_left",
                    "{count} messages that worker {worker} held are not freed: another "
                    "transaction has locked them. They run again when their leases end",
                    count=len(ids),
                    worker=child.name,
                    message_ids=ids[:20],
                )


def free(
    worker: str,
    entries: Sequence[Entry],
    death: Death | str,
    *,
    claiming: Sequence[str] = (),
    using: str,
) -> list[Entry]:
    """
    Settle what a dead process held; return what could not be: another transaction has locked it.

    Only what ran is charged. What waited is given back uncounted; what was done but not reported
    is completed; a failure whose error died with the process is recorded as such.
    """
    reason = death.reason if isinstance(death, Death) else death

    def facts(id: int) -> str:
        return f" ({death.facts(id)})" if isinstance(death, Death) else ""

    by_stage: dict[Stage, list[Entry]] = {}
    if claiming:
        known = {(entry.id, entry.token) for entry in entries}
        taken = claimed_under(claiming, using=using)
        unseen = [
            Entry(id, token, Stage.WAITING)
            for id, token in taken.items()
            if (id, token) not in known
        ]
        entries = [*entries, *unseen]
    for entry in entries:
        by_stage.setdefault(entry.stage, []).append(entry)
    charged = [*by_stage.get(Stage.RUNNING, ()), *by_stage.get(Stage.FAILED, ())]
    policies = _policies([entry.id for entry in charged], using=using)
    lost = [
        Failure(
            entry.id,
            error=f"worker {worker} died of {reason} while its handler ran{facts(entry.id)}",
            reason=FailureReason.WORKER_LOST,
            delay=0,
            token=entry.token,
            policy=policies.get(entry.id),
        )
        for entry in by_stage.get(Stage.RUNNING, ())
    ]
    failed = [
        Failure(
            entry.id,
            error=f"its handler failed, and worker {worker} died of {reason} before it said how"
            f"{facts(entry.id)}",
            reason=FailureReason.HANDLER_EXCEPTION,
            token=entry.token,
            policy=policies.get(entry.id),
        )
        for entry in by_stage.get(Stage.FAILED, ())
    ]
    batch = process_batch(
        worker=worker,
        completions=[
            *[Completion(entry.id, token=entry.token) for entry in by_stage.get(Stage.DONE, ())],
            *[
                Completion(entry.id, entry.flags, entry.token)
                for entry in by_stage.get(Stage.STAGED, ())
            ],
        ],
        failures=[*lost, *failed],
        releases=[Release(entry.id, 0, entry.token) for entry in by_stage.get(Stage.WAITING, ())],
        using=using,
    )
    locked = set(batch.busy)
    busy = [entry for entry in entries if entry.id in locked]
    if entries and len(busy) == len(entries):
        return busy
    freed = Counter(entry.stage for entry in entries if entry.id not in locked)
    event(
        logging.WARNING,
        "leases_freed",
        "freed what worker {worker} held: {running} running and charged, {waiting} waiting and "
        "refunded, {done} done",
        worker=worker,
        running=freed[Stage.RUNNING],
        waiting=freed[Stage.WAITING],
        done=freed[Stage.DONE] + freed[Stage.STAGED],
    )
    return busy


def _policies(ids: Sequence[int], *, using: str) -> dict[int, Policy]:
    """Find what the handlers of messages say of failures that do not leave them to the queue."""
    own = registry.policies()
    if not own or not ids:
        return {}
    # A flow may have the name of a handler.
    rows = Message.objects.using(using).exclude(kind=Kind.ORCHESTRATION)
    names = rows.filter(pk__in=ids, name__in=own)
    return {id: own[name] for id, name in names.values_list("pk", "name")}
