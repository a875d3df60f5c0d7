"""
Helpers for the test suites of applications: a clock to set, a queue to drain.

`drain` runs handlers in the calling thread, which may be inside the transaction of a test. A
worker's handlers run in autocommit: each statement is a transaction of its own, and the outermost
`atomic()` block of a handler a real transaction. Inside the test's transaction, savepoints imitate
both. So an error undoes as much as it does in production and leaves the test's transaction usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .clock import FrozenClock, frozen
from .lifecycle import Claimed, ClaimRequest, Failure, Release, WorkBatch, process_batch
from .lifecycle.groups import fold_all_groups
from .models import Message, primary_alias
from .worker import thread_connections
from .worker.execute import Overtaken, Report, execute
from .worker.registry import Registry, discover, registry
from .worker.reports import Reports, Tally, fail_refused

__all__ = ["FrozenClock", "drain", "frozen_clock", "sent"]

#: Messages that `drain` claims at a time.
_BATCH = 100
#: The beginnings of the statements of Django's own savepoints.
_SAVEPOINTS = ("SAVEPOINT ", "ROLLBACK TO ", "RELEASE ")

frozen_clock = frozen


def drain(
    queues: Sequence[str] | None = None,
    *,
    using: str | None = None,
    handlers: Registry = registry,
    raise_errors: bool = False,
) -> Tally:
    """
    Run everything due, in this process, through the real executor.

    Works inside a TestCase's transaction, for async handlers too. Returns counts: completed,
    staged (stages, not messages), failed, poisoned, released, deferred. With `raise_errors` it
    stops at the first attempt that fails because its handler raised or took too long: the failure
    is settled as usual, messages that were claimed behind it are released, and the exception is
    raised. Ctrl-C ends it in the same way, and is no failure of the message. Differences from a
    worker: docs/testing.md.
    """
    discover()
    tally = Tally()
    reports = Reports()
    ending: BaseException | None = None
    request = ClaimRequest(queues, _BATCH, policies=handlers.policies(), knows=handlers.knows)
    while True:
        claimed = process_batch(
            worker="drain",
            completions=reports.completions,
            failures=reports.failures,
            releases=reports.releases,
            claim=None if ending else request,
            using=using,
        )
        reports.count(claimed, tally)
        done = reports.completions
        if ending is not None:
            fold_all_groups(using=using)
            raise ending
        if not claimed.messages and not claimed.poisoned and not reports:
            if tally.failed or tally.poisoned:
                fold_all_groups(using=using)
            return tally
        refused, reports = set(claimed.refused), Reports()
        for item in done:
            if item.id in refused:
                handler = handlers.get(item.message.name) if item.message else None
                reports.add(fail_refused(item, claimed, handler))
        ending = _handle(claimed, handlers, using, reports, raise_errors=raise_errors)


def sent(name: str | None = None, *, using: str | None = None) -> list[Message]:
    """Return the messages that were sent and not handled yet, oldest first."""
    messages = Message.objects.using(primary_alias(using))
    return list(messages.filter(name=name) if name else messages.all())


def _handle(
    batch: WorkBatch,
    handlers: Registry,
    using: str | None,
    reports: Reports,
    *,
    raise_errors: bool,
) -> BaseException | None:
    """Run a batch. Return the exception that ends the drain; the rest of the batch is released."""
    runs = list(batch.runs())
    for number, run in enumerate(runs, 1):
        for place, message in enumerate(run):
            try:
                report = _execute(message, handlers, using)
            except KeyboardInterrupt as interrupt:
                reports.add_all(_released([*run[place:], *chain(*runs[number:])]))
                return interrupt
            reports.add(report)
            if isinstance(report, Failure | Overtaken) or message.stage:
                reports.add_all(_released(run[place + 1 :]))
                if raise_errors and isinstance(report, Failure) and report.raised is not None:
                    reports.add_all(_released([*chain(*runs[number:])]))
                    return report.raised
                break
    return None


def _execute(message: Claimed, handlers: Registry, using: str | None) -> Report:
    thread = _TestThread()
    with thread.autocommit():
        return execute(message, handlers, using=using, caller=thread)


def _released(rest: Sequence[Claimed]) -> list[Release]:
    return [Release(message.id, 0, message.token) for message in rest]


class _TestThread:
    """The thread that calls `drain`, with the transactions it has open (see `CallingThread`)."""

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
        """Imitate autocommit on connections that have a transaction open."""
        with ExitStack() as stack:
            for transaction in self._open:
                stack.enter_context(transaction.connection.execute_wrapper(transaction))
            yield

    def after_message(self) -> list[str]:
        """Roll back what the handler left open; return the aliases of those databases."""
        if not self._open:
            return thread_connections.after_message()
        return [one.connection.alias for one in self._open if one.restore()]


@dataclass
class _OpenTransaction:
    """A transaction that the calling thread has open, and its depth in atomic blocks."""

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
            # After an error Django marks the whole transaction; autocommit has none to mark.
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
        """Go back to the depth at which the handler was called; return False if it is there."""
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
        """Begin or end the savepoint of one statement, outside of Django's query log."""
        # SQLite undoes a failed statement by itself, and the transaction stays usable.
        if self.connection.vendor == "postgresql":
            with self.connection.connection.cursor() as cursor:
                cursor.execute(f"{command} deadletter_statement")
