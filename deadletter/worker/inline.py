"""Run what is due in the caller's own thread: for tests, and inside their transactions."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from ..lifecycle import Claimed, ClaimRequest, Failure, Release, WorkBatch, process_batch
from .executor import Overtaken, execute
from .registry import Registry, registry
from .tally import Reports, Tally


def drain(
    *,
    name: str = "drain",
    queues: Sequence[str] | None = None,
    batch: int = 100,
    using: str | None = None,
    handlers: Registry = registry,
) -> Tally:
    """Claim, run in order, report, until nothing is due."""
    tally = Tally()
    reports = Reports()
    request = ClaimRequest(queues, batch, max_attempts=handlers.limits())
    while True:
        claimed = process_batch(
            worker=name,
            completions=reports.completions,
            failures=reports.failures,
            releases=reports.releases,
            claim=request,
            using=using,
        )
        reports.count(claimed, tally)
        if not claimed.messages and not claimed.poisoned and not reports:
            return tally
        reports = _handle(claimed, handlers, using)


def _handle(batch: WorkBatch, handlers: Registry, using: str | None) -> Reports:
    reports = Reports()
    nested = any(connection.in_atomic_block for connection in connections.all(True))
    for run in batch.runs():
        for place, message in enumerate(run, 1):
            report = execute(message, handlers, using=using, nested=nested)
            reports.add(report)
            if isinstance(report, Failure | Overtaken) or message.stage:
                reports.add_all(_given_back(run[place:]))
                break
    return reports


def _given_back(rest: Sequence[Claimed]) -> list[Release]:
    return [Release(message.id, 0, message.token) for message in rest]
