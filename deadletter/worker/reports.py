"""
Reports: the outcomes that the next transaction reports, and what was done by the last one.

`Reports` and `Tally` are values; `testing.drain` uses them as well. `Reporter` collects outcomes
for the pump and applies the result of each transaction to the in-flight messages.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from time import monotonic

from ..lifecycle import Completion, Failure, Poisoned, Refused, Release, Staged, WorkBatch
from ..lifecycle.stages import unpublished
from ..logs import event, is_detailed
from ..models import Message
from ..status import FailureReason
from .breaker import Breakers
from .execute import Overtaken, Report, Settled
from .failure import log_deferral
from .in_flight import HandlerOutcomes, InFlight, InFlightMessage
from .observer import Observer
from .registry import Handler


@dataclass
class Tally:
    """Counts since the start. A message that became poison counts as `poisoned`, not `failed`."""

    completed: int = 0
    failed: int = 0
    poisoned: int = 0
    released: int = 0
    deferred: int = 0
    lost: int = 0
    #: Finished stages, not messages.
    staged: int = 0

    @property
    def executed(self) -> int:
        """Messages whose handler was called, or was to be called."""
        return self.completed + self.staged + self.failed + self.poisoned + self.deferred

    @property
    def total(self) -> int:
        return self.executed + self.released


@dataclass
class Reports:
    """The outcomes that one transaction reports."""

    completions: list[Completion] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    #: Settled by the transactions of their handlers: counted, not reported.
    settled: list[Settled] = field(default_factory=list)
    #: Ids of messages whose lease was lost before their handlers could commit.
    overtaken: list[int] = field(default_factory=list)

    def add(self, outcome: Completion | Failure | Release | Settled | Overtaken) -> None:
        if isinstance(outcome, Completion):
            self.completions.append(outcome)
        elif isinstance(outcome, Failure):
            self.failures.append(outcome)
        elif isinstance(outcome, Release):
            self.releases.append(outcome)
        elif isinstance(outcome, Settled):
            self.settled.append(outcome)
        else:
            self.overtaken.append(outcome.id)

    def add_all(self, outcomes: Iterable[Completion | Failure | Release]) -> None:
        for outcome in outcomes:
            self.add(outcome)

    def absorb(self, later: Reports) -> None:
        """Append reports that were collected while these were under way."""
        self.completions += later.completions
        self.failures += later.failures
        self.releases += later.releases
        self.settled += later.settled
        self.overtaken += later.overtaken

    def split(self, ids: Collection[int]) -> tuple[Reports, Reports]:
        """Return two parts: the reports of other messages, and the reports of these."""
        others = Reports(settled=self.settled, overtaken=self.overtaken)
        selected = Reports()
        for report in self.all():
            (selected if report.id in ids else others).add(report)
        return others, selected

    def discard(self, report: Completion | Failure | Release) -> None:
        for reports in (self.completions, self.failures, self.releases):
            if report in reports:
                reports.remove(report)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.completions or self.failures or self.releases)

    def __len__(self) -> int:
        """Return the number of messages that leave this process once this is reported."""
        reported = len(self.completions) + len(self.failures) + len(self.releases)
        return reported + len(self.settled) + len(self.overtaken)

    def all(self) -> list[Completion | Failure | Release]:
        return [*self.completions, *self.failures, *self.releases]

    @property
    def ids(self) -> set[int]:
        return {report.id for report in self.all()}

    def count(self, batch: WorkBatch, tally: Tally) -> None:
        """Add the result of the transaction to the tally."""
        for failure in self.failures:
            outcome = batch.outcomes.get(failure.id)
            if isinstance(outcome, Poisoned):
                tally.poisoned += 1
            elif outcome is not None and failure.deferred:
                tally.deferred += 1
                log_deferral(failure, outcome)
            elif outcome is not None:
                tally.failed += 1
        lost = set(batch.lost)
        tally.poisoned += len(batch.dead)
        tally.completed += len(self.completions) + len(self.settled)
        tally.released += len(self.releases)
        if lost:
            tally.completed -= sum(done.id in lost for done in self.completions)
            tally.released -= sum(release.id in lost for release in self.releases)
        outcomes = [batch.outcomes.get(item.id) for item in unpublished(self.completions)]
        staged = sum(isinstance(outcome, Staged) for outcome in outcomes)
        staged += sum(item.is_stage for item in self.settled)
        tally.staged += staged
        # These completions finished no message.
        tally.completed -= staged + sum(isinstance(outcome, Refused) for outcome in outcomes)
        tally.lost += len(lost) + len(self.overtaken)


class Reporter:
    """Called by the pump, in its thread. Only the pump's objects remove in-flight messages."""

    def __init__(
        self,
        *,
        using: str,
        in_flight: InFlight,
        outcomes: HandlerOutcomes,
        breakers: Breakers,
        tally: Tally,
        observer: Observer | None,
    ) -> None:
        #: What the next transaction reports; kept until that is known to be committed.
        self.pending = Reports()
        #: Messages handled since the intake last read this number.
        self.finished = 0
        self._using = using
        self._in_flight = in_flight
        self._outcomes = outcomes
        self._breakers = breakers
        self._tally = tally
        self._observer = observer
        #: Ids in a report whose transaction broke; it may have been committed nevertheless.
        self._unsure: set[int] = set()

    def collect(self) -> None:
        """Take over what the executors have finished."""
        ready = self._outcomes.ready
        for _ in range(len(ready)):
            for item, report in ready.popleft():
                if self._in_flight.dismiss(item):
                    # The lease was lost, and this very process has claimed the message again.
                    if not isinstance(report, Settled):
                        self._tally.lost += 1
                        log_lost(item.message.id, item)
                        self._breakers.cancel_probe(item.handler)
                        continue
                    # The handler's own transaction finished a stage: nothing was lost.
                    self._tally.staged += 1
                else:
                    self.pending.add(report)
                if not isinstance(report, Release):
                    self.finished += 1
                handler = item.handler
                if handler is not None and handler.circuit is not None:
                    self._tell_breakers(handler, report)

    def release(self, items: Iterable[InFlightMessage], *, after: float) -> None:
        """Release unstarted messages, uncounted; spread so that they do not return at once."""
        for item in items:
            if not (item.take() and item.decide()):
                continue
            delay = after * random.uniform(1.0, 1.2)  # noqa: S311 - spreads, hides no secret
            self.pending.add(Release(item.message.id, delay, item.message.token))

    def take(self) -> Reports:
        """Return what is to be reported; outcomes that come later are for the next report."""
        taken, self.pending = self.pending, Reports()
        return taken

    def restore(self, reports: Reports) -> None:
        """Put back reports that were not stored: they come first in the next attempt."""
        reports.absorb(self.pending)
        self.pending = reports

    def mark_unsure(self, reports: Reports) -> None:
        """Note that the transaction of these reports broke, before or after its commit."""
        self._unsure |= reports.ids

    @property
    def is_unsure(self) -> bool:
        """True if the database must be asked what became of reports."""
        return bool(self._unsure)

    def apply(self, reports: Reports, batch: WorkBatch) -> None:
        """Count reports that were stored, and remove their messages from those in flight."""
        reports.count(batch, self._tally)
        if unpublished(reports.completions) and (refused := set(batch.refused)):
            reports, without_stage = reports.split(refused)
            self._fail_refused(without_stage, batch)
        if self._observer is not None:
            self._observer.handled(reports, self._in_flight)
        lost = set(batch.lost)
        if unsure := lost & self._unsure:
            lost -= self._committed_before(unsure, reports)
        if self._unsure:
            # Only these: other reports whose transaction broke may still wait to be repeated.
            self._unsure -= reports.ids
        if is_detailed():
            self._log_completed(reports, lost)
        for id in (*lost, *reports.overtaken):
            log_lost(id, self._in_flight.get(id))
        gone: list[Report | Release] = [*reports.completions, *reports.failures]
        gone += [*reports.releases, *reports.settled]
        self._in_flight.remove(*[report.id for report in gone], *reports.overtaken)

    def _fail_refused(self, reports: Reports, batch: WorkBatch) -> None:
        """Fail attempts whose stage was refused; otherwise their messages would run for ever."""
        for completion in reports.completions:
            item = self._in_flight.get(completion.id)
            handler = None if item is None else item.handler
            self.pending.add(fail_refused(completion, batch, handler))

    def _committed_before(self, unsure: set[int], reports: Reports) -> set[int]:
        """
        Return the messages that the broken transaction had settled nevertheless, and count them.

        Their rows are gone, or have no lease. After the end of its lease another worker may have
        claimed and settled the message instead; that cannot be told apart, and is logged.
        """
        now = monotonic()
        rows = Message.objects.using(self._using).filter(pk__in=unsure, lease_token__isnull=False)
        done = unsure - set(rows.values_list("pk", flat=True))
        self._tally.lost -= len(done)
        stages = {completion.id for completion in unpublished(reports.completions)}
        self._tally.completed += sum(
            completion.id in done and completion.id not in stages
            for completion in reports.completions
        )
        self._tally.staged += len(done & stages)
        self._tally.failed += sum(failure.id in done for failure in reports.failures)
        self._tally.released += sum(release.id in done for release in reports.releases)
        for id in sorted(done):
            item = self._in_flight.get(id)
            if item is not None and item.until <= now:
                _log_unsure(item)
        return done

    def _log_completed(self, reports: Reports, lost: set[int]) -> None:
        completed = {done.id: done.seconds for done in reports.completions if done.id not in lost}
        settled = {done.id: done.seconds for done in reports.settled}
        for id, seconds in (completed | settled).items():
            item = self._in_flight.get(id)
            if item is None:
                continue
            event(
                logging.DEBUG,
                "message_completed",
                "completed message {name} {message_id} of queue {queue}, attempt {attempt}, in "
                "{seconds:.3f} s",
                name=item.message.name,
                message_id=id,
                queue=item.message.queue,
                stream=item.message.stream,
                attempt=item.message.attempt,
                seconds=seconds or 0.0,
            )

    def _tell_breakers(self, handler: Handler, report: Report | Release) -> None:
        if isinstance(report, Release):
            self._breakers.cancel_probe(handler)
        elif not isinstance(report, Failure):
            self._breakers.report(handler, failed=False)
        elif report.deferred:
            # The handler was never called: the deferral says nothing about it.
            self._breakers.cancel_probe(handler)
        else:
            wait = self._breakers.report(handler, failed=True, error=str(report.error))
            if wait is not None:
                self._release_waiting(handler, wait)

    def _release_waiting(self, handler: Handler, wait: float) -> None:
        """Release what waits here for a handler whose breaker has just opened."""
        for item in self._in_flight.waiting():
            if item.handler is handler:
                self.release([item, *item.behind], after=wait)


def fail_refused(item: Completion, batch: WorkBatch, handler: Handler | None) -> Failure:
    """Return the failure of an attempt whose stage was refused, and log it."""
    outcome = batch.outcomes[item.id]
    why = outcome.why if isinstance(outcome, Refused) else ""
    event(
        logging.ERROR,
        "stage_refused",
        "the stage that the handler of message {name} {message_id} asked for is refused, "
        "and its attempt failed: {error}",
        name=item.message.name if item.message else "",
        message_id=item.id,
        error=why,
    )
    return Failure(
        item.id,
        error=f"its next stage was refused: {why}",
        reason=FailureReason.HANDLER_EXCEPTION,
        seconds=item.seconds,
        token=item.token,
        message=item.message,
        policy=None if handler is None else handler.policy,
    )


def log_lost(id: int, item: InFlightMessage | None) -> None:
    event(
        logging.WARNING,
        "lease_lost",
        "the lease of message {name} {message_id} was gone when its outcome was reported; "
        "the worker that holds it now settles it",
        name=item.message.name if item else "",
        message_id=id,
    )


def _log_unsure(item: InFlightMessage) -> None:
    event(
        logging.WARNING,
        "report_unsure",
        "the report of message {name} {message_id} broke off, and its lease was over when it was "
        "repeated: settled by that report, or by another worker that ran it again",
        name=item.message.name,
        message_id=item.message.id,
    )
