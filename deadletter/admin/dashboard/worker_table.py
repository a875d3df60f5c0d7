"""The live workers, and the message names that an open circuit breaker holds back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ...models import Breaker, WorkerProcess
from ...patterns import ServedQueues
from ..counts import Capped
from ..error_text import hidden_text
from .links import Links

#: Rows of workers and of breakers read; live workers and breakers listed.
READ, SHOWN = 200, 8


@dataclass(frozen=True)
class WorkerRow:
    name: str
    url: str
    queues: str
    running: int
    concurrency: int
    completed: int
    failed: int
    seen_at: datetime


@dataclass(frozen=True)
class BreakerRow:
    name: str
    url: str
    error: str
    failures: int
    opened_at: datetime
    #: When the next message is tried, or a hold ends; None if at once, or at a reset.
    until: datetime | None
    is_held: bool = False
    #: The person who holds the name, and why.
    by: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerTable:
    """Workers and breakers; fields the user may not see are None or empty."""

    alive: list[WorkerRow] | None = None
    #: Names of workers that disappeared without a shutdown, and when the last of them was seen.
    lost: list[str] = field(default_factory=list)
    lost_at: datetime | None = None
    served: ServedQueues = field(default_factory=lambda: ServedQueues(()))
    all_url: str = ""
    breakers: list[BreakerRow] | None = None
    breakers_url: str = ""

    @property
    def shown(self) -> list[WorkerRow]:
        return (self.alive or [])[:SHOWN]

    @property
    def more(self) -> int:
        return max(len(self.alive or []) - SHOWN, 0)

    @property
    def breakers_shown(self) -> list[BreakerRow]:
        return (self.breakers or [])[:SHOWN]

    @property
    def breakers_more(self) -> Capped:
        n = len(self.breakers or [])
        return Capped(max(min(n, READ) - SHOWN, 0), n > READ)


def read_worker_table(links: Links, now: datetime, using: str) -> WorkerTable | None:
    if not (links.workers or links.breakers):
        return None
    found: dict[str, Any] = {}
    if links.workers:
        found |= _workers(links, now, using)
    if links.breakers:
        rows = Breaker.objects.using(using).open(now).order_by("opened_at", "name")[: READ + 1]
        found["breakers"] = [_breaker(links, row, now) for row in rows]
        found["breakers_url"] = links.to(Breaker, "breaker_changelist")
    return WorkerTable(**found)


def _workers(links: Links, now: datetime, using: str) -> dict[str, Any]:
    rows = list(WorkerProcess.objects.using(using).order_by("-seen_at", "name")[:READ])
    alive = sorted((row for row in rows if row.is_alive(now)), key=lambda row: row.name)
    lost = [row for row in rows if not row.is_alive(now)]
    return {
        "alive": [_worker(links, row) for row in alive],
        "lost": [row.name for row in lost],
        "lost_at": max((row.seen_at for row in lost), default=None),
        "served": ServedQueues(row.queues for row in alive),
        "all_url": links.to(WorkerProcess, "workerprocess_changelist"),
    }


def _worker(links: Links, row: WorkerProcess) -> WorkerRow:
    return WorkerRow(
        row.name,
        links.to(WorkerProcess, "workerprocess_change", row.pk),
        ", ".join(_names(row)),
        len(row.running) if isinstance(row.running, list) else 0,
        row.concurrency,
        row.completed,
        row.failed,
        row.seen_at,
    )


def _breaker(links: Links, row: Breaker, now: datetime) -> BreakerRow:
    return BreakerRow(
        row.name,
        links.to(Breaker, "breaker_change", row.pk),
        row.error if links.texts else hidden_text(row.error),
        row.failures,
        row.opened_at,
        row.held_until if row.until > now else None,
        row.is_held,
        row.opened_by if row.is_held else "",
        row.why,
    )


def _names(row: WorkerProcess) -> list[str]:
    return [str(name) for name in row.queues] if isinstance(row.queues, list) else []
