"""What a worker does on the side, in a thread and on a connection of its own."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Protocol

from django.db import connections
from django.db.utils import Error as DatabaseError

import deadletter

from .. import clock
from ..alerts import decide_when_due
from ..lifecycle import sweep
from ..lifecycle.transaction import bounded
from ..logs import crash, event
from ..models import Message, Queue, WorkerProcess
from ..patterns import is_pattern, queue_selection
from . import pools
from .breaker import Breakers
from .crash_ledger import Phase
from .in_flight import Holdings
from .observer import Observer
from .options import Options
from .outages import is_outage
from .pump import Pump
from .registry import Registry, registry

#: Seconds between two rounds.
TICK = 1.0
#: How soon a new queue, or one that a pattern now matches, is found.
QUEUES = 3.0
HEARTBEAT = 5.0
SWEEP = 60.0
SUMMARY = 60.0
#: How soon one of the workers sees that alerts are to be decided.
ALERTS = 3.0
#: Seconds after which a pump that does not turn no longer counts as alive.
STALLED = 30.0
#: The most handlers and versions of flows that a row names.
HANDLERS = 2_000
#: The most that a backlog is counted to.
COUNTED = 10_000


class Replace(Protocol):
    """Asks for a fresh process in place of this one; says whether this one drains now."""

    def __call__(self, why: str, *, is_urgent: bool) -> bool: ...


class Housekeeper(threading.Thread):
    """Knows the queues, beats the heart, sweeps, exchanges breakers, decides alerts, sums up."""

    def __init__(
        self,
        *,
        options: Options,
        holdings: Holdings,
        breakers: Breakers,
        replace: Replace,
        orphaned: Callable[[], None],
        handlers: Registry = registry,
    ) -> None:
        super().__init__(name="deadletter-housekeeper", daemon=True)
        self._options = options
        self._holdings = holdings
        self._breakers = breakers
        self._replace = replace
        self._orphaned = orphaned
        self._handlers = handlers
        #: The row of this process; another one has it while this process drains.
        self._name = options.name
        self._is_draining = False
        self._stopping = threading.Event()
        self._names: list[str] = []
        self._patterns = [name for name in options.queues or () if is_pattern(name)]
        self._counted = (0, 0, 0)
        self._introduced = False
        # A fleet started together should not sweep together.
        start = monotonic()
        self._due = {
            "queues": start + QUEUES,
            "heartbeat": start + HEARTBEAT,
            "sweep": start + random.uniform(0, SWEEP),  # noqa: S311 - spreads, hides no secret
            "summary": start + SUMMARY,
            "alerts": start + ALERTS,
        }
        self.pump: Pump | None = None
        self.observer: Observer | None = None

    def queues(self) -> Sequence[str] | None:
        """
        Return the queues to claim from in the order asked for; None: all but dead queues.

        Patterns stay patterns: the claim matches them, so a new queue is found at once.
        """
        return self._options.queues

    def refresh(self) -> None:
        """Read which queues are served, for the row of this worker and the size of its backlog."""
        queues = Queue.objects.using(self._options.using).order_by("name").named_and_dead()
        if self._options.queues is None:
            self._names = [name for name, is_dead_queue in queues if not is_dead_queue]
        else:
            self._names = queue_selection(tuple(self._options.queues)).choose(queues)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        pools.leave_pools()
        while not self._stopping.wait(TICK):
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 - logged
                if isinstance(error, DatabaseError):
                    connections[self._options.using].close()
                    if is_outage(error):
                        continue  # the pump reports it; here it only means a late round
                # Nobody else would beat the heart or notice that the supervisor is gone.
                crash(
                    "housekeeping_failed",
                    "worker {worker}: a round of housekeeping failed",
                    error,
                    worker=self._options.name,
                )
        self._say_goodbye()
        connections.close_all()

    def _round(self) -> None:
        if self._options.supervisor and os.getppid() != self._options.supervisor:
            self._orphaned()
        if self.pump is not None and (stuck := self.pump.leases.stuck):
            self._drain("a handler does not end", is_urgent=stuck > self._options.concurrency)
        self._breakers.exchange()
        if self._is_due("queues", QUEUES):
            self.refresh()
        if self._is_due("heartbeat", HEARTBEAT):
            self.beat()
            self._check_memory()
        if self._is_due("sweep", SWEEP):
            found = sweep(using=self._options.using, by=self._options.name)
            if self.observer is not None:
                self.observer.swept(found)
            self._forget_the_dead()
        if self._is_due("summary", SUMMARY):
            self._sum_up()
        if self._is_due("alerts", ALERTS):
            decide_when_due(using=self._options.using)

    def _is_due(self, duty: str, interval: float) -> bool:
        now = monotonic()
        if now < self._due[duty]:
            return False
        self._due[duty] = now + interval * random.uniform(0.8, 1.2)  # noqa: S311 - as above
        return True

    def beat(self) -> None:
        """Tell the table that this process is alive, unless its pump has stopped turning."""
        pump = self.pump
        if pump is None or monotonic() - pump.turned > STALLED:
            return
        using = self._options.using
        now = clock.now(using)
        running = [
            {
                "id": h.message.id,
                "name": h.message.name,
                "queue": h.message.queue,
                "seconds": round(monotonic() - h.started, 1),
            }
            for h in self._holdings.running()[:100]
        ]
        state = {
            "running": running,
            "held": len(self._holdings),
            "completed": pump.tally.completed,
            "failed": pump.tally.failed,
            # Whoever claims no more serves no queue.
            "queues": [] if self._is_draining else [*self._patterns, *self._names],
            "seen_at": now,
        }
        identity = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": deadletter.__version__,
            "concurrency": self._options.concurrency,
            "started_at": now,
            # What others put off beyond its limit if this worker knows it: see lifecycle/limits.py.
            "handlers": self._handlers.known()[:HANDLERS],
        }
        with bounded(using):
            WorkerProcess.objects.using(using).update_or_create(
                name=self._name,
                # The first beat introduces this process: a dead one may have left a row of this
                # name.
                defaults=state if self._introduced else {**state, **identity},
                create_defaults={**state, **identity},
            )
        self._introduced = True

    def _drain(self, why: str, *, is_urgent: bool) -> None:
        """Ask for a replacement; once this process drains, leave its name to that one."""
        if self._is_draining or not self._replace(why, is_urgent=is_urgent):
            return
        self._is_draining = True
        if self._options.supervisor:
            self._say_goodbye()
            self._name, self._introduced = draining_name(self._options.name), False
        # Last: now the next process may come.
        self._holdings.ledger.phase = Phase.DRAINING
        self.beat()

    def _say_goodbye(self) -> None:
        try:
            rows = WorkerProcess.objects.using(self._options.using)
            # Only its own: the process that took its place may have a row of that name by now.
            own = rows.filter(name=self._name, host=socket.gethostname(), pid=os.getpid())
            with bounded(self._options.using):
                own.delete()
        except DatabaseError:
            pass  # the row will be seen as stale

    def _forget_the_dead(self) -> None:
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

    def _sum_up(self) -> None:
        if self.pump is None:
            return
        tally = self.pump.tally
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
        """Count what is due, but not for ever."""
        using = self._options.using
        due = Message.objects.using(using).in_state("pending", clock.now(using))
        found = due.filter(queue__name__in=self._names).order_by()[: COUNTED + 1].count()
        return f"{COUNTED:,}+" if found > COUNTED else f"{found:,}"


def draining_name(name: str) -> str:
    """Return the name of the row of a process that drains while another one has its place."""
    mark = " (draining)"
    limit = (WorkerProcess._meta.get_field("name").max_length or 200) - len(mark)
    if len(name) > limit:
        # The end tells the processes of a worker apart, the beginning the workers.
        name = f"{name[: limit // 2]}…{name[len(name) + limit // 2 + 1 - limit :]}"
    return name + mark


def resident_mib() -> float | None:
    """Return the memory this process really uses, where the system tells."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - read often, keep it cheap
            pages = int(file.read().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
