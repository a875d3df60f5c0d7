"""
The thread that calls `testing.drain()`: it runs handlers in place of a worker's threads.

It may be inside a transaction, that of a test. A worker's handlers run in autocommit: each
statement is a transaction of its own, and the outermost `atomic()` block of a handler a real one.
Inside the test's transaction both are imitated by savepoints, so that an error undoes as much as it
does in production and leaves the test's transaction usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from . import thread_connections

#: How the statements of Django's own savepoints begin.
_SAVEPOINTS = ("SAVEPOINT ", "ROLLBACK TO ", "RELEASE ")


class Caller:
    """What is around a handler that runs in the calling thread."""

    def __init__(self) -> None:
        self._open = [
            _OpenTransaction(connection, len(connection.savepoint_ids))
            for connection in connections.all(initialized_only=True)
            if connection.in_atomic_block
        ]

    @property
    def is_in_transaction(self) -> bool:
        return bool(self._open)

    @contextmanager
    def autocommit(self) -> Iterator[None]:
        """Let statements do what they do in production, on connections with a transaction open."""
        with ExitStack() as stack:
            for transaction in self._open:
                stack.enter_context(transaction.connection.execute_wrapper(transaction))
            yield

    def tidy(self) -> list[str]:
        """After a message: roll back what it left open; say on which databases."""
        if not self._open:
            return thread_connections.tidy()
        return [one.connection.alias for one in self._open if one.restore()]


@dataclass
class _OpenTransaction:
    """A transaction that the caller has open, and how many blocks deep it is inside it."""

    connection: BaseDatabaseWrapper
    depth: int

    def __call__(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
    ) -> Any:
        """Wrap one statement of a handler; Django calls this in place of `execute`."""
        if isinstance(sql, str) and sql.startswith(_SAVEPOINTS):
            return execute(sql, params, many, context)
        blocks = self.connection.savepoint_ids[self.depth :]
        if not blocks or blocks[0] is None:
            # Django marks the whole transaction after an error; in autocommit there is none.
            self.connection.needs_rollback = False
        if blocks:
            if blocks[0] is None:
                # `atomic(savepoint=False)`, which is a transaction in autocommit.
                self.connection.savepoint_ids[self.depth] = self.connection.savepoint() or ""
            return execute(sql, params, many, context)
        self._savepoint("SAVEPOINT")
        try:
            result = execute(sql, params, many, context)
        except BaseException:
            self._savepoint("ROLLBACK TO SAVEPOINT")
            self._savepoint("RELEASE SAVEPOINT")
            raise
        self._savepoint("RELEASE SAVEPOINT")
        return result

    def restore(self) -> bool:
        """Go back to the depth at which the handler was called; False: it is there."""
        connection = self.connection
        connection.needs_rollback = False
        left = connection.savepoint_ids[self.depth :]
        if not left:
            return False
        del connection.savepoint_ids[self.depth :]
        del connection.atomic_blocks[-len(left) :]
        if left[0] is not None:
            connection.savepoint_rollback(left[0])
            connection.savepoint_commit(left[0])
        return True

    def _savepoint(self, command: str) -> None:
        """Begin or end the transaction of one statement, beside Django's log of queries."""
        # SQLite undoes a statement that failed by itself, and its transaction stays usable.
        if self.connection.vendor == "postgresql":
            with self.connection.connection.cursor() as cursor:
                cursor.execute(f"{command} deadletter_statement")
