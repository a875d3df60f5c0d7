"""The clock of the queue: the database's time, one `now` per transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


class FrozenClock:
    """A time that stands still until it is advanced. On both databases it replaces their clock."""

    def __init__(self, at: datetime) -> None:
        self.now = at

    def advance(self, by: timedelta | float) -> datetime:
        """Move the time forward (or back, by a negative duration) and return it."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now

    def set(self, at: datetime) -> None:
        self.now = at


#: Set only by `frozen`, for tests. Every thread of the process sees it.
_frozen: FrozenClock | None = None


@contextmanager
def frozen(at: datetime | None = None) -> Iterator[FrozenClock]:
    global _frozen
    before, _frozen = _frozen, FrozenClock(at or datetime.now(UTC).replace(microsecond=0))
    try:
        yield _frozen
    finally:
        _frozen = before


def now(using: str) -> datetime:
    """Return the time of the database: one round trip on PostgreSQL. For pages and sweeps."""
    connection = connections[using]
    moment = transaction_time(connection)
    if moment is not None:
        return moment
    return _ask(connection)


def transaction_time(connection: BaseDatabaseWrapper, *, nested: bool = False) -> datetime | None:
    """
    Return the `now` to pass to every statement of a transaction, or None for "the server's now()".

    PostgreSQL's now() is the start of the transaction: constant, and free. In a transaction that
    the caller opened (`nested`) that start may be long past, and a lease that is over could seem
    valid: the server's clock is read once. SQLite has no server; its clock is this machine's.
    """
    if _frozen is not None:
        return _frozen.now
    if connection.vendor != "postgresql":
        return datetime.now(UTC)
    return _ask(connection) if nested else None


def send_times(connection: BaseDatabaseWrapper) -> tuple[datetime, datetime]:
    """Return now() and statement_timestamp(); `expires_in` counts from the latter."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now(), statement_timestamp()")
        start, moment = cursor.fetchone()
    return start, moment


def transaction_start(connection: BaseDatabaseWrapper) -> datetime:
    """Return the server's now(): the start of the current transaction."""
    return _ask(connection, "SELECT now()")


def _ask(connection: BaseDatabaseWrapper, query: str = "SELECT clock_timestamp()") -> datetime:
    with connection.cursor() as cursor:
        cursor.execute(query)
        moment: datetime = cursor.fetchone()[0]
    return moment
