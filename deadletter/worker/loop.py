"""The thinnest honest worker: claim, run in order, report, claim again."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

from ..durations import Duration
from ..lifecycle import (
    Claimed,
    ClaimRequest,
    Completion,
    Failure,
    Release,
    Scheduled,
    WorkBatch,
    process_batch,
)
from .executor import Rest, execute_run
from .registry import Registry, registry

logger = logging.getLogger("deadletter")


@dataclass
class Tally:
    """What became of the messages handled so far."""

    completed: int = 0
    failed: int = 0
    poisoned: int = 0
    released: int = 0
    deferred: int = 0

    @property
    def total(self) -> int:
        return self.completed + self.failed + self.poisoned + self.released + self.deferred


@dataclass
class Report:
    """Outcomes waiting to be reported."""

    completions: list[Completion] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)

    def give_back(self, messages: Sequence[Claimed]) -> None:
        self.releases += [Release(message.id, 0, message.token) for message in messages]


class Worker:
    """Claims from `queues` and runs what it gets, one run after the other, in this thread."""

    def __init__(
        self,
        *,
        name: str,
        queues: Sequence[str] | None = None,
        batch: int = 100,
        lease: Duration | None = None,
        poll: float = 1.0,
        using: str | None = None,
        handlers: Registry = registry,
    ) -> None:
        self.name = name
        self.request = ClaimRequest(queues, batch, lease)
        self.poll = poll
        self.using = using
        self.handlers = handlers
        self.tally = Tally()
        self.stopping = threading.Event()

    def run(self, *, drain: bool = False) -> Tally:
        """Work until told to stop or, draining, until nothing is due."""
        report = Report()
        while True:
            batch = self.step(report, claim=not self.stopping.is_set())
            report = self.handle(batch)
            if batch.messages or batch.poisoned:
                continue
            if self.stopping.is_set() or drain:
                return self.tally
            self.stopping.wait(self.poll)

    def step(self, report: Report, *, claim: bool = True) -> WorkBatch:
        """Report what was done and claim more, in one transaction."""
        batch = process_batch(
            worker=self.name,
            completions=report.completions,
            failures=report.failures,
            releases=report.releases,
            claim=self.request if claim else None,
            using=self.using,
        )
        self._count(report, batch)
        return batch

    def handle(self, batch: WorkBatch) -> Report:
        """Run a batch; what is not started when the worker stops is given back uncounted."""
        report = Report()
        for run in batch.runs():
            if self.stopping.is_set():
                report.give_back(run)
                continue
            for outcome in execute_run(run, self.handlers):
                if isinstance(outcome, Rest):
                    report.give_back(outcome.messages)
                elif isinstance(outcome, Failure):
                    report.failures.append(outcome)
                else:
                    report.completions.append(outcome)
        return report

    def stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        self.stopping.set()

    def stop_on_signals(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self.stop)

    def _count(self, report: Report, batch: WorkBatch) -> None:
        deferred = {failure.id for failure in report.failures if failure.deferred}
        for id, outcome in batch.outcomes.items():
            if isinstance(outcome, Scheduled):
                if id in deferred:
                    self.tally.deferred += 1
                else:
                    self.tally.failed += 1
        self.tally.poisoned += len(batch.poisoned)
        self.tally.completed += sum(item.id in batch.outcomes for item in report.completions)
        self.tally.released += sum(item.id in batch.outcomes for item in report.releases)
        if batch.lost:
            logger.warning(
                "lost the lease of %s before it could be reported; whoever holds them now will "
                "settle them",
                batch.lost[:20],
            )
