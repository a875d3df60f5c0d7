"""
How many messages of a queue are scheduled, failed and active, when many wait.

All three wait for a time, and no index knows which of them failed or run. So the first LOOK of a
queue that wait are told apart, those due soonest first, which is where leases are. Failed messages
have an index of their own, over all queues: its first LOOK entries are looked at too. A number is
exact unless both looks ended before the rows did, and each state is judged by itself: a thousand
scheduled messages do not make the number of failed ones uncertain.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from django.db.models import Case, Count, Q, Value, When

from ..models import Message, State
from ..status import Status

#: Rows told apart in one look.
LOOK = 10_000


class Depth(NamedTuple):
    """At least so many; `more`: there may be more."""

    n: int
    more: bool


class FailedLook:
    """The first failed messages of all queues, by queue; read once, and only when asked."""

    def __init__(self, now: datetime, using: str) -> None:
        self._now = now
        self.using = using

    def of(self, queue_id: int) -> Depth:
        counts, more = self._found
        return Depth(counts[queue_id], more)

    @cached_property
    def _found(self) -> tuple[Counter[int], bool]:
        failed = Message.objects.using(self.using).filter(status__gte=int(Status.FAILED))
        waits = Case(
            When(available_at__gt=self._now, lease_token=None, then=Value(1)), default=Value(0)
        )
        rows = list(failed.order_by("pk").values_list("queue_id", waits)[: LOOK + 1])
        return Counter(queue for queue, does in rows if does), len(rows) > LOOK


def waiting_depths(
    waiting: Any, queue_id: int, failed: FailedLook, *, first: int | None = None
) -> dict[str, Depth]:
    """
    Tell apart the messages of a queue that wait for a time.

    `waiting` are its rows whose time is to come, in the order of the claim's index; the first so
    many are tried first, so that the common queue costs little.
    """
    look = first or LOOK
    found = _tell_apart(waiting, look)
    if look < LOOK and found["every"] > look:
        look = LOOK
        found = _tell_apart(waiting, look)
    more = found["every"] > look
    if not more:
        return {state: Depth(found[state], False) for state in _STATES}
    by_index = failed.of(queue_id)
    failures = max(found[State.FAILED], by_index.n)
    return {
        State.SCHEDULED: Depth(found[State.SCHEDULED], True),
        State.FAILED: Depth(failures, by_index.more),
        State.ACTIVE: Depth(found[State.ACTIVE], True),
    }


_STATES = (State.SCHEDULED, State.FAILED, State.ACTIVE)


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
