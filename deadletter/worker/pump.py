"""
The one thread that owns the database traffic: report outcomes and claim more, in one transaction.

At once when idle, grouped when busy; and it stays alive when the database does not.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep

from django.db import DataError, IntegrityError, connections
from django.db.utils import Error as DatabaseError

from .. import points
from ..lifecycle import ClaimRequest, Completion, Failure, Release, WorkBatch, process_batch
from ..logs import event
from .breaker import Breakers
from .courier import Courier
from .executors import Executors
from .holding import Holdings
from .intake import Intake
from .leases import INTERVAL, Leases
from .observer import Observer
from .options import Options
from .registry import Registry
from .reporting import Reporting
from .rhythm import FLUSH, Rhythm
from .tally import Reports, Tally

#: Seconds a stopping worker waits for a database that is away before it leaves its leases to time.
LAST_TRY = 5.0
#: Outcomes that wait when an exchange comes back, and make the next one leave at once.
PRESSING = 100


@dataclass(frozen=True)
class Answered:
    """An exchange that is in the database, and in the books of this process not yet."""

    reports: Reports
    batch: WorkBatch
    #: How many messages it asked for, and when.
    room: int
    asked: float
    took: float

    @property
    def change(self) -> int:
        """By how many it changes what is held."""
        return len(self.batch.messages) - len(self.reports)


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
        self.leases = Leases(
            options=options, holdings=holdings, executors=executors, tally=self.tally
        )
        self._reporting = Reporting(
            using=options.using,
            holdings=holdings,
            executors=executors,
            breakers=breakers,
            leases=self.leases,
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
        self._rhythm = Rhythm(poll=options.poll)
        self._handlers = handlers
        self._holdings = holdings
        self._executors = executors
        self._queues = queues
        self._woken = woken
        self._stopped = threading.Event()
        self._stop_at = math.inf
        self._claiming = True
        self._courier: Courier[WorkBatch] = Courier(options.using)
        self._unentered: Answered | None = None
        #: The token of the last claim.
        self._asked_under = ""
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
        finally:
            self._courier.stop()

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
        held = self._reporting.reports or self._executors.outcomes or len(self._holdings)
        return not (held or self._unentered or self.leases.owed or self.leases.doubtful)

    def stop(self, *, grace: float) -> None:
        """Claim no more, give back what was not started, let the rest finish within `grace`."""
        self._claiming = False
        self._stop_at = min(self._stop_at, monotonic() + grace)
        self._stopped.set()
        self._woken.set()

    def turn(self) -> None:
        """Do everything that is due now: report, claim, and look after what is held."""
        now = monotonic()
        woken = self._woken.is_set()
        self._woken.clear()
        if not self._claiming:
            self._catch_up()
            self._give_back(now)
        elif woken:
            self._rhythm.heard(now)
        self.leases.check(now)
        self._reporting.collect()
        self._reporting.set_debts_aside(now)
        self._intake.try_suspect()
        reports = self._reporting.reports
        looking = self._claiming and (woken or bool(reports) or now >= self._rhythm.next_look)
        room = self._room(now) if looking else 0
        if looking and not room:
            self._rhythm.postpone(now)
        if reports or room:
            self._exchange(room)
            return
        self._catch_up()
        if len(reports):
            # Settled by their own handlers' transactions: only to be counted.
            self._reporting.settled(self._reporting.take(), WorkBatch(""))

    def _room(self, now: float) -> int:
        """Say how many messages to claim; in the end of `max_messages`, claim no more."""
        unentered = self._unentered
        room = self._intake.room(now, unentered=unentered.change if unentered else 0)
        coming = len(unentered.batch.messages) if unentered else 0
        room = min(room, self._holdings.ledger.room - coming)
        limit = self.options.max_messages
        if limit is not None:
            room = min(room, limit - self.tally.executed - len(self._holdings) - coming)
            if self.tally.executed >= limit:
                self._claiming = False
        return max(room, 0)

    def _exchange(self, room: int) -> None:
        """Report and claim in one transaction; the report is kept until it is known to be in."""
        asked = monotonic()
        request = self._request(room) if room else None
        reports = self._reporting.take()
        points.reach("pump.exchanging")
        try:
            batch = self._carry(reports, request)
        except (DataError, IntegrityError) as error:
            self._reporting.restore(reports)
            if not reports:
                raise
            self._exchange_singly(error)
            return
        except BaseException as error:
            self._reporting.restore(reports)
            if isinstance(error, DatabaseError):
                self._reporting.is_unsure(reports)
                if request is not None and request.token:
                    self.leases.doubtful.add(request.token)
            raise
        points.reach("pump.exchanged")
        answered = Answered(reports, batch, room, asked, monotonic() - asked)
        if room:
            self._plan_ahead(answered)
        if self._is_pressed and self._may_wait(answered):
            self._unentered = answered
        else:
            self._enter(answered)

    def _carry(self, reports: Reports, request: ClaimRequest | None) -> WorkBatch:
        """Put an exchange to the database; meanwhile enter the one before, where that is left."""
        if self._unentered is None:
            return self._process(reports, request)
        self._courier.send(partial(self._process, reports, request))
        try:
            self._catch_up()
        finally:
            batch = self._courier.wait()
        return batch

    def _plan_ahead(self, answered: Answered) -> None:
        """Decide when to look again, and whether a drain is through."""
        batch = answered.batch
        # What failed in this transaction was not claimed by it, though it may be due already.
        found = len(batch.messages) + len(batch.dead)
        room = answered.room
        self._rhythm.looked(monotonic(), found=room if batch.more else found, room=room)
        if self.options.drain and not (
            found
            or batch.more
            or answered.reports.failures
            or len(self._holdings) > len(answered.reports)
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

    def _may_wait(self, answered: Answered) -> bool:
        """
        Whether it can be entered while the next one is under way.

        Not what was lost: saying so may be a statement of its own on the connection. And not a new
        holding of a message that is still held: the report of the old one would remove it.
        """
        batch = answered.batch
        is_lost = batch.lost or answered.reports.overtaken
        return not (is_lost or self._holdings.holds_any(batch.messages))

    def _catch_up(self) -> None:
        if self._unentered is not None:
            answered, self._unentered = self._unentered, None
            self._enter(answered)

    def _enter(self, answered: Answered) -> None:
        """Let go of what was reported, and hold what was claimed. Asks the database nothing."""
        self._reporting.settled(answered.reports, answered.batch)
        if self.observer is not None:
            self.observer.exchanged(answered.took, answered.reports, answered.batch, self.tally)
        if answered.room:
            self._intake.take_in(answered.batch, asked=answered.asked)
            if self._asked_under == answered.batch.token:
                self._holdings.ledger.announce()
            else:
                self._holdings.ledger.announce(self._asked_under)
            points.reach("pump.taken_in")

    def _request(self, room: int) -> ClaimRequest:
        token = secrets.token_hex(8)
        # Known before the messages are: if this process dies now, they can be found.
        before = [self._unentered.batch.token] if self._unentered and self._unentered.room else []
        self._holdings.ledger.announce(*before, token)
        self._asked_under = token
        limits = self._handlers.limits()
        return ClaimRequest(self._queues(), room, self.options.lease, limits, token)

    def _process(self, reports: Reports, request: ClaimRequest | None = None) -> WorkBatch:
        return process_batch(
            worker=self.options.name,
            completions=reports.completions,
            failures=reports.failures,
            releases=reports.releases,
            claim=request,
            using=self.options.using,
        )

    def _exchange_singly(self, error: DatabaseError) -> None:
        """One report cannot be stored: find it, and let neither the others nor the loop suffer."""
        event(logging.ERROR, "report_refused", "a report was refused: {error}", error=str(error))
        reports = self._reporting.reports
        for report in reports.all():
            # A database that goes away meanwhile ends this, and the rest is reported later.
            if not self._settle_alone(report):
                plain = Failure(report.id, "its outcome could not be stored", token=report.token)
                if not self._settle_alone(plain):
                    # Nothing can be said of it: its lease runs out, and the claim judges it.
                    self._holdings.remove(report.id)
            reports.discard(report)

    def _settle_alone(self, report: Completion | Failure | Release) -> bool:
        alone = Reports()
        alone.add(report)
        try:
            batch = self._process(alone)
        except (DataError, IntegrityError):
            return False
        self._reporting.settled(alone, batch)
        return True

    def _give_back(self, now: float) -> None:
        """Stopping: what waits goes back now, what runs when the grace is over."""
        self._executors.give_back(self._holdings.waiting())
        if now >= self._stop_at:
            running = self._holdings.running()
            self.abandoned += len(running)
            self._executors.abandon(running)

    def _wait(self) -> None:
        """Sleep until something is due, or an executor, a sender or a signal says so."""
        if self.is_done or self._unentered is not None:
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
        if self._claiming and len(self._holdings) < self._intake.wanted:
            pause = min(pause, self._rhythm.next_look - monotonic())
        if pause > 0:
            self._woken.wait(pause)

    def _survive(self, error: Exception) -> None:
        """The database is away: keep what is to be reported and try again, later each time."""
        self._catch_up()
        connections[self.options.using].close()
        first = not self._rhythm.outage
        event(
            logging.WARNING if first else logging.INFO,
            "database_away",
            "the database is away ({error}); trying again in {delay:.1f} s, holding {held}",
            error=str(error),
            delay=self._rhythm.is_away(),
            held=len(self._holdings),
        )
