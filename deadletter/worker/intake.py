"""Intake: how many messages to claim, where the claim begins, and which messages may start."""

from __future__ import annotations

import math
from time import monotonic

from ..alerts.notice import NAME as NOTICE
from ..lifecycle import ClaimRequest, Floor, Levels, WorkBatch
from ..lifecycle.internal_queue import QUEUE as INTERNAL_QUEUE
from .breaker import Breakers
from .executors import Executors
from .in_flight import InFlight, InFlightMessage, Run
from .options import Options
from .registry import Registry
from .reports import Reporter

#: Seconds of work to have in flight beyond what runs, so that executors need not wait for a claim.
AHEAD = 0.05
#: Seconds that a message which may kill its process waits while another such message is tried.
SUSPECT_WAIT = 0.5
#: Alert notices that are delivered at a time: slow receivers must not hold up other messages.
DELIVERIES = 2
#: Seconds after which a busy worker looks at all due messages again, not only from its floors on.
WHOLE_LOOK = 1.0
#: A worker that finds too little looks for other levels after this many times as long as the last
#: look for levels took. A few levels take a fraction of a millisecond; a thousand take several.
REST = 10.0


class Intake:
    """Called by the pump, in its thread."""

    def __init__(
        self,
        *,
        options: Options,
        handlers: Registry,
        in_flight: InFlight,
        executors: Executors,
        breakers: Breakers,
        reporter: Reporter,
    ) -> None:
        self._options = options
        self._handlers = handlers
        self._in_flight = in_flight
        self._executors = executors
        self._breakers = breakers
        self._reporter = reporter
        #: How many notifications have come, and how many had come before the levels were read.
        self.heard = 0
        self._heard_before = 0
        #: Where the next claim begins, by queue.
        self._floors: dict[str, Floor] = {}
        #: The levels with messages that the last claim without floors found.
        self._levels: Levels | None = None
        #: Candidates per message in the last claim that filled its batch.
        self._candidates = 1.0
        #: The run in flight that may kill this process; at most one.
        self._suspect: Run | None = None
        self._is_tried = False
        #: Alert notices that are being delivered.
        self._deliveries: list[InFlightMessage] = []
        #: The number of messages to have in flight: what can run at once, and AHEAD beyond it.
        self.wanted = min(executors.concurrency, 2 * options.batch)
        #: Messages handled in a second.
        self._rate = 0.0
        self._measured = monotonic()

    def room(self, now: float, *, unreported: int) -> int:
        """Return the number of messages to claim, if so many are in flight and not reported."""
        elapsed = now - self._measured
        if elapsed > 0.001:
            # Up at once, down slowly: a burst must not starve, a pause must not hoard.
            finished = self._reporter.finished
            self._rate = max(finished / elapsed, self._rate * math.exp(-elapsed))
            self._measured, self._reporter.finished = now, 0
            ahead = math.ceil(self._rate * AHEAD)
            self.wanted = min(self._executors.concurrency + ahead, 2 * self._options.batch)
        return min(self.wanted - unreported, self._options.batch)

    def request(self, room: int, token: str) -> ClaimRequest:
        """Return the claim of `room` messages under a token."""
        now = monotonic()
        levels = self._levels
        if levels is not None and now - levels.read > WHOLE_LOOK:
            levels, self._floors = None, {}
        # If its levels do not fill the batch, the claim looks for others, too.
        may_rediscover = (
            levels is None
            or self.heard != self._heard_before
            or now - levels.read >= REST * levels.seconds
            or self._options.drain
        )
        queues = self._options.queues
        if queues is not None and not self._may_deliver:
            queues = [name for name in queues if name != INTERNAL_QUEUE]
        return ClaimRequest(
            queues,
            room,
            self._options.lease,
            token=token,
            floors=dict(self._floors),
            candidates=self._candidates,
            levels=levels,
            policies=self._handlers.policies(),
            knows=self._handlers.knows,
            rediscover=may_rediscover,
            shuffle=self._options.queues is None,
        )

    def claimed(self, batch: WorkBatch, *, room: int, heard: int) -> None:
        """
        Remember where the next claim begins. `heard`: the notifications before this claim.

        While a queue has more messages than fit, the next claim need not begin at its beginning.
        Not after a claim from several queues: it is not known which queue the floor belongs to.
        """
        if batch.levels is not None:
            self._levels, self._heard_before = batch.levels, heard
        if len(batch.messages) < room:
            self._floors = {}
        elif batch.floor and len({message.queue for message in batch.messages}) == 1:
            self._floors[batch.messages[0].queue] = batch.floor
        self._candidates = batch.candidates if len(batch.messages) >= room else 1.0

    def take_in(self, batch: WorkBatch, *, asked: float) -> None:
        """Add the claimed messages to those in flight, and start those that may start."""
        add, find = self._in_flight.add, self._handlers.find
        runs = [
            [add(message, since=asked, handler=find(message)) for message in messages]
            for messages in batch.runs()
        ]
        # Almost always nothing is held back: do not ask for each of 500 runs.
        is_plain = self._breakers.are_closed and not any(
            item.is_suspect or item.message.name == NOTICE for run in runs for item in run
        )
        ready = runs if is_plain else [run for run in runs if self._may_start(run)]
        # Wake the pump when half of what is in flight is done: the other half lasts until it is
        # back.
        self._executors.outcomes.enough = max(1, len(self._in_flight) // 2)
        if ready:
            self._executors.put(ready)

    def try_suspect(self) -> None:
        """
        Start the suspect once all other suspects are known to be given back.

        Messages that run beside one that kills its process are charged as well. On their last
        attempt they must not run there: a suspect runs without other suspects, so that only the
        culprit uses up its attempts.
        """
        run = self._suspect
        if run is None or self._reporter.pending.releases:
            return
        if all(self._in_flight.get(item.message.id) is not item for item in run):
            self._suspect, self._is_tried = None, False
        elif not self._is_tried:
            self._is_tried = True
            self._executors.put([run])

    @property
    def _may_deliver(self) -> bool:
        """True if another alert notice may be delivered; otherwise its queue is not claimed."""
        if not self._deliveries:
            return True
        self._deliveries = [item for item in self._deliveries if not item.is_decided]
        # If there are several threads, one is left to other messages.
        return len(self._deliveries) < min(DELIVERIES, max(1, self._options.concurrency - 1))

    def _may_start(self, run: Run) -> bool:
        wait = self._breakers.hold(*[item.handler for item in run])
        if wait is not None:
            self._reporter.release(run, after=wait)
            return False
        if run[0].message.name == NOTICE:
            if not self._may_deliver:
                self._reporter.release(run, after=0)
                return False
            self._deliveries.append(run[0])
        if not any(item.is_suspect for item in run):
            return True
        if self._suspect is None:
            self._suspect = run
        else:
            self._reporter.release(run, after=SUSPECT_WAIT)
        return False
