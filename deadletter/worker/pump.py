"""
The pump: the thread that owns the database traffic of a worker.

Each turn reports outcomes and claims messages in one transaction, at once when idle and grouped
when busy. The pump stays alive while the database is away.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable
from time import monotonic, sleep

from django.db import connections
from django.db.utils import Error as DatabaseError

from ..lifecycle import WorkBatch
from ..logs import event
from .busy_reports import BusyReports
from .exchange import CommittedExchange, Exchange
from .executors import Executors
from .in_flight import InFlight, InFlightMessage
from .intake import Intake
from .leases import CANCELLATION, INTERVAL, Leases
from .options import Options
from .outages import DatabaseUnusable, advice, is_outage
from .reports import Reporter, Tally

#: Seconds that an outcome may wait for others, to be reported in the same transaction.
FLUSH = 0.005
#: Seconds of the first pause after a claim that found nothing; doubled up to `poll`.
SHORTEST_PAUSE = 0.002
#: Seconds after the last message during which pauses stay short: see lifecycle.notify.
ALERT = 0.02
#: Seconds of the longest pause between two tries to reach the database.
LONGEST_RETRY = 5.0
#: Seconds that a stopping worker waits for a database that is away. Then its leases run out.
LAST_TRY = 5.0
#: Seconds that a process which is to be replaced waits for handlers without a timeout.
UNTIMED = 3600.0
#: If so many outcomes wait when an exchange returns, the next one leaves at once.
PRESSING = 100


class Pump:
    """`turn` is one step; `run` is the loop around it."""

    def __init__(
        self,
        *,
        options: Options,
        in_flight: InFlight,
        executors: Executors,
        busy: BusyReports,
        leases: Leases,
        reporter: Reporter,
        intake: Intake,
        exchange: Exchange,
        tally: Tally,
        woken: threading.Event,
    ) -> None:
        self.options = options
        self.leases = leases
        self.tally = tally
        #: When the last turn ended without an error.
        self.turned = monotonic()
        self._in_flight = in_flight
        self._executors = executors
        self._busy = busy
        self._reporter = reporter
        self._intake = intake
        self._exchange = exchange
        self._schedule = ClaimSchedule(poll=options.poll)
        self._woken = woken
        self._stopped = threading.Event()
        self._stop_at = math.inf
        #: Until when a process that is to be replaced waits for handlers without a timeout.
        self._finish_at = math.inf
        self._claiming = True
        #: True if busy rows were tried once more after the grace.
        self._tried_last = False
        #: Done once before the first turn, and repeated while the database is away.
        self.prepare: Callable[[], None] | None = None
        #: Number of handlers that still ran when the grace was over.
        self.abandoned = 0

    def run(self) -> None:
        """Turn until nothing is left to do: after a stop, or when a drain has finished."""
        try:
            while not self.is_done:
                try:
                    if self.prepare is not None:
                        self.prepare()
                        self.prepare = None
                    self.turn()
                except DatabaseError as error:
                    self._survive(error)
                else:
                    self._schedule.outage = 0.0
                    self.turned = monotonic()
                self._wait()
            if self._busy:
                self._log_left()
        finally:
            self._exchange.thread.stop()

    @property
    def is_done(self) -> bool:
        if self._claiming:
            return False
        if self._schedule.outage and monotonic() > self._stop_at + LAST_TRY:
            return True
        if self._reporter.pending or self._executors.outcomes.ready or self._exchange.unapplied:
            return False
        if self.leases.unconfirmed or len(self._in_flight) > len(self._busy):
            return False
        return self._tried_last or not (self._busy or self.leases.expired)

    def hear(self) -> None:
        """Look for messages that were just sent, also on levels that had none before."""
        self._intake.heard += 1
        self._woken.set()

    def stop(self, *, grace: float) -> None:
        """Claim no more, release what was not started, let the rest finish within `grace`."""
        self._claiming = False
        self._stop_at = min(self._stop_at, monotonic() + grace)
        self._stopped.set()
        self._woken.set()

    def finish(self) -> None:
        """
        Claim no more, release what was not started, and let the rest finish.

        Handlers end at their own timeouts; without one, at the `drain_limit`, or after an hour.
        """
        self._claiming = False
        limit = self.options.drain_limit
        self._finish_at = monotonic() + (UNTIMED if limit is None else limit)
        self._stopped.set()
        self._woken.set()

    def turn(self) -> None:
        """Do everything that is due now: check leases, report, claim."""
        now = monotonic()
        woken = self._woken.is_set()
        self._woken.clear()
        if not self._claiming:
            self._exchange.catch_up()
            self._give_back(now)
        elif woken:
            # Messages sent right after a notification have none of their own: keep pauses short.
            self._schedule.last_sign = now
        self.leases.check(now)
        self._reporter.collect()
        self.leases.release_expired(self._reporter.pending, now)
        self._intake.try_suspect()
        if self._busy and now >= min(self._busy.next_try, self._stop_at):
            self._exchange.try_busy()
        self._tried_last = now >= self._stop_at
        pending = self._reporter.pending
        looking = self._claiming and (woken or bool(pending) or now >= self._schedule.next_look)
        room = self._room(now) if looking else 0
        if looking and not room:
            self._schedule.postpone(now)
        if pending or room or self._exchange.has_progress(now):
            self._put(room)
            return
        self._exchange.catch_up()
        if len(pending):
            # Settled by the transactions of their handlers: only to be counted.
            self._reporter.apply(self._reporter.take(), WorkBatch(""))

    def _room(self, now: float) -> int:
        """Return how many messages to claim; at the end of `max_messages`, stop claiming."""
        unapplied = self._exchange.unapplied
        change = unapplied.change if unapplied else 0
        # For this worker, busy reports are done: another transaction holds them up.
        reported = len(self._reporter.pending) + len(self._busy)
        room = self._intake.room(now, unreported=len(self._in_flight) + change - reported)
        coming = len(unapplied.batch.messages) if unapplied else 0
        room = min(room, self._in_flight.ledger.room - coming)
        limit = self.options.max_messages
        if limit is not None:
            room = min(room, limit - self.tally.executed - len(self._in_flight) - coming)
            if self.tally.executed >= limit:
                self._claiming = False
        return max(room, 0)

    def _put(self, room: int) -> None:
        """Report and claim, and plan the next claim."""
        exchange = self._exchange.put(room)
        if exchange is None:
            return
        if room:
            self._plan_ahead(exchange)
        # If executors have finished more than enough for the next exchange meanwhile, the database
        # is the bottleneck: the next exchange leaves before the result of this one is applied.
        is_pressed = self._claiming and len(self._executors.outcomes.ready) >= PRESSING
        if is_pressed and not self._reporter.is_unsure and self._exchange.may_wait(exchange):
            self._exchange.unapplied = exchange
        else:
            self._exchange.apply(exchange)

    def _plan_ahead(self, exchange: CommittedExchange) -> None:
        """Decide when to claim again, and whether a drain has finished."""
        batch = exchange.batch
        # A message that failed in this transaction was not claimed by it, but may be due already.
        found = len(batch.messages) + len(batch.dead)
        room = exchange.room
        more = batch.more or exchange.is_partial
        self._schedule.looked(monotonic(), found=room if more else found, room=room)
        if self.options.drain and not (
            found
            or more
            or exchange.reports.failures
            or exchange.reports.releases
            or len(self._in_flight) > exchange.done
        ):
            self._claiming = False

    def _give_back(self, now: float) -> None:
        """While stopping: release what waits now, and what runs when the grace is over."""
        outcomes = self._executors.outcomes
        outcomes.give_back(self._in_flight.waiting())
        late = [item for item in self._overdue(now) if not self._can_end(item, now)]
        self.abandoned += len(late)
        outcomes.abandon(late)

    def _overdue(self, now: float) -> list[InFlightMessage]:
        """Return the messages whose handlers run although their time to finish is over."""
        if now >= self._stop_at:
            return self._in_flight.running()
        if now < self._finish_at:
            return []
        is_limited = self.options.drain_limit is not None
        return [item for item in self._in_flight.running() if is_limited or item.deadline is None]

    def _can_end(self, item: InFlightMessage, now: float) -> bool:
        """Cancel an async handler; return True while it still has time to end by itself."""
        if item.cancelled:
            return now < item.cancelled + CANCELLATION
        return self._executors.cancel(item, now)

    def _log_left(self) -> None:
        """Log the messages whose outcomes could not be stored; their leases run out."""
        event(
            logging.WARNING,
            "reports_left",
            "{count} messages are done but not settled: another transaction has locked them. "
            "They run again when their leases end",
            count=len(self._busy),
            message_ids=sorted(self._busy.ids)[:20],
            worker=self.options.name,
        )

    def _wait(self) -> None:
        """Sleep until something is due, or an executor, a notification or a signal wakes it."""
        if self.is_done or self._exchange.unapplied is not None:
            return
        if outage := self._schedule.outage:
            if self._claiming:
                self._stopped.wait(outage)
            else:
                sleep(min(outage, 0.2))
            return
        pause = self.options.poll
        if self._executors.outcomes.ready:
            pause = FLUSH
        elif len(self._in_flight):
            # Executors with runs in their queue wake the pump only when half of them is done.
            pause = 2 * FLUSH if self._executors.waiting_runs else INTERVAL
        if self._claiming and len(self._in_flight) - len(self._busy) < self._intake.wanted:
            pause = min(pause, self._schedule.next_look - monotonic())
        if pause > 0:
            self._woken.wait(pause)

    def _survive(self, error: Exception) -> None:
        """
        Keep what is to be reported while the database is away, and try again later.

        The same if the database refuses: that does not pass by itself, but an operator may repair
        it. Only a worker that has not begun gives up then.
        """
        self._exchange.catch_up()
        connections[self.options.using].close()
        first = not self._schedule.outage
        if not is_outage(error):
            why = advice(error, using=self.options.using)
            if self.prepare is not None:
                raise DatabaseUnusable(why or str(error)) from error
            event(
                logging.ERROR,
                "database_refuses",
                "the database refuses what the worker asks, and this is no outage: {error}{why}; "
                "trying again in {delay:.1f} s, holding {held}",
                error=str(error),
                why=f" ({why})" if why else "",
                delay=self._schedule.database_away(),
                held=len(self._in_flight),
            )
            return
        event(
            logging.WARNING if first else logging.INFO,
            "database_away",
            "the database is away ({error}); trying again in {delay:.1f} s, holding {held}",
            error=str(error),
            delay=self._schedule.database_away(),
            held=len(self._in_flight),
        )


class ClaimSchedule:
    """When to claim next: at once if the last claim found enough, later each time it did not."""

    def __init__(self, *, poll: float) -> None:
        self.next_look = 0.0
        #: Seconds until the database is tried again; 0.0 while it answers.
        self.outage = 0.0
        self._poll = poll
        #: When a claim last found messages, or the pump was woken.
        self.last_sign = 0.0
        self._pause = 0.0

    def postpone(self, now: float) -> None:
        """Try again soon: there was no room to claim."""
        self.next_look = now + FLUSH

    def looked(self, now: float, *, found: int, room: int) -> None:
        """Plan the next claim: at once if there may be more messages."""
        if found:
            self.last_sign = now
            self._pause = 0.0
        if found >= room:
            self.next_look = now
            return
        limit = self._poll
        if now - self.last_sign < ALERT:
            limit = min(limit, 4 * SHORTEST_PAUSE)
        self._pause = min(max(self._pause * 2, SHORTEST_PAUSE), limit)
        self.next_look = now + self._pause

    def database_away(self) -> float:
        """Plan the next try to reach the database; return the seconds until then."""
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - spreads a fleet, hides no secret
        self.outage = min(max(self.outage * 2, 0.1), LONGEST_RETRY) * jitter
        return self.outage
