"""
Levels: the (queue, priority) pairs that have messages, and when the first of each is due.

They are found by one index probe for each level that exists, so an empty queue costs nothing. See
docs/decisions/0017.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from time import monotonic

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import sql
from ..patterns import queue_selection
from ..sql.planner import plan_by_index
from .values import ClaimRequest, Level, Levels

#: How long discovered levels may be used. A level that has no message due within this time is left
#: out.
VALID = timedelta(seconds=1)
#: Up to this number, queues are probed by name; for more, the levels of all queues are read.
FEW = 20


def read_levels(using: str) -> list[Level]:
    """Read every level of every queue, also of the future. For pages, metrics and alerts."""
    connection = connections[using]
    if connection.vendor == "postgresql" and not connection.in_atomic_block:
        with transaction.atomic(using=using):
            plan_by_index(connection)
            return read_levels(using)
    rows = sql.run(connection, "read_levels", {"now": None, "within": None})
    return [_level(row, connection) for row in rows]


def oldest_due(levels: Iterable[Level], *, now: datetime) -> dict[str, datetime]:
    """Return when the oldest due message of each queue became due, by the queue's name."""
    found: dict[str, datetime] = {}
    for level in levels:
        if level.first <= now:
            found[level.queue] = min(level.first, found.get(level.queue, level.first))
    return found


def oldest_waiting(using: str, *, now: datetime) -> dict[str, datetime]:
    """Return the same for queues that a worker should serve: not paused, not a dead queue."""
    return oldest_due(to_be_served(read_levels(using)), now=now)


def to_be_served(levels: Iterable[Level]) -> list[Level]:
    """Return the levels of queues that a worker should serve."""
    return [level for level in levels if not (level.is_paused or level.is_dead_queue)]


def priorities(levels: Iterable[Level]) -> dict[str, list[int]]:
    """Return the priorities that have messages, by the queue's name."""
    found: dict[str, list[int]] = {}
    for level in levels:
        found.setdefault(level.queue, []).append(level.priority)
    return found


def shuffled(levels: Sequence[Level]) -> Sequence[Level]:
    """Return the levels with the queues in random order; within a queue by priority as before."""
    if len(levels) < 2:
        return levels
    queues = [list(group) for _, group in groupby(levels, key=lambda level: level.queue_id)]
    random.shuffle(queues)
    return [level for queue in queues for level in queue]


def discover(
    connection: BaseDatabaseWrapper,
    request: ClaimRequest,
    *,
    now: datetime | None,
    within: timedelta,
    keep: bool = False,
) -> Levels:
    """
    Find the levels of the wanted queues that have a message due within this time.

    In the order in which the request names the queues, then by name and priority. `keep`: with a
    prepared statement, as `sql.run` does.
    """
    started = monotonic()
    asked = None if request.queues is None else queue_selection(tuple(request.queues))
    params = {"now": now, "within": within}
    if asked is None or asked.has_patterns or len(asked.names) > FEW:
        rows = sql.run(connection, "read_levels", params, keep=keep)
    else:
        names = list(asked.names)
        rows = sql.run(connection, "read_levels_of", {**params, "queues": names}, keep=keep)
    levels = [_level(row, connection) for row in rows]
    if asked is None:
        levels = [level for level in levels if not level.is_dead_queue]
    else:
        places = [
            (asked.place(level.queue, is_dead_queue=level.is_dead_queue), level) for level in levels
        ]
        found = [(place, level) for place, level in places if place is not None]
        # Sorted here: the database may sort names by the rules of a language.
        found.sort(key=lambda pair: (pair[0], pair[1].queue, pair[1].priority))
        levels = [level for _, level in found]
    read = monotonic()
    due = tuple(level for level in levels if not level.is_paused)
    return Levels(due, read, read - started)


def _level(row: sql.Row, connection: BaseDatabaseWrapper) -> Level:
    queue_id, queue, priority, first, is_paused, is_dead = row
    if connection.vendor == "sqlite":
        first = sql.as_datetime(first, connection)
    return Level(queue_id, queue, priority, first, bool(is_paused), bool(is_dead))
