"""How many messages to ask for, and where does each of them go that came?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic

from ..alerts.notice import NAME as NOTICE
from ..lifecycle import WorkBatch
from ..lifecycle.internal_queue import QUEUE as OWN_QUEUE
from .breaker import Breakers
from .executors import Executors
from .in_flight import Holding, Holdings
from .options import Options
from .registry import Registry
from .reports import Reporting
from .thread_pool import Run

#: Seconds of work to have at hand, so that executors do not wait for a round trip.
AHEAD = 0.05
#: Seconds a message waits that may kill its process, while another such one is tried.
SUSPECT_WAIT = 0.5
#: Notices on their way at a time: whoever receives them slowly must not hold up the work.
DELIVERIES = 2


class Intake:
    """Called by the pump, in its thread."""

    def __init__(
        self,
        *,
        options: Options,
        handlers: Registry,
        holdings: Holdings,
        executors: Executors,
        breakers: Breakers,
        reporting: Reporting,
    ) -> None:
        self._options = options
        self._handlers = handlers
        self._holdings = holdings
        self._executors = executors
        self._breakers = breakers
        self._reporting = reporting
        #: The one run held that may kill this process.
        self._suspect: Run | None = None
        self._is_tried = False
        #: Notices on their way to their channels.
        self._deliveries: list[Holding] = []
        self._rate = 0.0
        self._measured = monotonic()

    @property
    def wanted(self) -> int:
        """How many messages to hold: what can run at once, and enough for a moment beyond it."""
        ahead = math.ceil(self._rate * AHEAD)
        return min(self._executors.concurrency + ahead, 2 * self._options.batch)

    def room(self, now: float, *, unentered: int) -> int:
        """
        Say how many messages to ask for: enough for a moment, none that would only wait.

        `unentered` is by how many an exchange that is not in the books yet changes what is held.
        """
        elapsed = now - self._measured
        if elapsed > 0.001:
            # Up at once, down slowly: a burst must not starve, a pause must not hoard.
            finished = self._reporting.finished
            self._rate = max(finished / elapsed, self._rate * math.exp(-elapsed))
            self._measured, self._reporting.finished = now, 0
        # What waits for somebody else's transaction is done as far as this worker is concerned.
        reported = len(self._reporting.reports) + len(self._reporting.backlog)
        unreported = len(self._holdings) + unentered - reported
        return min(self.wanted - unreported, self._options.batch)

    def open_queues(self, queues: Sequence[str] | None) -> Sequence[str] | None:
        """Leave deadletter's own queue out for as long as no further notice could be delivered."""
        if queues is None or self._may_deliver:
            return queues
        return [name for name in queues if name != OWN_QUEUE]

    @property
    def _may_deliver(self) -> bool:
        if not self._deliveries:
            return True
        self._deliveries = [held for held in self._deliveries if not held.is_decided]
        # One thread at least is for the work, where there are several.
        return len(self._deliveries) < min(DELIVERIES, max(1, self._options.concurrency - 1))

    def take_in(self, batch: WorkBatch, *, asked: float) -> None:
        """Hold what was claimed, and hand over what may start."""
        add, find = self._holdings.add, self._handlers.find
        runs = [
            [add(message, since=asked, handler=find(message)) for message in messages]
            for messages in batch.runs()
        ]
        # Almost always nothing is held back, and 500 runs need not be asked about.
        is_plain = self._breakers.are_closed and not any(
            holding.is_suspect or holding.message.name == NOTICE for run in runs for holding in run
        )
        ready = runs if is_plain else [run for run in runs if self._may_start(run)]
        # The pump is told when half of what is held is done: the other half lasts until it is back.
        self._executors.enough = max(1, len(self._holdings) // 2)
        if ready:
            self._executors.put(ready)

    def _may_start(self, run: Run) -> bool:
        wait = self._breakers.hold(*[holding.handler for holding in run])
        if wait is not None:
            self._reporting.put_back(run, wait)
            return False
        if run[0].message.name == NOTICE:
            if not self._may_deliver:
                self._reporting.put_back(run, 0)
                return False
            self._deliveries.append(run[0])
        suspects = [holding for holding in run if holding.is_suspect]
        if not suspects:
            return True
        if self._suspect is None:
            self._suspect = run
        else:
            self._reporting.put_back(run, SUSPECT_WAIT)
        return False

    def try_suspect(self) -> None:
        """
        Run one suspect at a time, when the others are known to be given back.

        What runs beside a message that kills its process is charged as well. On its last attempt it
        must not be there: a suspect is held alone, so only the culprit uses up its attempts.
        """
        run = self._suspect
        if run is None or self._reporting.reports.releases:
            return
        if all(self._holdings.get(h.message.id) is not h for h in run):
            self._suspect, self._is_tried = None, False
        elif not self._is_tried:
            self._is_tried = True
            self._executors.put([run])
