"""
The one thread that owns the database traffic: report outcomes and claim more, in one transaction.

At once when idle, grouped when busy; and it stays alive when the database does not.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep

from django.db import connections
from django.db.utils import Error as DatabaseError

from ..lifecycle import WorkBatch
from ..logs import event
from .breaker import Breakers
from .busy_reports import Backlog
from .exchange import Answered, Exchange
from .executors import Executors
from .in_flight import Holding, Holdings
from .intake import Intake
from .leases import CANCELLATION, INTERVAL, Leases
from .observer import Observer
from .options import Options
from .outages import Unusable, advice, is_outage
from .registry import Registry
from .reports import Reporting
from .rhythm import FLUSH, Rhythm
from .tally import Tally

#: Seconds a stopping worker waits for a database that is away before it leaves its leases to time.
LAST_TRY = 5.0
#: Seconds that a process which is to be replaced waits for handlers without a time limit.
UNTIMED = 3600.0
#: Outcomes that wait when an exchange comes back, and make the next one leave at once.
PRESSING = 100


class Pump:
    """`turn` is one step; `run` is the loop around it."""

    def __init__(
        self,
        *,
        options: Options,
        handlers: Registry,
        holdings: Holdings,
        executors: Executors,
        breakers: Breakers,
        queues: Callable[[], Sequence[str] | None],
        woken: threading.Event,
    ) -> None:
        self.options = options
        self.tally = Tally()
        self.turned = monotonic()
        self._backlog = Backlog(holdings=holdings, using=options.using)
        self.leases = Leases(
            options=options,
            holdings=holdings,
            executors=executors,
            backlog=self._backlog,
            tally=self.tally,
        )
        self._reporting = Reporting(
            using=options.using,
            holdings=holdings,
            executors=executors,
            breakers=breakers,
            leases=self.leases,
            backlog=self._backlog,
            tally=self.tally,
        )
        self._intake = Intake(
            options=options,
            handlers=handlers,
            holdings=holdings,
            executors=executors,
            breakers=breakers,
            reporting=self._reporting,
        )
        self._exchange = Exchange(
            options=options,
            handlers=handlers,
            holdings=holdings,
            leases=self.leases,
            reporting=self._reporting,
            intake=self._intake,
            tally=self.tally,
            queues=queues,
        )
        self._rhythm = Rhythm(poll=options.poll)
        self._holdings = holdings
        self._executors = executors
        self._woken = woken
        self._stopped = threading.Event()
        self._stop_at = math.inf
        #: When a process that is to be replaced waits no longer for handlers without a time limit.
        self._finish_at = math.inf
        self._claiming = True
        #: What others have locked was tried once more after the grace.
        self._tried_last = False
        #: Done once, before the first turn; repeated while the database is away.
        self.prepare: Callable[[], None] | None = None
        #: Handlers that still ran when the grace was over.
        self.abandoned = 0

    @property
    def observer(self) -> Observer | None:
        """Told what every transaction did, when somebody measures."""
        return self._reporting.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._reporting.observer = observer

    def run(self) -> None:
        """Turn until there is nothing left to do: after a stop, or when a drain is through."""
        try:
            while not self.is_done:
                self._try_turn()
                self._wait()
            self._leave()
        finally:
            self._exchange.stop()

    def _try_turn(self) -> None:
        try:
            if self.prepare is not None:
                self.prepare()
                self.prepare = None
            self.turn()
        except DatabaseError as error:
            self._survive(error)
        else:
            self._rhythm.outage = 0.0
            self.turned = monotonic()

    @property
    def is_done(self) -> bool:
        if self._claiming:
            return False
        if self._rhythm.outage and monotonic() > self._stop_at + LAST_TRY:
            return True
        if self._reporting.reports or self._executors.outcomes or self._exchange.unentered:
            return False
        if self.leases.doubtful or len(self._holdings) > len(self._backlog):
            return False
        return self._tried_last or not (self._backlog or self.leases.owed)

    def hear(self) -> None:
        """Somebody sent something: look for it, also where there was nothing before."""
        self._exchange.heard += 1
        self._woken.set()

    def stop(self, *, grace: float) -> None:
        """Claim no more, give back what was not started, let the rest finish within `grace`."""
        self._claiming = False
        self._stop_at = min(self._stop_at, monotonic() + grace)
        self._stopped.set()
        self._woken.set()

    def finish(self) -> None:
        """
        Claim no more, give back what was not started, and let the rest finish.

        Handlers have their own time limit; without one, that of the options, or an hour.
        """
        self._claiming = False
        limit = self.options.drain_limit
        self._finish_at = monotonic() + (UNTIMED if limit is None else limit)
        self._stopped.set()
        self._woken.set()

    def turn(self) -> None:
        """Do everything that is due now: report, claim, and look after what is held."""
        now = monotonic()
        woken = self._woken.is_set()
        self._woken.clear()
        if not self._claiming:
            self._exchange.catch_up()
            self._give_back(now)
        elif woken:
            self._rhythm.heard(now)
        self.leases.check(now)
        self._reporting.collect()
        self._reporting.set_debts_aside(now)
        self._intake.try_suspect()
        if self._backlog.is_due(now) or (self._backlog and now >= self._stop_at):
            self._exchange.try_backlog()
        self._tried_last = now >= self._stop_at
        reports = self._reporting.reports
        looking = self._claiming and (woken or bool(reports) or now >= self._rhythm.next_look)
        room = self._room(now) if looking else 0
        if looking and not room:
            self._rhythm.postpone(now)
        if reports or room or self._exchange.has_progress(now):
            self._trade(room)
            return
        self._exchange.catch_up()
        if len(reports):
            # Settled by their own handlers' transactions: only to be counted.
            self._reporting.settled(self._reporting.take(), WorkBatch(""))

    def _room(self, now: float) -> int:
        """Say how many messages to claim; in the end of `max_messages`, claim no more."""
        unentered = self._exchange.unentered
        room = self._intake.room(now, unentered=unentered.change if unentered else 0)
        coming = len(unentered.batch.messages) if unentered else 0
        room = min(room, self._holdings.ledger.room - coming)
        limit = self.options.max_messages
        if limit is not None:
            room = min(room, limit - self.tally.executed - len(self._holdings) - coming)
            if self.tally.executed >= limit:
                self._claiming = False
        return max(room, 0)

    def _trade(self, room: int) -> None:
        """Report and claim; plan the next look while at it."""
        answered = self._exchange.put(room)
        if answered is None:
            return
        if room:
            self._plan_ahead(answered)
        self._exchange.enter(answered, later=self._is_pressed)

    def _plan_ahead(self, answered: Answered) -> None:
        """Decide when to look again, and whether a drain is through."""
        batch = answered.batch
        # What failed in this transaction was not claimed by it, though it may be due already.
        found = len(batch.messages) + len(batch.dead)
        room = answered.room
        more = batch.more or answered.is_partial
        self._rhythm.looked(monotonic(), found=room if more else found, room=room)
        if self.options.drain and not (
            found
            or more
            or answered.reports.failures
            or answered.reports.releases
            or len(self._holdings) > answered.done
        ):
            self._claiming = False

    @property
    def _is_pressed(self) -> bool:
        """
        Whether the next exchange had better leave before the last one is entered into the books.

        Executors have finished more than enough for it while the database was at work, so that is
        what everybody waits for.
        """
        return (
            self._claiming
            and len(self._executors.outcomes) >= PRESSING
            and not self._reporting.has_doubts
        )

    def _give_back(self, now: float) -> None:
        """Stopping: what waits goes back now, what runs when the grace is over."""
        self._executors.give_back(self._holdings.waiting())
        late = [holding for holding in self._overdue(now) if not self._can_end(holding, now)]
        self.abandoned += len(late)
        self._executors.abandon(late)

    def _overdue(self, now: float) -> list[Holding]:
        """Return what still runs although its time to finish is over."""
        if now >= self._stop_at:
            return self._holdings.running()
        if now < self._finish_at:
            return []
        is_limited = self.options.drain_limit is not None
        return [h for h in self._holdings.running() if is_limited or h.deadline is None]

    def _can_end(self, holding: Holding, now: float) -> bool:
        """Cancel an async handler, and say whether it has a moment left to end by itself."""
        if holding.cancelled:
            return now < holding.cancelled + CANCELLATION
        return self._executors.cancel(holding, now)

    def _leave(self) -> None:
        """Say what is left to its lease: its outcome could not be stored."""
        if self._backlog:
            event(
                logging.WARNING,
                "reports_left",
                "{count} messages are done but not settled: another transaction has locked them. "
                "They run again when their leases end",
                count=len(self._backlog),
                message_ids=sorted(self._backlog.ids)[:20],
                worker=self.options.name,
            )

    def _wait(self) -> None:
        """Sleep until something is due, or an executor, a sender or a signal says so."""
        if self.is_done or self._exchange.unentered is not None:
            return
        if outage := self._rhythm.outage:
            if self._claiming:
                self._stopped.wait(outage)
            else:
                sleep(min(outage, 0.2))
            return
        pause = self.options.poll
        if self._executors.outcomes:
            pause = FLUSH
        elif len(self._holdings):
            # Executors that have more to do say nothing before half of it is done.
            pause = 2 * FLUSH if self._executors.are_behind else INTERVAL
        if self._claiming and len(self._holdings) - len(self._backlog) < self._intake.wanted:
            pause = min(pause, self._rhythm.next_look - monotonic())
        if pause > 0:
            self._woken.wait(pause)

    def _survive(self, error: Exception) -> None:
        """
        The database is away: keep what is to be reported and try again, later each time.

        So it does when the database refuses, which does not pass by itself, but may by an operator;
        only a worker that has not begun gives up then.
        """
        self._exchange.catch_up()
        connections[self.options.using].close()
        first = not self._rhythm.outage
        if not is_outage(error):
            why = advice(error, using=self.options.using)
            if self.prepare is not None:
                raise Unusable(why or str(error)) from error
            event(
                logging.ERROR,
                "database_refuses",
                "the database refuses what the worker asks, and this is no outage: {error}{why}; "
                "trying again in {delay:.1f} s, holding {held}",
                error=str(error),
                why=f" ({why})" if why else "",
                delay=self._rhythm.is_away(),
                held=len(self._holdings),
            )
            return
        event(
            logging.WARNING if first else logging.INFO,
            "database_away",
            "the database is away ({error}); trying again in {delay:.1f} s, holding {held}",
            error=str(error),
            delay=self._rhythm.is_away(),
            held=len(self._holdings),
        )
