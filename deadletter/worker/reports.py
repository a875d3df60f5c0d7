"""What became of the messages held? Gathered for the next report, and taken off the books after."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from time import monotonic

from ..lifecycle import Failure, Release, WorkBatch
from ..logs import event, is_detailed
from ..models import Message
from .breaker import Breakers
from .busy_reports import Backlog
from .execute import Report, Settled
from .executors import Executors
from .in_flight import Holding, Holdings
from .leases import Leases
from .observer import Observer
from .registry import Handler
from .tally import Reports, Tally, fail_refused


class Reporting:
    """Called by the pump, in its thread. It alone takes messages off the books."""

    def __init__(
        self,
        *,
        using: str,
        holdings: Holdings,
        executors: Executors,
        breakers: Breakers,
        leases: Leases,
        backlog: Backlog,
        tally: Tally,
    ) -> None:
        #: What was reported, and somebody was in the way.
        self.backlog = backlog
        #: What the next transaction will report; kept until it is known to be in.
        self.reports = Reports()
        #: Messages handled since somebody last looked at this number.
        self.finished = 0
        self.observer: Observer | None = None
        self._using = using
        self._holdings = holdings
        self._executors = executors
        self._breakers = breakers
        self._leases = leases
        self._tally = tally
        #: Ids in a report whose transaction broke: it may have been committed all the same.
        self._unsure: set[int] = set()

    def collect(self) -> None:
        """Take over what the executors have finished."""
        outcomes = self._executors.outcomes
        for _ in range(len(outcomes)):
            for holding, report in outcomes.popleft():
                if self._holdings.dismiss(holding):
                    # This very process claimed the message anew.
                    if not isinstance(report, Settled):
                        self._tally.lost += 1
                        _say_lost(holding.message.id, holding)
                        self._breakers.cancel_probe(holding.handler)
                        continue
                    # The handler committed a stage by itself: nothing was lost.
                    self._tally.staged += 1
                else:
                    self.reports.add(report)
                if not isinstance(report, Release):
                    self.finished += 1
                handler = holding.handler
                if handler is not None and handler.circuit is not None:
                    self._tell_breakers(handler, report)

    def put_back(self, run: Sequence[Holding], wait: float) -> None:
        """Not now: uncounted, and spread so that they do not return as one."""
        for holding in run:
            if not (holding.take() and holding.decide()):
                continue
            delay = wait * random.uniform(1.0, 1.2)  # noqa: S311 - spreads, hides no secret
            self.reports.add(Release(holding.message.id, delay, holding.message.token))

    def set_debts_aside(self, now: float) -> None:
        """A release whose lease may be over would be refused, and the message stay charged."""
        for release in list(self.reports.releases):
            holding = self._holdings.get(release.id)
            if holding is not None and holding.until <= now:
                self.reports.discard(release)
                self._holdings.remove(release.id)
                self._leases.owed[release.id] = holding.message.token
        for release in list(self.backlog.reports.releases):
            holding = self._holdings.get(release.id)
            if holding is not None and holding.until <= now:
                self.backlog.discard(release.id)
                self._holdings.remove(release.id)
                self._leases.owed[release.id] = holding.message.token
        self._leases.settle_debts(now)

    def take(self) -> Reports:
        """Hand over what is to be reported; what comes now is for the report after it."""
        taken, self.reports = self.reports, Reports()
        return self.backlog.divert(taken) if self.backlog else taken

    def restore(self, reports: Reports) -> None:
        """These could not be reported: they come first in the next try."""
        reports.absorb(self.reports)
        self.reports = reports

    def is_unsure(self, reports: Reports) -> None:
        """The transaction of these reports broke, nobody knows on which side of its commit."""
        self._unsure |= reports.ids

    @property
    def has_doubts(self) -> bool:
        """Whether the database must be asked what became of reports."""
        return bool(self._unsure)

    def settled(self, reports: Reports, batch: WorkBatch) -> None:
        """These reports are in: count them, and let go of their messages; not of what was busy."""
        busy = set(batch.busy)
        if busy:
            reports, held_up = reports.split(busy)
            self.backlog.add(held_up, monotonic())
        reports.count(batch, self._tally)
        if reports.stages and (refused := set(batch.refused)):
            reports, without_stage = reports.split(refused)
            self._fail_refused(without_stage, batch)
        if self.observer is not None:
            self.observer.handled(reports, self._holdings)
        lost = set(batch.lost)
        if unsure := lost & self._unsure:
            lost -= self._settled_before(unsure, reports)
        if self._unsure:
            # Of these alone: others whose transaction broke may still wait for their turn.
            self._unsure -= reports.ids
        if is_detailed():
            self._say_completed(reports, lost)
        for id in (*lost, *reports.overtaken):
            _say_lost(id, self._holdings.get(id))
        self._holdings.remove(*reports.all_ids())

    def _fail_refused(self, reports: Reports, batch: WorkBatch) -> None:
        """A stage that cannot be is a failure of its attempt, or the message would run for ever."""
        for item in reports.completions:
            held = self._holdings.get(item.id)
            self.reports.add(fail_refused(item, batch, None if held is None else held.handler))

    def forget_claimed_anew(self, batch: WorkBatch) -> None:
        """What waited here lost its lease, and this very process has claimed the message again."""
        if not self.backlog:
            return
        for id in self.backlog.ids.intersection(batch.ids):
            _say_lost(id, self._holdings.get(id))
            self.backlog.discard(id)
            self._holdings.remove(id)
            self._tally.lost += 1

    def _settled_before(self, unsure: set[int], reports: Reports) -> set[int]:
        """
        Find what the broken transaction had committed all the same, and count it.

        That is what is gone, or waits without a lease. Once the lease was over, somebody else may
        have claimed and settled it instead, and nobody can tell: then it is said.
        """
        now = monotonic()
        rows = Message.objects.using(self._using).filter(pk__in=unsure, lease_token__isnull=False)
        done = unsure - set(rows.values_list("pk", flat=True))
        self._tally.lost -= len(done)
        stages = {item.id for item in reports.stages}
        self._tally.completed += sum(
            item.id in done and item.id not in stages for item in reports.completions
        )
        self._tally.staged += len(done & stages)
        self._tally.failed += sum(item.id in done for item in reports.failures)
        self._tally.released += sum(item.id in done for item in reports.releases)
        for id in sorted(done):
            held = self._holdings.get(id)
            if held is not None and held.until <= now:
                _say_unsure(held)
        return done

    def _say_completed(self, reports: Reports, lost: set[int]) -> None:
        completed = {done.id: done.seconds for done in reports.completions if done.id not in lost}
        settled = {done.id: done.seconds for done in reports.settled}
        for id, seconds in (completed | settled).items():
            held = self._holdings.get(id)
            if held is None:
                continue
            event(
                logging.DEBUG,
                "message_completed",
                "completed message {name} {message_id} of queue {queue}, attempt {attempt}, in "
                "{seconds:.3f} s",
                name=held.message.name,
                message_id=id,
                queue=held.message.queue,
                stream=held.message.stream,
                attempt=held.message.attempt,
                seconds=seconds or 0.0,
            )

    def _tell_breakers(self, handler: Handler, report: Report | Release) -> None:
        if isinstance(report, Release):
            self._breakers.cancel_probe(handler)
        elif not isinstance(report, Failure):
            self._breakers.report(handler, failed=False)
        elif report.deferred:
            # Its handler was never called: this says nothing about it.
            self._breakers.cancel_probe(handler)
        else:
            wait = self._breakers.report(handler, failed=True, error=str(report.error))
            if wait is not None:
                self._hold_back(handler, wait)

    def _hold_back(self, handler: Handler, wait: float) -> None:
        """Its breaker has just opened: what waits here for the same handler waits elsewhere."""
        for holding in self._holdings.waiting():
            if holding.handler is handler:
                self.put_back([holding, *holding.behind], wait)


def _say_lost(id: int, held: Holding | None) -> None:
    event(
        logging.WARNING,
        "lease_lost",
        "the lease of message {name} {message_id} was gone when its outcome was reported; "
        "whoever holds it now settles it",
        name=held.message.name if held else "",
        message_id=id,
    )


def _say_unsure(held: Holding) -> None:
    event(
        logging.WARNING,
        "report_unsure",
        "the report of message {name} {message_id} broke off, and its lease was over when it was "
        "repeated: settled by that report, or by somebody else who ran it again",
        name=held.message.name,
        message_id=held.message.id,
    )
