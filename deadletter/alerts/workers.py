"""Has a worker gone without a word, is a message name held back?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from ..lifecycle.internal_queue import PREFIX
from ..models import Alert, Breaker, WorkerProcess
from ..text import storable_text
from .conditions import MOST, SAMPLE, Look, Observation

#: How long after its time was over a breaker counts as closed, if it was not opened again.
CLOSED_AFTER = timedelta(minutes=5)


def lost_workers(look: Look) -> Iterator[Observation]:
    """Find workers that were not seen for too long. One that ends properly removes its row."""
    kind = Alert.Rule.WORKER_LOST.value
    for rule in look.policy.of_kind(kind):
        rows = WorkerProcess.objects.using(look.using).filter(seen_at__lt=look.now - rule.after)
        for worker in rows.order_by("name")[:MOST]:
            held = worker.running if isinstance(worker.running, list) else []
            yield Observation(
                rule=kind,
                subject=worker.name,
                since=worker.seen_at,
                last_at=look.now,
                count=worker.held,
                detail={
                    "name": worker.name,
                    "host": worker.host,
                    "running": [
                        storable_text(run.get("name", ""), limit=200)
                        for run in held[:5]
                        if isinstance(run, dict)
                    ],
                },
            )


def open_breakers(look: Look) -> Iterator[Observation]:
    """Find message names that are held back because their handler keeps failing."""
    kind = Alert.Rule.BREAKER_OPENED.value
    if not look.policy.of_kind(kind):
        return
    # A handler that goes on failing is tried and held again: one alert, not one for each time.
    open = Breaker.objects.using(look.using).open(look.now - CLOSED_AFTER)
    rows = open.exclude(name__startswith=PREFIX)
    for breaker in rows.order_by("name")[:MOST]:
        yield Observation(
            rule=kind,
            subject=breaker.name,
            since=breaker.opened_at,
            last_at=look.now,
            count=breaker.failures,
            detail={"name": breaker.name},
            error=storable_text(breaker.error, limit=SAMPLE),
        )
