"""One transaction of the queue: a connection, one `now`, named statements."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from django.db import OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import clock, sql
from ..models import Message
from .counting import Counts

T = TypeVar("T")
Stream = tuple[int, str]

#: How often a transaction the database refused for a passing reason is repeated.
TRIES = 8
#: SQLSTATE of serialization failure and deadlock: the whole transaction was undone, repeat it.
_PASSING = {"40001", "40P01"}


#: Every statement of the queue finds its rows by an index and in the order of that index. Right
#: after a drained queue was analysed the planner takes a million messages for one, thinks every way
#: equally cheap, and reads them all; so the other ways are closed for the transaction. jit: some
#: versions add a huge cost for a closed way they must take all the same, and would compile it.
_BY_INDEX = "SELECT " + ", ".join(
    f"set_config('{name}', 'off', true)"
    for name in (
        "enable_seqscan",
        "enable_bitmapscan",
        "enable_sort",
        "enable_incremental_sort",
        "enable_mergejoin",
        "jit",
    )
)


@dataclass(frozen=True)
class Transaction:
    """What the verbs work with. `now` is None when the server's own now() is meant."""

    connection: BaseDatabaseWrapper
    now: datetime | None
    counts: Counts = field(default_factory=Counts)

    @property
    def using(self) -> str:
        return self.connection.alias

    @property
    def is_sqlite(self) -> bool:
        return self.connection.vendor == "sqlite"

    def run(self, name: str, **params: Any) -> list[sql.Row]:
        return sql.run(self.connection, name, {"now": self.now, **params})

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
                if not nested:
                    _prepare(connection)
                moment = clock.transaction_time(connection, nested=nested)
                tx = Transaction(connection, moment)
                result = work(tx)
                tx.counts.write(connection, moment)
                return result
        except OperationalError as error:
            if nested or not left or not _passes(error):
                raise
        time.sleep(random.uniform(0, 0.05))  # noqa: S311 - spreads two racers, hides no secret
    raise AssertionError("unreachable")


def _prepare(connection: BaseDatabaseWrapper) -> None:
    """Make the transaction that has just begun fit for the queue. A caller's own is left alone."""
    if connection.vendor == "sqlite":
        begin_writing(connection)
    else:
        plan_by_index(connection)


def plan_by_index(connection: BaseDatabaseWrapper) -> None:
    """Close all ways but the indexes to PostgreSQL's planner until the transaction ends."""
    # In a pipeline it travels together with BEGIN, which would take a round trip of its own.
    with (
        connection.wrap_database_errors,  # a connection that breaks is noticed at the end of it
        _pipeline(connection.connection),
        connection.cursor() as cursor,
    ):
        cursor.execute(_BY_INDEX)


def _pipeline(raw: Any) -> AbstractContextManager[Any]:
    """Send what follows in one piece, where the driver and its library can."""
    if not hasattr(raw, "pipeline"):
        return nullcontext()
    from psycopg import Pipeline

    return raw.pipeline() if Pipeline.is_supported() else nullcontext()


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


def _passes(error: OperationalError) -> bool:
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) in _PASSING or "locked" in str(cause)
