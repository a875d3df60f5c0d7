"""One transaction of the queue: a connection, one `now`, named statements."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from django.db import (
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import clock, crash_points, sql
from ..exceptions import LockNotAvailable
from ..models import primary_alias
from ..sql import planner, prepared_statements
from .counters import Counts
from .group_changes import GroupChanges

T = TypeVar("T")
Stream = tuple[int, str]

#: Of libpq: no transaction is open; a result has rows.
_IDLE, _TUPLES = 0, 2

#: How often a transaction is tried when the database undoes it for a transient reason.
TRIES = 8
#: SQLSTATE of serialization failure and deadlock: the whole transaction was undone.
_TRANSIENT = {"40001", "40P01"}

#: Seconds a verb waits for a row or a stream that another transaction has locked.
LOCK_WAIT = 5.0
#: Seconds the worker's transactions wait: enough for a transaction that is about to commit.
SHORT_WAIT = 0.1
#: Seconds where waiting is of no use: the other transaction is known to hold its lock for long.
TRY_WAIT = 0.01
#: Wait as long as the role, the database or the caller's transaction allows: for senders.
UNLIMITED = math.inf
#: SQLSTATE of a lock that lock_timeout gave up on, and of a statement that was cancelled, which is
#: what a statement_timeout below ours makes of the same wait.
_LOCKED, _CANCELLED = "55P03", "57014"


@dataclass(frozen=True)
class Transaction:
    """The transaction of a verb. `now` is None when the statements use the server's now()."""

    connection: BaseDatabaseWrapper
    now: datetime | None
    #: It contains no work of the caller, so it may be repeated.
    is_own: bool = False
    counts: Counts = field(default_factory=Counts)
    groups: GroupChanges = field(default_factory=GroupChanges)
    #: Seconds a statement waits for a lock.
    wait: float = LOCK_WAIT

    @property
    def using(self) -> str:
        return self.connection.alias

    @property
    def is_sqlite(self) -> bool:
        return self.connection.vendor == "sqlite"

    def run(self, name: str, **params: Any) -> list[sql.Row]:
        return sql.run(self.connection, name, {"now": self.now, **params}, keep=self.is_own)

    def run_for(self, streams: Iterable[Stream], name: str, **params: Any) -> list[sql.Row]:
        """Run a statement for streams: all at once, or one after the other on SQLite."""
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
        """Return the `now` of this transaction as a value that Python can compare or write."""
        return self.now or clock.transaction_start(self.connection)

    def after_commit(self, call: Callable[[], object]) -> None:
        transaction.on_commit(call, using=self.using, robust=True)

    def undo_unless(self, work: Callable[[], T], is_done: Callable[[T], bool]) -> T:
        """
        Do the work; roll it back to a savepoint unless `is_done(result)`.

        For work that locks rows and then refuses to act: a caller's transaction, which may stay
        open for long, must not keep those locks.
        """
        if self.is_own or self.is_sqlite:
            return work()
        try:
            with transaction.atomic(using=self.using):
                result = work()
                if not is_done(result):
                    raise _Undone(result)
        except _Undone as undone:
            return undone.result  # type: ignore[no-any-return]
        return result

    def attempt(self, work: Callable[[Transaction], T]) -> T:
        """
        Do a part of the work in a savepoint, without waiting for locks.

        Raises: LockNotAvailable; then nothing of the part remains, neither its changes nor the
        locks it took.
        """
        if self.is_sqlite:
            return work(self)
        part = replace(self, counts=Counts(), groups=GroupChanges(), wait=min(self.wait, TRY_WAIT))
        try:
            with transaction.atomic(using=self.using):
                before: dict[str, str] = {}
                if part.wait < self.wait:
                    timeout = planner.lock_timeout(part.wait)
                    before = planner.configure(self.connection, timeout)
                result = work(part)
                if before:
                    # A savepoint that is kept keeps the setting as well.
                    planner.configure(self.connection, before)
        except OperationalError as error:
            if _is_locked(error, self.wait):
                raise LockNotAvailable from error
            raise
        self.counts.absorb(part.counts)
        self.groups.absorb(part.groups)
        return result


class _Undone(Exception):
    """Rolls back to a savepoint, and carries the result out of it."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def in_transaction(
    work: Callable[[Transaction], T],
    *,
    using: str | None = None,
    wait: float | None = None,
    is_last: bool = False,
) -> T:
    """
    Do the work in one transaction, or inside the caller's when there is one.

    A deadlock, a serialization failure or a locked SQLite file undoes all of it, so it is repeated,
    but not inside a caller's transaction, whose other work cannot be repeated here.
    No statement waits longer than `wait` seconds (LOCK_WAIT) for a lock, whatever lock_timeout the
    role or the database has. A caller's transaction gets its own setting back, unless `is_last`
    says that nothing else is done in it.
    Raises: LockNotAvailable; nothing was changed, and no lock is left behind.
    """
    alias = primary_alias(using)
    connection = connections[alias]
    nested = connection.in_atomic_block
    wait = LOCK_WAIT if wait is None else wait
    for left in reversed(range(TRIES)):
        try:
            with transaction.atomic(using=alias):
                before = _prepare(connection, wait, nested=nested)
                moment = clock.transaction_time(connection, nested=nested)
                tx = Transaction(connection, moment, is_own=not nested, wait=wait)
                if crash_points.is_watched() and not nested:
                    # Registered first: it runs before every other on_commit callback.
                    tx.after_commit(lambda: crash_points.reach("transaction.committed"))
                result = work(tx)
                tx.counts.write(connection, moment)
                tx.groups.write(connection, moment, keep=not nested)
                crash_points.reach("transaction.committing")
                if before and not is_last:
                    planner.configure(connection, before)
                return result
        except LockNotAvailable:
            raise
        except (OperationalError, NotSupportedError, ProgrammingError) as error:
            if _is_locked(error, wait):
                who = holders(connection, wait) if wait > SHORT_WAIT else ()
                raise LockNotAvailable(who, waited=wait) from error
            if nested or not left or not _is_transient(error):
                raise
            if prepared_statements.is_stale(error.__cause__):
                prepared_statements.give_up(connection)
                continue
        time.sleep(random.uniform(0, 0.05))  # noqa: S311 - spreads two racers, hides no secret
    raise AssertionError("unreachable")


def _prepare(connection: BaseDatabaseWrapper, wait: float, *, nested: bool) -> dict[str, str]:
    """
    Set up the transaction or savepoint that has just begun.

    Returns the settings that a caller's transaction must get back. If the work fails, the rollback
    to the savepoint restores them.
    """
    if connection.vendor == "sqlite":
        if not nested:
            begin_writing(connection)
        return {}
    if not nested:
        planner.plan_by_index(connection, wait)
        return {}
    if wait == UNLIMITED:
        return {}
    return planner.configure(connection, planner.INDEX_ONLY | planner.lock_timeout(wait))


@contextmanager
def bounded(using: str, wait: float = LOCK_WAIT) -> Iterator[None]:
    """Let the statements of a block, which are one transaction, wait so long for a lock at most."""
    connection = connections[using]
    with transaction.atomic(using=using):
        is_sqlite = connection.vendor == "sqlite"
        before = {} if is_sqlite else planner.configure(connection, planner.lock_timeout(wait))
        yield
        if before:
            planner.configure(connection, before)


def _is_locked(error: Exception, wait: float) -> bool:
    """Return whether the error means that a lock was not available in time."""
    state = getattr(error.__cause__, "sqlstate", None)
    if wait == UNLIMITED:
        return False  # the limit is the caller's: leave the original error
    # A cancelled statement of an operator's verb was cancelled by a person; the worker's
    # statements are never long, so there it was a statement_timeout.
    return state == _LOCKED or (state == _CANCELLED and wait <= SHORT_WAIT)


def holders(connection: BaseDatabaseWrapper, waited: float = 0.0) -> list[str]:
    """
    Describe the transactions that may hold the lock that was waited for.

    PostgreSQL does not tell afterwards which transaction blocked a statement. These are the
    transactions at least `waited` seconds old that have written to or locked rows of the queue's
    tables, or hold an advisory lock. Oldest first, three at most. No query texts: they contain
    values.
    """
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(_HOLDERS, {"waited": waited})
        return [_holder(*row) for row in cursor.fetchall()]


_HOLDERS = r"""
SELECT a.pid, a.application_name, a.usename, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8
  FROM pg_stat_activity a
 WHERE a.pid <> pg_backend_pid() AND a.datname = current_database()
       -- hidden for sessions of other roles without the privilege
   AND COALESCE(a.xact_start, '-infinity')
       <= clock_timestamp() - %(waited)s * interval '1 second'
   AND EXISTS (
       SELECT 1 FROM pg_locks l
        WHERE l.pid = a.pid AND l.granted
          AND (l.locktype = 'advisory'
               OR (l.locktype = 'relation' AND l.mode <> 'AccessShareLock'
                   AND l.relation IN (SELECT c.oid FROM pg_class c
                                       WHERE c.relkind = 'r' AND c.relname LIKE 'deadletter\_%%'))))
 ORDER BY a.xact_start NULLS LAST, a.pid
 LIMIT 3
"""


def _holder(pid: int, application: str, user: str, state: str | None, age: float | None) -> str:
    since = "" if age is None else f" for {age:.0f} s"
    return (
        f"pid {pid} (application {application or 'unnamed'!r}, user {user or '?'}, "
        f"{state or 'state hidden'}, in its transaction{since})"
    )


def begin_writing(connection: BaseDatabaseWrapper) -> None:
    """
    Turn a plain BEGIN into BEGIN IMMEDIATE on SQLite, by a write that changes nothing.

    A transaction that reads first and writes later fails at once if another one writes in between;
    a transaction that starts with a write waits for its turn.
    """
    if connection.vendor != "sqlite":
        return
    if getattr(connection, "transaction_mode", None) in ("IMMEDIATE", "EXCLUSIVE"):
        return
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_queue SET paused = paused WHERE 0")


def _is_transient(error: Exception) -> bool:
    """Return whether the database undid the transaction for a reason that may pass."""
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None)
    return state in _TRANSIENT or prepared_statements.is_stale(cause) or "locked" in str(cause)
