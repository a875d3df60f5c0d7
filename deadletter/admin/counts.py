"""How many messages are there in each state? Counted up to a limit, so it costs the same always."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q
from django.utils.formats import number_format

from ..lifecycle.levels import priorities, read_levels
from ..models import Message, PoisonRecord, Queue, State
from ..operations.bounded import by_index
from ..status import Status

#: Rows counted per state: of each queue in a list of queues, and of the one queue on a page.
IN_A_LIST, ON_A_PAGE = 1_000, 10_000


@dataclass(frozen=True)
class Capped:
    """A number that may be larger than what was counted."""

    n: int
    more: bool = False

    def __str__(self) -> str:
        shown = number_format(self.n, use_l10n=True, force_grouping=True)
        return f"{shown}+" if self.more else shown

    def __bool__(self) -> bool:
        return self.more or self.n > 0


def capped(rows: Any, limit: int) -> Capped:
    found = int(rows.order_by()[: limit + 1].count())
    return Capped(min(found, limit), found > limit)


def count_states(queue: Queue, *, now: datetime, limit: int, using: str) -> dict[str, Capped]:
    """Count the messages of one queue by state, and its poison."""
    with by_index(using):
        named = priorities(read_levels(using)).get(queue.name, [])
        return _count_states(queue, named, now, limit, using)


def attach_counts(queues: Iterable[Queue], *, now: datetime, limit: int, using: str) -> None:
    with by_index(using):
        named = priorities(read_levels(using))
        for queue in queues:
            counts = _count_states(queue, named.get(queue.name, []), now, limit, using)
            queue.counts = counts  # type: ignore[attr-defined]


def _count_states(
    queue: Queue, named: list[int], now: datetime, limit: int, using: str
) -> dict[str, Capped]:
    rows = Message.objects.using(using).filter(queue=queue)
    # With these an index probe per priority finds what is due, however much else there is.
    awake = rows.filter(priority__in=named)
    return {
        State.PENDING: capped(awake.filter(available_at__lte=now), limit),
        **_waiting(awake.filter(available_at__gt=now), limit),
        State.BLOCKED: capped(rows.filter(available_at=None), limit),
        State.DEAD: capped(PoisonRecord.objects.using(using).filter(queue=queue.name), limit),
    }


def _waiting(rows: Any, limit: int) -> dict[str, Capped]:
    """Tell apart the first that wait: no index knows which of them failed or run."""
    leased, failed = Q(lease_token__isnull=False), Q(status__gte=int(Status.FAILED))
    found = rows.order_by()[: limit + 1].aggregate(
        every=Count("pk"),
        active=Count("pk", filter=leased),
        failed=Count("pk", filter=~leased & failed),
    )
    more = found["every"] > limit
    rest = found["every"] - found["active"] - found["failed"]
    return {
        State.SCHEDULED: Capped(min(rest, limit), more),
        State.FAILED: Capped(min(found["failed"], limit), more),
        State.ACTIVE: Capped(min(found["active"], limit), more),
    }
