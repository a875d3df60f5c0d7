"""Run what is due in the caller's own thread: for tests, and inside their transactions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ..lifecycle import Claimed, ClaimRequest, Failure, Release, WorkBatch, process_batch
from .caller import Caller
from .execute import Overtaken, Report, execute
from .registry import Registry, registry
from .tally import Reports, Tally, fail_refused


def drain(
    *,
    name: str = "drain",
    queues: Sequence[str] | None = None,
    batch: int = 100,
    using: str | None = None,
    handlers: Registry = registry,
    raise_errors: bool = False,
) -> Tally:
    """
    Claim, run in order, report, until nothing is due.

    With `raise_errors`, up to the first handler that raises: its failure is settled, what was
    claimed behind it is given back, and what it raised is raised here.
    """
    tally = Tally()
    reports = Reports()
    ending: BaseException | None = None
    request = ClaimRequest(queues, batch, policies=handlers.policies(), knows=handlers.knows)
    while True:
        claimed = process_batch(
            worker=name,
            completions=reports.completions,
            failures=reports.failures,
            releases=reports.releases,
            claim=None if ending else request,
            using=using,
        )
        reports.count(claimed, tally)
        done = reports.completions
        if ending is not None:
            raise ending
        if not claimed.messages and not claimed.poisoned and not reports:
            return tally
        refused, reports = set(claimed.refused), Reports()
        for item in done:
            if item.id in refused:
                handler = handlers.get(item.message.name) if item.message else None
                reports.add(fail_refused(item, claimed, handler))
        ending = _handle(claimed, handlers, using, reports, raise_errors=raise_errors)


def _handle(
    batch: WorkBatch,
    handlers: Registry,
    using: str | None,
    reports: Reports,
    *,
    raise_errors: bool,
) -> BaseException | None:
    """Run a batch; return what ends the drain. Then the rest of the batch is given back."""
    runs = list(batch.runs())
    for number, run in enumerate(runs, 1):
        for place, message in enumerate(run):
            try:
                report = _execute(message, handlers, using)
            except KeyboardInterrupt as interrupt:
                reports.add_all(_given_back([*run[place:], *chain(*runs[number:])]))
                return interrupt
            reports.add(report)
            if isinstance(report, Failure | Overtaken) or message.stage:
                reports.add_all(_given_back(run[place + 1 :]))
                if raise_errors and isinstance(report, Failure) and report.raised is not None:
                    reports.add_all(_given_back([*chain(*runs[number:])]))
                    return report.raised
                break
    return None


def _execute(message: Claimed, handlers: Registry, using: str | None) -> Report:
    caller = Caller()
    with caller.autocommit():
        return execute(message, handlers, using=using, caller=caller)


def _given_back(rest: Sequence[Claimed]) -> list[Release]:
    return [Release(message.id, 0, message.token) for message in rest]
