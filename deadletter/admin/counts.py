"""How many messages are there in each state? Counted up to a limit, so it costs the same always."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.formats import number_format

from ..lifecycle.levels import priorities, read_levels
from ..models import Message, PoisonRecord, Queue, State
from ..operations.depths import FailedLook, waiting_depths
from ..sql.planner import by_index

#: Rows counted per state: of each queue in a list of queues, and of the one queue on a page.
IN_A_LIST, ON_A_PAGE = 1_000, 10_000


@dataclass(frozen=True)
class Capped:
    """A number that may be larger than what was counted; "?" when none was found so far."""

    n: int
    more: bool = False

    def __str__(self) -> str:
        if self.more and not self.n:
            return "?"
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
        return _count_states(queue, named, now, limit, FailedLook(now, using))


def attach_counts(queues: Iterable[Queue], *, now: datetime, limit: int, using: str) -> None:
    with by_index(using):
        named = priorities(read_levels(using))
        failed = FailedLook(now, using)
        for queue in queues:
            counts = _count_states(queue, named.get(queue.name, []), now, limit, failed)
            queue.counts = counts  # type: ignore[attr-defined]


def _count_states(
    queue: Queue, named: list[int], now: datetime, limit: int, failed: FailedLook
) -> dict[str, Capped]:
    using = failed.using
    rows = Message.objects.using(using).filter(queue=queue)
    # With these an index probe per priority finds what is due, however much else there is.
    awake = rows.filter(priority__in=named)
    return {
        State.PENDING: capped(awake.filter(available_at__lte=now), limit),
        **waiting_counts(awake.filter(available_at__gt=now), queue.pk, failed, limit),
        State.BLOCKED: capped(rows.filter(available_at=None), limit),
        State.DEAD: capped(PoisonRecord.objects.using(using).filter(queue=queue.name), limit),
    }


def waiting_counts(waiting: Any, queue_id: int, failed: FailedLook, limit: int) -> dict[Any, Any]:
    """Count each state of what waits up to the limit, by itself."""
    found = waiting_depths(waiting, queue_id, failed, first=limit)
    return {
        state: Capped(min(depth.n, limit), depth.more or depth.n > limit)
        for state, depth in found.items()
    }
