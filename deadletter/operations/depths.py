"""
Messages per state and queue, counted up to a limit.

The cost is a bounded number of index entries for each queue, however long it is. The admin, the
dashboard and the metrics count with the functions of this module; `exact_counts`, for statistics,
reads every row.

Scheduled, failed and active messages all wait for a time, and no index knows which of them failed
or run. So the first LOOK waiting messages of a queue are read and classified; the messages due
soonest, which include the leases, come first. Failed messages have an index of their own, over all
queues: its first LOOK entries are read too. A number is exact unless both reads ended before the
rows did, and each state is judged by itself: a thousand scheduled messages do not make the number
of failed ones uncertain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import (
    Case,
    Count,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.utils.formats import number_format

from ..lifecycle import Level
from ..lifecycle.levels import priorities, read_levels
from ..models import Message, PoisonRecord, Queue, State
from ..sql.planner import by_index
from ..status import Status

#: Rows that one read classifies.
LOOK = 10_000

#: The bit of `Status.FAILED`, for `alias(bit=FAILED_BIT)`.
FAILED_BIT = F("status").bitand(int(Status.FAILED))
#: What a waiting message does, inside the statement of `annotate_counts`.
_SCHEDULED, _ACTIVE, _FAILED = range(3)


@dataclass(frozen=True)
class Capped:
    """A number that may be larger than what was counted; "?" if nothing was found so far."""

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
    """Count rows up to a limit."""
    return at_most(int(rows.order_by()[: limit + 1].count()), limit)


def at_most(n: int, limit: int) -> Capped:
    """Return a number of which at most `limit` + 1 were counted."""
    return Capped(min(n, limit), n > limit)


class CountUpTo(Subquery):
    """
    The number of rows of a correlated subquery, at most `limit` + 1 of them.

    `where` narrows what is counted, not what is read: `CountUpTo(rows.values("doing"), 1000,
    doing=2)` reads 1,001 rows and counts those with doing = 2.
    """

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted%(where)s)"
    output_field = IntegerField()

    def __init__(self, rows: QuerySet[Any, Any], limit: int, **where: int) -> None:
        tests = " AND ".join(f'counted."{name}" = {int(value)}' for name, value in where.items())
        super().__init__(
            rows.order_by()[: limit + 1],
            output_field=IntegerField(),
            where=f" WHERE {tests}" if tests else "",
        )


class FailedLook:
    """The first failed messages of all queues, by queue; read once, when first needed."""

    def __init__(self, now: datetime, using: str) -> None:
        self.now = now
        self.using = using

    def of(self, queue_id: int) -> Capped:
        counts, more = self._found
        return Capped(counts[queue_id], more)

    @cached_property
    def _found(self) -> tuple[Counter[int], bool]:
        failed = Message.objects.using(self.using).filter(status__gte=int(Status.FAILED))
        waits = Case(
            When(available_at__gt=self.now, lease_token=None, then=Value(1)), default=Value(0)
        )
        rows = list(failed.order_by("pk").values_list("queue_id", waits)[: LOOK + 1])
        return Counter(queue for queue, does in rows if does), len(rows) > LOOK


def count_states(queue: Queue, *, now: datetime, limit: int, using: str) -> dict[str, Capped]:
    """Count the messages of one queue by state, and its poison, each up to a limit."""
    with by_index(using):
        named = priorities(read_levels(using)).get(queue.name, [])
        return count_queue(queue, named, FailedLook(now, using), limit)


def attach_counts(queues: Iterable[Queue], *, now: datetime, limit: int, using: str) -> None:
    """Give each queue its `counts`, as `count_states` returns them."""
    with by_index(using):
        named = priorities(read_levels(using))
        failed = FailedLook(now, using)
        for queue in queues:
            counts = count_queue(queue, named.get(queue.name, []), failed, limit)
            queue.counts = counts  # type: ignore[attr-defined]


def count_queue(
    queue: Queue, named: Sequence[int], failed: FailedLook, limit: int
) -> dict[str, Capped]:
    """
    Count one queue by state as of `failed.now`; the caller keeps the planner on the indexes.

    `named` are the priorities that exist in the queue. With them one index probe per priority finds
    the due messages, whatever else there is.
    """
    rows = Message.objects.using(failed.using).filter(queue=queue)
    awake = rows.filter(priority__in=named)
    poison = PoisonRecord.objects.using(failed.using).filter(queue=queue.name)
    return {
        State.PENDING: capped(awake.filter(available_at__lte=failed.now), limit),
        **_waiting(awake.filter(available_at__gt=failed.now), queue.pk, failed, limit),
        State.BLOCKED: capped(rows.filter(available_at=None), limit),
        State.DEAD: capped(poison, limit),
    }


def annotate_counts(
    queues: Any,
    levels: Iterable[Level],
    *,
    now: datetime,
    limit: int,
    using: str,
    messages: bool = True,
    poison: bool = True,
) -> Any:
    """
    Count all queues in one statement; `attach_annotated` turns the numbers into `counts`.

    `messages` and `poison`: count the one or the other. `levels` has the priorities that exist.
    """
    if messages:
        rows = Message.objects.using(using).filter(queue=OuterRef("pk"))
        # The statement is the same for all queues, so it names the priorities of all of them.
        named = sorted({level.priority for level in levels})
        awake = rows.filter(priority__in=named or [0])
        waiting = awake.filter(available_at__gt=now).values(
            doing=Case(
                When(lease_token__isnull=False, then=_ACTIVE),
                When(status__gte=int(Status.FAILED), then=_FAILED),
                default=_SCHEDULED,
            )
        )
        queues = queues.annotate(
            n_pending=CountUpTo(awake.filter(available_at__lte=now).values("pk"), limit),
            n_waiting=CountUpTo(waiting, limit),
            n_failed=CountUpTo(waiting, limit, doing=_FAILED),
            n_active=CountUpTo(waiting, limit, doing=_ACTIVE),
            n_blocked=CountUpTo(rows.filter(available_at=None).values("pk"), limit),
        )
    if poison:
        dead = PoisonRecord.objects.using(using).filter(queue=OuterRef("name"))
        queues = queues.annotate(n_dead=CountUpTo(dead.values("pk"), limit))
    return queues


def attach_annotated(
    queues: Iterable[Any], levels: Iterable[Level], *, now: datetime, limit: int, using: str
) -> None:
    """
    Give queues of `annotate_counts` their `counts`: the states that were counted.

    Queues with more than `limit` waiting messages are read one by one: the first that wait do not
    tell how many of the others failed or run.
    """
    named, failed = priorities(levels), FailedLook(now, using)
    for queue in queues:
        counts: dict[str, Capped] = {}
        if hasattr(queue, "n_pending"):
            counts[State.PENDING] = at_most(queue.n_pending, limit)
            counts[State.BLOCKED] = at_most(queue.n_blocked, limit)
            counts |= {
                State.SCHEDULED: Capped(queue.n_waiting - queue.n_active - queue.n_failed),
                State.FAILED: Capped(queue.n_failed),
                State.ACTIVE: Capped(queue.n_active),
            }
            if queue.n_waiting > limit:
                rows = Message.objects.using(using).filter(queue=queue, available_at__gt=now)
                waiting = rows.filter(priority__in=named.get(queue.name, [0]))
                counts |= _waiting(waiting, queue.pk, failed, limit)
        if hasattr(queue, "n_dead"):
            counts[State.DEAD] = at_most(queue.n_dead, limit)
        queue.counts = counts


def exact_counts(now: datetime) -> dict[str, Any]:
    """Return aggregates that count messages by state exactly; their rows have `bit=FAILED_BIT`."""
    bit = Q(bit__gt=0)
    waiting = Q(available_at__gt=now, lease_token=None)
    filters = {
        State.PENDING: Q(available_at__lte=now),
        State.SCHEDULED: waiting & ~bit,
        State.FAILED: waiting & bit,
        State.ACTIVE: Q(available_at__gt=now, lease_token__isnull=False),
        State.BLOCKED: Q(available_at=None),
    }
    return {state.value: Count("pk", filter=wanted) for state, wanted in filters.items()}


def _waiting(waiting: Any, queue_id: int, failed: FailedLook, limit: int) -> dict[str, Capped]:
    """
    Count each state of the waiting messages of a queue, by itself, up to `limit` and to LOOK.

    `waiting` are rows whose time is to come, in the order of the claim's index. The first `limit`
    are read first, so that a short queue costs little.
    """
    limit = min(limit, LOOK)
    look = limit
    found = _tell_apart(waiting, look)
    if look < LOOK and found["every"] > look:
        look = LOOK
        found = _tell_apart(waiting, look)
    more = found["every"] > look
    counts = {state: Capped(found[state], more) for state in _WAITING}
    if more:
        from_index = failed.of(queue_id)
        n = max(found[State.FAILED], from_index.n)
        counts[State.FAILED] = Capped(n, from_index.more)
    return {
        state: Capped(min(count.n, limit), count.more or count.n > limit)
        for state, count in counts.items()
    }


_WAITING = (State.SCHEDULED, State.FAILED, State.ACTIVE)


def _tell_apart(waiting: Any, look: int) -> dict[str, int]:
    leased, failed = Q(lease_token__isnull=False), Q(status__gte=int(Status.FAILED))
    found: dict[str, int] = waiting.order_by()[: look + 1].aggregate(
        every=Count("pk"),
        n_active=Count("pk", filter=leased),
        n_failed=Count("pk", filter=~leased & failed),
    )
    active, failures = found["n_active"], found["n_failed"]
    return {
        "every": found["every"],
        State.ACTIVE: active,
        State.FAILED: failures,
        State.SCHEDULED: found["every"] - active - failures,
    }
