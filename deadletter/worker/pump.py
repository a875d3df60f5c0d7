"""
The one thread that owns the database traffic: report outcomes and claim more, in one transaction.

At once when idle, grouped when busy; and it stays alive when the database does not.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep

from django.db import DataError, IntegrityError, connections
from django.db.utils import Error as DatabaseError

from ..lifecycle import ClaimRequest, Completion, Failure, Release, WorkBatch, process_batch
from ..logs import event
from ..models import Message
from .breaker import Breakers
from .executor import Report
from .executors import Executors
from .holding import Holding, Holdings
from .leases import INTERVAL, Leases
from .observer import Observer
from .options import Options
from .registry import Handler, Registry
from .tally import Reports, Tally

#: Seconds an outcome may wait for company.
FLUSH = 0.005
#: Seconds of work to have at hand, so that executors do not wait for a round trip.
AHEAD = 0.05
#: Seconds a message waits that may kill its process, while another such one is tried.
SUSPECT_WAIT = 0.5
#: The first pause after an empty look; doubled up to `poll`.
SHORTEST_PAUSE = 0.002
#: Seconds after the last message during which pauses stay short: see lifecycle.notify.
ALERT = 0.05
#: The longest pause between two tries to reach the database.
LONGEST_RETRY = 5.0
#: Seconds a stopping worker waits for a database that is away before it leaves its leases to time.
LAST_TRY = 5.0


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
        self._handlers = handlers
        self._holdings = holdings
        self._executors = executors
        self._breakers = breakers
        self._queues = queues
        self._woken = woken
        self._stopped = threading.Event()
        self._stop_at = math.inf
        self._claiming = True
        self._reports = Reports()
        #: Ids in a report whose transaction broke: it may have been committed all the same.
        self._unsure: set[int] = set()
        #: The one run held that may kill this process.
        self._suspect: list[Holding] | None = None
        self._is_tried = False
        self._outage = 0.0
        self._pause = 0.0
        self._next_look = 0.0
        self._last_sign = 0.0
        self._rate = 0.0
        self._measured = monotonic()
        self._finished = 0
        #: Done once, before the first turn; repeated while the database is away.
        self.prepare: Callable[[], None] | None = None
        #: Told what every transaction did, when somebody measures.
        self.observer: Observer | None = None
        #: Handlers that still ran when the grace was over.
        self.abandoned = 0

    def run(self) -> None:
        """Turn until there is nothing left to do: after a stop, or when a drain is through."""
        while not self.is_done:
            try:
                if self.prepare is not None:
                    self.prepare()
                    self.prepare = None
                self.turn()
            except DatabaseError as error:
                self._survive(error)
            else:
                self._outage = 0.0
                self.turned = monotonic()
            self._wait()

    @property
    def is_done(self) -> bool:
        if self._outage and monotonic() > self._stop_at + LAST_TRY:
            return True
        held = self._reports or self._executors.outcomes or len(self._holdings)
        busy = held or self.leases.owed or self.leases.doubtful
        return not self._claiming and not busy

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
            self._give_back(now)
        elif woken:
            # What is sent right after a notification has none of its own: see lifecycle.notify.
            self._last_sign = now
        self.leases.check(now)
        self._collect()
        self._set_debts_aside(now)
        self._try_suspect()
        looking = self._claiming and (woken or bool(self._reports) or now >= self._next_look)
        room = self._room(now) if looking else 0
        if looking and not room:
            self._next_look = now + FLUSH
        if self._reports or room:
            self._exchange(room)
        elif self._reports.settled or self._reports.overtaken:
            reports, self._reports = self._reports, Reports()
            self._settled(reports, WorkBatch(""))

    def _collect(self) -> None:
        """Take over what the executors have finished."""
        while self._executors.outcomes:
            for holding, report in self._executors.outcomes.popleft():
                if self._holdings.dismiss(holding):
                    # Lost its lease, and this very process claimed the message anew.
                    self.tally.lost += 1
                    self._breakers.cancel_probe(holding.handler)
                    continue
                self._reports.add(report)
                self._tell_breakers(holding, report)

    def _tell_breakers(self, holding: Holding, report: Report | Release) -> None:
        if isinstance(report, Release):
            self._breakers.cancel_probe(holding.handler)
            return
        self._finished += 1
        if not isinstance(report, Failure):
            self._breakers.report(holding.handler, failed=False)
        elif report.deferred:
            # Its handler was never called: this says nothing about it.
            self._breakers.cancel_probe(holding.handler)
        else:
            wait = self._breakers.report(holding.handler, failed=True, error=str(report.error))
            if wait is not None:
                self._hold_back(holding.handler, wait)

    def _hold_back(self, handler: Handler | None, wait: float) -> None:
        """Its breaker has just opened: what waits here for the same handler waits elsewhere."""
        for holding in self._holdings.waiting():
            if holding.handler is handler:
                self._put_back([holding, *holding.behind], wait)

    def _set_debts_aside(self, now: float) -> None:
        """A release whose lease may be over would be refused, and the message stay charged."""
        for release in list(self._reports.releases):
            holding = self._holdings.get(release.id)
            if holding is not None and holding.until <= now:
                self._reports.discard(release)
                self._holdings.remove(release.id)
                self.leases.owed[release.id] = holding.message.token
        self.leases.settle_debts()

    def _try_suspect(self) -> None:
        """
        Run one suspect at a time, when the others are known to be given back.

        What runs beside a message that kills its process is charged as well. On its last attempt it
        must not be there: a suspect is held alone, so only the culprit uses up its attempts.
        """
        run = self._suspect
        if run is None or self._reports.releases:
            return
        if all(self._holdings.get(h.message.id) is not h for h in run):
            self._suspect, self._is_tried = None, False
        elif not self._is_tried:
            self._is_tried = True
            self._executors.put([run])

    def _room(self, now: float) -> int:
        """Say how many messages to ask for: enough for a moment, none that would only wait."""
        elapsed = now - self._measured
        if elapsed > 0.001:
            # Up at once, down slowly: a burst must not starve, a pause must not hoard.
            self._rate = max(self._finished / elapsed, self._rate * math.exp(-elapsed))
            self._measured, self._finished = now, 0
        unreported = len(self._holdings) - len(self._reports)
        room = min(self._wanted() - unreported, self.options.batch, self._holdings.ledger.room)
        if self.options.max_messages is not None:
            left = self.options.max_messages - self.tally.executed - len(self._holdings)
            room = min(room, left)
            if self.tally.executed >= self.options.max_messages:
                self._claiming = False
        return max(room, 0)

    def _wanted(self) -> int:
        ahead = math.ceil(self._rate * AHEAD)
        return min(self._executors.concurrency + ahead, 2 * self.options.batch)

    def _exchange(self, room: int) -> None:
        """Report and claim in one transaction; the report is kept until it is known to be in."""
        reports = self._reports
        asked = monotonic()
        token = secrets.token_hex(8)
        limits = self._handlers.limits()
        request = ClaimRequest(self._queues(), room, self.options.lease, limits, token)
        if room:
            # Known before the messages are: if this process dies now, they can be found.
            self._holdings.ledger.announce(token)
        try:
            batch = process_batch(
                worker=self.options.name,
                completions=reports.completions,
                failures=reports.failures,
                releases=reports.releases,
                claim=request if room else None,
                using=self.options.using,
            )
        except (DataError, IntegrityError) as error:
            if not reports:
                raise
            self._exchange_singly(error)
            return
        except DatabaseError:
            self._unsure |= reports.ids
            if room:
                self.leases.doubtful.add(token)
            raise
        self._reports = Reports()
        took = monotonic() - asked
        self._settled(reports, batch)
        if self.observer is not None:
            self.observer.exchanged(took, reports, batch, self.tally)
        if room:
            self._claimed(batch, asked)
            self._holdings.ledger.announce(None)
            # What failed in this transaction was not claimed by it, though it may be due already.
            found = len(batch.messages) + len(batch.dead)
            self._plan_next_look(found=found, room=room, is_all=not reports.failures)

    def _exchange_singly(self, error: DatabaseError) -> None:
        """One report cannot be stored: find it, and let neither the others nor the loop suffer."""
        event(logging.ERROR, "report_refused", "a report was refused: {error}", error=str(error))
        for report in self._reports.all():
            # A database that goes away meanwhile ends this, and the rest is reported later.
            if not self._settle_alone(report):
                plain = Failure(report.id, "its outcome could not be stored", token=report.token)
                if not self._settle_alone(plain):
                    # Nothing can be said of it: its lease runs out, and the claim judges it.
                    self._holdings.remove(report.id)
            self._reports.discard(report)

    def _settle_alone(self, report: Completion | Failure | Release) -> bool:
        alone = Reports()
        alone.add(report)
        try:
            batch = self._process(alone)
        except (DataError, IntegrityError):
            return False
        self._settled(alone, batch)
        return True

    def _process(self, alone: Reports) -> WorkBatch:
        return process_batch(
            worker=self.options.name,
            completions=alone.completions,
            failures=alone.failures,
            releases=alone.releases,
            using=self.options.using,
        )

    def _settled(self, reports: Reports, batch: WorkBatch) -> None:
        reports.count(batch, self.tally)
        if self.observer is not None:
            self.observer.handled(reports, self._holdings)
        lost = set(batch.lost)
        if unsure := lost & self._unsure:
            # The broken transaction had been committed: what is gone, or waits without a lease,
            # was settled by it.
            rows = Message.objects.using(self.options.using).filter(pk__in=unsure)
            leased = rows.filter(lease_token__isnull=False)
            done = unsure - set(leased.values_list("pk", flat=True))
            lost -= done
            self.tally.lost -= len(done)
            self.tally.completed += sum(item.id in done for item in reports.completions)
            self.tally.failed += sum(item.id in done for item in reports.failures)
            self.tally.released += sum(item.id in done for item in reports.releases)
        self._unsure.clear()
        for id in (*lost, *reports.overtaken):
            held = self._holdings.get(id)
            event(
                logging.WARNING,
                "lease_lost",
                "the lease of message {name} {message_id} was gone when its outcome was reported; "
                "whoever holds it now settles it",
                name=held.message.name if held else "",
                message_id=id,
            )
        settled = (item.id for item in reports.settled)
        for id in (*reports.ids, *settled, *reports.overtaken):
            self._holdings.remove(id)

    def _claimed(self, batch: WorkBatch, asked: float) -> None:
        ready: list[list[Holding]] = []
        for run in batch.runs():
            held = [
                self._holdings.add(message, since=asked, handler=self._handlers.get(message.name))
                for message in run
            ]
            wait = self._breakers.hold(*(h.handler for h in held))
            if wait is not None:
                self._put_back(held, wait)
            elif not any(h.is_suspect for h in held):
                ready.append(held)
            elif self._suspect is None:
                self._suspect = held
            else:
                self._put_back(held, SUSPECT_WAIT)
        self._executors.put(ready)
        self._executors.enough = max(1, len(batch.messages) // 2)

    def _put_back(self, run: Sequence[Holding], wait: float) -> None:
        """Not now: uncounted, and spread so that they do not return as one."""
        for holding in run:
            if not (holding.take() and holding.decide()):
                continue
            delay = wait * random.uniform(1.0, 1.2)  # noqa: S311 - spreads, hides no secret
            self._reports.add(Release(holding.message.id, delay, holding.message.token))

    def _plan_next_look(self, *, found: int, room: int, is_all: bool) -> None:
        now = monotonic()
        if found:
            self._last_sign = now
            self._pause = 0.0
        if found >= room:
            self._next_look = now
            return
        if not found and is_all and self.options.drain and not len(self._holdings):
            self._claiming = False
        limit = self.options.poll
        if now - self._last_sign < ALERT:
            limit = min(limit, 4 * SHORTEST_PAUSE)
        self._pause = min(max(self._pause * 2, SHORTEST_PAUSE), limit)
        self._next_look = now + self._pause

    def _give_back(self, now: float) -> None:
        """Stopping: what waits goes back now, what runs when the grace is over."""
        self._executors.give_back(self._holdings.waiting())
        if now >= self._stop_at:
            running = self._holdings.running()
            self.abandoned += len(running)
            self._executors.abandon(running)

    def _wait(self) -> None:
        """Sleep until something is due, or an executor, a sender or a signal says so."""
        if self.is_done:
            return
        now = monotonic()
        if self._outage:
            if self._claiming:
                self._stopped.wait(self._outage)
            else:
                sleep(min(self._outage, 0.2))
            return
        pause = INTERVAL if len(self._holdings) else self.options.poll
        if self._executors.outcomes:
            pause = FLUSH
        if self._claiming and len(self._holdings) < self._wanted():
            pause = min(pause, self._next_look - now)
        if pause > 0:
            self._woken.wait(pause)

    def _survive(self, error: Exception) -> None:
        """The database is away: keep what is to be reported and try again, later each time."""
        connections[self.options.using].close()
        first = not self._outage
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - spreads a fleet, hides no secret
        self._outage = min(max(self._outage * 2, 0.1), LONGEST_RETRY) * jitter
        event(
            logging.WARNING if first else logging.INFO,
            "database_away",
            "the database is away ({error}); trying again in {delay:.1f} s, holding {held}",
            error=str(error),
            delay=self._outage,
            held=len(self._holdings),
        )
