"""One transaction of the queue: a connection, one `now`, named statements."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from django.db import (
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import clock, points, sql
from ..models import Message
from ..sql import kept
from .counting import Counts

T = TypeVar("T")
Stream = tuple[int, str]

#: Of libpq: no transaction is open; a result has rows.
_IDLE, _TUPLES = 0, 2

#: How often a transaction the database refused for a passing reason is repeated.
TRIES = 8
#: SQLSTATE of serialization failure and deadlock: the whole transaction was undone, repeat it.
_PASSING = {"40001", "40P01"}


#: Every statement of the queue finds its rows by an index and in the order of that index. Right
#: after a drained queue was analysed the planner takes a million messages for one, thinks every way
#: equally cheap, and reads them all; so the other ways are closed for the transaction. jit: some
#: versions add a huge cost for a closed way they must take all the same, and would compile it.
#: With one way left, a statement that is kept is planned once, not for the numbers of each batch.
_PLANNER = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
_BY_INDEX = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', true)" for name, value in _PLANNER.items()
)


@dataclass(frozen=True)
class Transaction:
    """What the verbs work with. `now` is None when the server's own now() is meant."""

    connection: BaseDatabaseWrapper
    now: datetime | None
    #: Nobody else's work is in it, so that it may be repeated.
    is_own: bool = False
    counts: Counts = field(default_factory=Counts)

    @property
    def using(self) -> str:
        return self.connection.alias

    @property
    def is_sqlite(self) -> bool:
        return self.connection.vendor == "sqlite"

    def run(self, name: str, **params: Any) -> list[sql.Row]:
        return sql.run(self.connection, name, {"now": self.now, **params}, keep=self.is_own)

    def run_for(self, streams: Iterable[Stream], name: str, **params: Any) -> list[sql.Row]:
        """Run a statement about streams: all at once, or one after the other on SQLite."""
        wanted = sorted(set(streams))
        if not wanted:
            return []
        if not self.is_sqlite:
            ids, names = (list(column) for column in zip(*wanted, strict=True))
            return self.run(name, queue_ids=ids, streams=names, **params)
        rows: list[sql.Row] = []
        for queue_id, stream in wanted:
            rows += self.run(name, queue_id=queue_id, stream=stream, **params)
        return rows

    def time(self) -> datetime:
        """Return this transaction's now as a value, for what Python must compare or write."""
        return self.now or clock.transaction_start(self.connection)

    def after_commit(self, call: Callable[[], object]) -> None:
        transaction.on_commit(call, using=self.using, robust=True)


def in_transaction(work: Callable[[Transaction], T], *, using: str | None = None) -> T:
    """
    Do the work in one transaction, or inside the caller's when there is one.

    A deadlock, a serialization failure or a locked SQLite file undid all of it, so it is repeated,
    but only when the transaction is ours alone: somebody else's work must not be done twice.
    """
    alias = using or router.db_for_write(Message)
    connection = connections[alias]
    nested = connection.in_atomic_block
    for left in reversed(range(TRIES)):
        try:
            with transaction.atomic(using=alias):
                before = _prepare(connection, nested=nested)
                moment = clock.transaction_time(connection, nested=nested)
                tx = Transaction(connection, moment, is_own=not nested)
                if points.is_watched() and not nested:
                    # First in line: before anybody else is told of the commit.
                    tx.after_commit(lambda: points.reach("transaction.committed"))
                result = work(tx)
                tx.counts.write(connection, moment)
                points.reach("transaction.committing")
                if before:
                    configure(connection, before)
                return result
        except (OperationalError, NotSupportedError, ProgrammingError) as error:
            if nested or not left or not _passes(error):
                raise
            if kept.is_stale(error.__cause__):
                kept.give_up(connection)
                continue
        time.sleep(random.uniform(0, 0.05))  # noqa: S311 - spreads two racers, hides no secret
    raise AssertionError("unreachable")


def _prepare(connection: BaseDatabaseWrapper, *, nested: bool) -> dict[str, str]:
    """
    Make the transaction that has just begun fit for the queue.

    Returns the settings that a caller's transaction must get back. When the work fails, they come
    back by themselves with the savepoint.
    """
    if nested:
        return {} if connection.vendor == "sqlite" else configure(connection, _PLANNER)
    if connection.vendor == "sqlite":
        begin_writing(connection)
    else:
        plan_by_index(connection)
    return {}


def plan_by_index(connection: BaseDatabaseWrapper) -> None:
    """Close all ways but the indexes to PostgreSQL's planner until the transaction ends."""
    if not _begin_with(connection.connection, _BY_INDEX):
        with connection.cursor() as cursor:
            cursor.execute(_BY_INDEX)


def configure(connection: BaseDatabaseWrapper, values: Mapping[str, str]) -> dict[str, str]:
    """Change settings until the transaction ends; return those that were different before."""
    old = ", ".join("current_setting(%s)" for _ in values)
    new = ", ".join("set_config(%s, %s, true)" for _ in values)
    pairs = [text for pair in values.items() for text in pair]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {old}, {new}", [*values, *pairs])
        row = cursor.fetchone()
    before = dict(zip(values, row, strict=False))
    return {name: value for name, value in before.items() if value != values[name]}


def _begin_with(raw: Any, statement: str) -> bool:
    """
    Send BEGIN and a statement in one piece, and say whether that was done.

    The driver sends BEGIN by itself before the first statement, which takes a round trip of its
    own. Where anything is unusual it is left to the driver, errors included.
    """
    session = getattr(raw, "pgconn", None)
    if session is None or session.transaction_status != _IDLE:
        return False
    if (raw.isolation_level, raw.read_only, raw.deferrable) != (None, None, None):
        return False
    with suppress(Exception):
        if session.exec_(f"BEGIN; {statement}".encode()).status == _TUPLES:
            return True
        session.exec_(b"ROLLBACK")  # so that the driver meets the error, and not its consequences
    return False


def begin_writing(connection: BaseDatabaseWrapper) -> None:
    """
    Make BEGIN IMMEDIATE of a plain BEGIN on SQLite.

    A transaction that reads first and writes later is refused at once when another writes in
    between; one that starts with a write waits its turn. The write changes nothing.
    """
    if connection.vendor != "sqlite":
        return
    if getattr(connection, "transaction_mode", None) in ("IMMEDIATE", "EXCLUSIVE"):
        return
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_queue SET paused = paused WHERE 0")


def _passes(error: Exception) -> bool:
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    return state in _PASSING or kept.is_stale(cause) or "locked" in str(cause)
