"""The periodic duties of a worker, in a thread and on a connection of its own."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Protocol

from django.db import connections
from django.db.utils import Error as DatabaseError

import deadletter

from .. import clock
from ..alerts import decide_when_due
from ..application_release import current_release
from ..lifecycle import sweep
from ..lifecycle.group_adoption import adopt_groups
from ..lifecycle.groups import fold_all_groups, fold_groups, has_changes
from ..lifecycle.releases_seen import note_release
from ..lifecycle.transaction import bounded
from ..logs import crash, event
from ..models import Message, Queue, WorkerProcess
from ..patterns import is_pattern, queue_selection
from . import thread_connections
from .breaker import Breakers
from .crash_ledger import Phase
from .in_flight import InFlight
from .observer import Observer
from .options import Options
from .outages import is_outage
from .pump import Pump
from .registry import Registry
from .scheduler import Scheduler

#: Seconds between two rounds.
TICK = 1.0
#: Seconds between two reads of the queues: a new one is on the worker's row after that.
QUEUES = 3.0
HEARTBEAT = 5.0
SWEEP = 60.0
SUMMARY = 60.0
#: Seconds after which one of the workers sees that alerts are to be decided.
ALERTS = 3.0
#: Seconds between two notes that this release still runs.
RELEASE = 60.0
#: A pump that has not turned for so many seconds no longer counts as alive.
STALLED = 30.0
#: The most handlers and versions of flows that a worker's row names.
HANDLERS = 2_000
#: The backlog is counted up to this number.
COUNTED = 10_000


class ReplaceWorker(Protocol):
    """Asks for a fresh process in place of this one; returns True if this one drains now."""

    def __call__(self, why: str, *, is_urgent: bool) -> bool: ...


class Housekeeper(threading.Thread):
    """
    The periodic duties, in one round after another.

    Reads queues, sends heartbeats, sweeps, shares breakers, decides alerts, fires schedules, adds
    failures to their groups.
    """

    def __init__(
        self,
        *,
        options: Options,
        handlers: Registry,
        in_flight: InFlight,
        breakers: Breakers,
        pump: Pump,
        observer: Observer | None,
        replace: ReplaceWorker,
        orphaned: Callable[[], None],
    ) -> None:
        super().__init__(name="deadletter-housekeeper", daemon=True)
        self._options = options
        self._handlers = handlers
        self._in_flight = in_flight
        self._breakers = breakers
        self._pump = pump
        self._observer = observer
        self._replace = replace
        self._orphaned = orphaned
        #: The name of this process's row; while it drains, its replacement has the worker's name.
        self._row_name = options.name
        self._is_draining = False
        self._stopping = threading.Event()
        self._names: list[str] = []
        self._scheduler = Scheduler(options.using)
        self._patterns = [name for name in options.queues or () if is_pattern(name)]
        self._counted = (0, 0, 0)
        self._is_introduced = False
        #: From which fingerprint on the dead of earlier releases are still to be adopted.
        self._adopted: str | None = ""
        # Workers that are started together should not sweep together.
        start = monotonic()
        self._due = {
            "queues": start + QUEUES,
            "heartbeat": start + HEARTBEAT,
            "sweep": start + random.uniform(0, SWEEP),  # noqa: S311 - spreads, hides no secret
            "summary": start + SUMMARY,
            "alerts": start + ALERTS,
            "release": start,
            "between": start,
        }

    def refresh(self) -> None:
        """Read the names of the served queues, for the worker's row and the size of its backlog."""
        queues = Queue.objects.using(self._options.using).order_by("name").named_and_dead()
        if self._options.queues is None:
            self._names = [name for name, is_dead_queue in queues if not is_dead_queue]
        else:
            self._names = queue_selection(tuple(self._options.queues)).choose(queues)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        thread_connections.leave_pools()
        while not self._stopping.wait(TICK):
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 - logged
                if isinstance(error, DatabaseError):
                    connections[self._options.using].close()
                    if is_outage(error):
                        continue  # the pump logs the outage; here it only delays a round
                # The thread must live: it sends heartbeats and notices that the supervisor is gone.
                crash(
                    "housekeeping_failed",
                    "worker {worker}: a round of housekeeping failed",
                    error,
                    worker=self._options.name,
                )
        if self._options.drain:
            self._fold_rest()
        self._delete_row()
        connections.close_all()

    def _fold_rest(self) -> None:
        """Leave complete groups behind: after a run with --drain there may be no other worker."""
        try:
            fold_all_groups(using=self._options.using)
        except DatabaseError as error:
            crash(
                "housekeeping_failed",
                "worker {worker}: the last failures are not added to their groups yet",
                error,
                worker=self._options.name,
            )

    def _round(self) -> None:
        if self._options.parent and os.getppid() != self._options.parent:
            self._orphaned()
        if stuck := self._pump.leases.stuck:
            self._drain("a handler does not end", is_urgent=stuck > self._options.concurrency)
        self._breakers.exchange()
        if self._is_due("queues", QUEUES):
            self.refresh()
        self._beat_when_due()
        if self._is_due("sweep", SWEEP):
            found = sweep(
                using=self._options.using, by=self._options.name, go_on=self._go_on_sweeping
            )
            if self._observer is not None:
                self._observer.swept(found)
            self._delete_dead_rows()
        if self._is_due("summary", SUMMARY):
            self._log_summary()
        if self._is_due("alerts", ALERTS):
            decide_when_due(using=self._options.using)
        if not self._is_draining:
            self._scheduler.turn()
        self._fold_groups()

    def _fold_groups(self) -> None:
        """Add failures to their groups, and once also the dead of earlier releases."""
        using = self._options.using
        if has_changes(using=using):
            fold_groups(using=using)
        if self._adopted is not None:
            self._adopted = adopt_groups(self._adopted, using=using)

    def _beat_when_due(self) -> None:
        if self._is_due("heartbeat", HEARTBEAT):
            self.beat()
            self._check_memory()

    def _go_on_sweeping(self) -> bool:
        """
        Do what cannot wait for the end of a long sweep; return False to end it.

        A worker that is silent for 30 seconds counts as lost, and a sweep may have a million rows
        to delete.
        """
        if self._is_due("between", TICK):
            self._breakers.exchange()
            self._beat_when_due()
            if not self._is_draining:
                self._scheduler.turn()
        return not self._stopping.is_set()

    def _is_due(self, duty: str, interval: float) -> bool:
        now = monotonic()
        if now < self._due[duty]:
            return False
        self._due[duty] = now + interval * random.uniform(0.8, 1.2)  # noqa: S311 - as above
        return True

    def beat(self) -> None:
        """Write the heartbeat to the worker's row, unless the pump has stopped turning."""
        pump = self._pump
        if monotonic() - pump.turned > STALLED:
            return
        using = self._options.using
        now = clock.now(using)
        running = [
            {
                "id": item.message.id,
                "name": item.message.name,
                "queue": item.message.queue,
                "seconds": round(monotonic() - item.started, 1),
            }
            for item in self._in_flight.running()[:100]
        ]
        state = {
            "running": running,
            "held": len(self._in_flight),
            "completed": pump.tally.completed,
            "failed": pump.tally.failed,
            # A process that drains claims no more, so it serves no queue.
            "queues": [] if self._is_draining else [*self._patterns, *self._names],
            "seen_at": now,
        }
        identity = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": deadletter.__version__,
            "release": current_release(),
            "concurrency": self._options.concurrency,
            "started_at": now,
            # Other workers defer a message beyond its limit if this one has a handler for it: see
            # lifecycle/limits.py.
            "handlers": self._handlers.known()[:HANDLERS],
        }
        with bounded(using):
            WorkerProcess.objects.using(using).update_or_create(
                name=self._row_name,
                # The first heartbeat also writes the identity: a dead process may have left a row
                # of this name.
                defaults=state if self._is_introduced else {**state, **identity},
                create_defaults={**state, **identity},
            )
        self._is_introduced = True
        if current_release() and self._is_due("release", RELEASE):
            with bounded(using):
                note_release(current_release(), now, using=using)

    def _drain(self, why: str, *, is_urgent: bool) -> None:
        """Ask for a replacement; once this process drains, leave its name to the replacement."""
        if self._is_draining or not self._replace(why, is_urgent=is_urgent):
            return
        self._is_draining = True
        if self._options.supervisor:
            self._delete_row()
            self._row_name, self._is_introduced = draining_name(self._options.name), False
        # Last: now the supervisor may start the replacement.
        self._in_flight.ledger.phase = Phase.DRAINING
        self.beat()

    def _delete_row(self) -> None:
        try:
            rows = WorkerProcess.objects.using(self._options.using)
            # Host and pid as well: the replacement may have a row of that name by now.
            own = rows.filter(name=self._row_name, host=socket.gethostname(), pid=os.getpid())
            with bounded(self._options.using):
                own.delete()
        except DatabaseError:
            pass  # without heartbeats the row counts as stale

    def _delete_dead_rows(self) -> None:
        using = self._options.using
        old = clock.now(using) - timedelta(days=1)
        with bounded(using):
            WorkerProcess.objects.using(using).filter(seen_at__lt=old).delete()

    def _check_memory(self) -> None:
        limit = self._options.max_memory
        used = resident_mib()
        if limit is not None and used is not None and used > limit:
            why = f"it uses {used:.0f} MiB of memory, more than {limit:.0f}"
            self._drain(why, is_urgent=True)

    def _log_summary(self) -> None:
        tally = self._pump.tally
        before, now = self._counted, (tally.completed, tally.failed, tally.poisoned)
        self._counted = now
        done, failed, poisoned = (new - old for new, old in zip(now, before, strict=True))
        event(
            logging.INFO,
            "summary",
            "worker {worker}: {completed} done, {failed} failed, {poisoned} poisoned in the last "
            "minute ({rate:.1f}/s), {backlog} due",
            worker=self._options.name,
            completed=done,
            failed=failed,
            poisoned=poisoned,
            rate=(done + failed) / SUMMARY,
            backlog=self._backlog(),
        )

    def _backlog(self) -> str:
        """Return the number of due messages, up to COUNTED."""
        using = self._options.using
        due = Message.objects.using(using).in_state("pending", clock.now(using))
        found = due.filter(queue__name__in=self._names).order_by()[: COUNTED + 1].count()
        return f"{COUNTED:,}+" if found > COUNTED else f"{found:,}"


def draining_name(name: str) -> str:
    """Return the name of the row of a process that drains while its replacement works."""
    mark = " (draining)"
    limit = (WorkerProcess._meta.get_field("name").max_length or 200) - len(mark)
    if len(name) > limit:
        # The beginning tells workers apart, the end the processes of one worker.
        name = f"{name[: limit // 2]}…{name[len(name) + limit // 2 + 1 - limit :]}"
    return name + mark


def resident_mib() -> float | None:
    """Return the resident memory of this process; None if the system does not tell."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - read often, keep it cheap
            pages = int(file.read().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
