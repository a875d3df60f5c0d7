"""
The levels of the queues: at which (queue, priority) there are messages, and when the first is due.

They are found by one index probe for each level that exists, so a queue that holds nothing costs
nothing. See docs/decisions/0017.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from time import monotonic

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import clock, sql
from ..models import primary_alias
from ..patterns import QueueSelection, queue_selection
from .transaction import Transaction, plan_by_index
from .values import ClaimRequest, Level, Levels

#: Seconds for which levels that were found may be used. A level that has nothing due by then is
#: not one of them.
VALID = timedelta(seconds=1)
#: Up to so many queues are looked into one by one; of more, all that exist are looked at instead.
FEW = 20


def read_levels(using: str) -> list[Level]:
    """Read every level of every queue, future ones too. For pages, metrics and alerts."""
    connection = connections[using]
    if connection.vendor == "postgresql" and not connection.in_atomic_block:
        with transaction.atomic(using=using):
            plan_by_index(connection)
            return read_levels(using)
    rows = sql.run(connection, "read_levels", {"now": None, "within": None})
    return [_level(row, connection) for row in rows]


def oldest_due(levels: Iterable[Level], *, now: datetime) -> dict[str, datetime]:
    """Return since when the message that waits the longest has been due, by the queue's name."""
    found: dict[str, datetime] = {}
    for level in levels:
        if level.first <= now:
            found[level.queue] = min(level.first, found.get(level.queue, level.first))
    return found


def oldest_waiting(using: str, *, now: datetime) -> dict[str, datetime]:
    """The same of queues that somebody should serve: paused and dead ones wait on purpose."""
    return oldest_due(to_be_served(read_levels(using)), now=now)


def to_be_served(levels: Iterable[Level]) -> list[Level]:
    return [level for level in levels if not (level.is_paused or level.is_dead_queue)]


def priorities(levels: Iterable[Level]) -> dict[str, list[int]]:
    """Return the priorities that exist, by the name of their queue."""
    found: dict[str, list[int]] = {}
    for level in levels:
        found.setdefault(level.queue, []).append(level.priority)
    return found


def discover(tx: Transaction, request: ClaimRequest) -> Levels:
    """Find the levels of the wanted queues that have a message due now or within a second."""
    return _discover(tx.connection, request, now=tx.now, within=VALID, keep=tx.is_own)


def look(request: ClaimRequest, *, using: str | None) -> Levels | None:
    """
    On SQLite, find what a claim would find, without the write lock.

    Only a hint: the claim decides under the lock. None: no hint is to be had, because the database
    is another one, the caller has a transaction open or somebody is in the way.
    """
    connection = connections[primary_alias(using)]
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        return None
    if not connection.get_autocommit():
        return None
    known = request.levels
    now = clock.transaction_time(connection)
    if known is not None and not known.due and not request.rediscover:
        return known
    try:
        # Only what is due now, and as SQL compares it: a time that Python cannot read may come
        # first at its level, and what is due behind it must not be hidden by it.
        return _discover(connection, request, now=now, within=timedelta(0), keep=False)
    except OperationalError as error:
        if "locked" not in str(error):
            raise
        return None


def shuffled(levels: Sequence[Level]) -> Sequence[Level]:
    """Return the levels in a random order of queues, those of one queue by priority as before."""
    if len(levels) < 2:
        return levels
    queues = [list(group) for _, group in groupby(levels, key=lambda level: level.queue_id)]
    random.shuffle(queues)
    return [level for queue in queues for level in queue]


def _discover(
    connection: BaseDatabaseWrapper,
    request: ClaimRequest,
    *,
    now: datetime | None,
    within: timedelta,
    keep: bool,
) -> Levels:
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
        levels = _in_order(levels, asked)
    read = monotonic()
    due = tuple(level for level in levels if not level.is_paused)
    return Levels(due, read, read - started)


def _in_order(levels: Iterable[Level], asked: QueueSelection) -> list[Level]:
    """Return the levels that are asked for: as they were named, then by name and priority."""
    places = (
        (asked.place(level.queue, is_dead_queue=level.is_dead_queue), level) for level in levels
    )
    found = [(place, level) for place, level in places if place is not None]
    # The database may sort names by the rules of a language.
    found.sort(key=lambda pair: (pair[0], pair[1].queue, pair[1].priority))
    return [level for _, level in found]


def _level(row: sql.Row, connection: BaseDatabaseWrapper) -> Level:
    queue_id, queue, priority, first, is_paused, is_dead = row
    if connection.vendor == "sqlite":
        first = sql.as_datetime(first, connection)
    return Level(queue_id, queue, priority, first, bool(is_paused), bool(is_dead))
