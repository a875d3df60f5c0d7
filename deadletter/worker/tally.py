"""What became of the messages handled so far, and what is waiting to be reported?"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..lifecycle import Completion, Failure, Poisoned, Refused, Release, Staged, WorkBatch
from ..lifecycle.stages import unpublished
from ..logs import event
from ..status import FailureReason
from .deferring import say_deferred
from .execute import Overtaken, Settled
from .registry import Handler


@dataclass
class Tally:
    """Counts since the start. What died is `poisoned`, and not `failed` as well."""

    completed: int = 0
    failed: int = 0
    poisoned: int = 0
    released: int = 0
    deferred: int = 0
    lost: int = 0
    #: Stages finished; their messages are not.
    staged: int = 0

    @property
    def executed(self) -> int:
        """Messages that were handed to a handler, or should have been."""
        return self.completed + self.staged + self.failed + self.poisoned + self.deferred

    @property
    def total(self) -> int:
        return self.executed + self.released


@dataclass
class Reports:
    """Outcomes on their way into the next transaction."""

    completions: list[Completion] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    #: Settled by their own handlers' transactions: counted, not reported.
    settled: list[Settled] = field(default_factory=list)
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
        """Take over what was gathered while this was under way."""
        self.completions += later.completions
        self.failures += later.failures
        self.releases += later.releases
        self.settled += later.settled
        self.overtaken += later.overtaken

    def split(self, ids: Collection[int]) -> tuple[Reports, Reports]:
        """Return the reports of other messages, and those of these."""
        others = Reports(settled=self.settled, overtaken=self.overtaken)
        these = Reports()
        for report in self.all():
            (these if report.id in ids else others).add(report)
        return others, these

    def discard(self, report: Completion | Failure | Release) -> None:
        for reports in (self.completions, self.failures, self.releases):
            if report in reports:
                reports.remove(report)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.completions or self.failures or self.releases)

    def __len__(self) -> int:
        """How many messages are done with once this is reported."""
        reported = len(self.completions) + len(self.failures) + len(self.releases)
        return reported + len(self.settled) + len(self.overtaken)

    def all(self) -> list[Completion | Failure | Release]:
        return [*self.completions, *self.failures, *self.releases]

    @property
    def ids(self) -> set[int]:
        return {report.id for report in self.all()}

    def all_ids(self) -> Iterator[int]:
        """Yield the ids of all messages that are done with once this is reported."""
        for reports in (self.completions, self.failures, self.releases, self.settled):
            yield from [report.id for report in reports]
        yield from self.overtaken

    def count(self, batch: WorkBatch, tally: Tally) -> None:
        """Add to the tally what the transaction really did."""
        for failure in self.failures:
            outcome = batch.outcomes.get(failure.id)
            if isinstance(outcome, Poisoned):
                tally.poisoned += 1
            elif outcome is not None and failure.deferred:
                tally.deferred += 1
                say_deferred(failure, outcome)
            elif outcome is not None:
                tally.failed += 1
        lost = set(batch.lost)
        tally.poisoned += len(batch.dead)
        tally.completed += _kept(self.completions, lost) + len(self.settled)
        tally.completed -= self._count_stages(batch, tally)
        tally.released += _kept(self.releases, lost)
        tally.lost += len(lost) + len(self.overtaken)

    @property
    def stages(self) -> list[Completion]:
        """Completions that do not simply end their messages."""
        return unpublished(self.completions)

    def _count_stages(self, batch: WorkBatch, tally: Tally) -> int:
        """Count finished stages; return how many of the completions finished no message."""
        outcomes = [batch.outcomes.get(item.id) for item in self.stages]
        staged = sum(isinstance(outcome, Staged) for outcome in outcomes)
        refused = sum(isinstance(outcome, Refused) for outcome in outcomes)
        settled = sum(item.is_stage for item in self.settled)
        tally.staged += staged + settled
        return staged + settled + refused


def _kept(reports: Sequence[Completion | Release], lost: set[int]) -> int:
    """Count the reports that were not refused."""
    if not lost:
        return len(reports)
    return sum(report.id not in lost for report in reports)


def fail_refused(item: Completion, batch: WorkBatch, handler: Handler | None) -> Failure:
    """Make a failure of an attempt whose stage was refused, and say so in the log."""
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
