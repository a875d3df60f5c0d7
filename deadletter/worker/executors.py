"""
The executors run the handlers: threads, and one event loop for `async def`.

They take runs from the pump and hand back outcomes as values. They never touch the queue's tables,
except that an atomic handler completes its own message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from .. import crash_points
from ..descriptions import describe
from ..lifecycle import Failure, Release
from ..logs import crash
from .event_loop import EventLoop
from .execute import Report, execute
from .in_flight import ENDS_RUN, HandlerOutcomes, InFlight, InFlightMessage, Run
from .registry import Registry
from .thread_pool import PoolThread, ThreadPool


class Executors:
    """`concurrency` threads, and as many tasks on the loop once an async handler is needed."""

    def __init__(
        self,
        *,
        concurrency: int,
        in_flight: InFlight,
        handlers: Registry,
        using: str | None,
        woken: threading.Event,
    ) -> None:
        self.concurrency = concurrency
        self._in_flight = in_flight
        self._handlers = handlers
        self._using = using
        self._loop: EventLoop | None = None
        self._pool = ThreadPool(size=concurrency, work=self._run)
        #: The runs that wait for a thread.
        self.waiting_runs = self._pool.runs
        self.outcomes = HandlerOutcomes(
            ledger=in_flight.ledger, waiting_runs=self.waiting_runs, woken=woken
        )

    def put(self, runs: Iterable[Run]) -> None:
        """Start runs: messages of a run in order, runs side by side."""
        plain: list[Run] = []
        on_loop: list[Run] = []
        for run in runs:
            if len(run) == 1 and not run[0].is_async:
                plain.append(run)
            else:
                (on_loop if self._prepare(run) else plain).append(run)
        if on_loop and self._loop is not None:
            self._loop.put(on_loop)
        if plain:
            self._pool.put(plain)

    def _prepare(self, run: Run) -> bool:
        """Link the messages of a run; return True if all of them are for the event loop."""
        if len(run) > 1:
            for place, item in enumerate(run, 1):
                item.behind = run[place:]
        is_async = [item.is_async for item in run]
        if True not in is_async:
            return False
        if self._loop is None:
            # Only here, in the pump's thread: two threads that need it at once would make two.
            self._loop = EventLoop(
                concurrency=self.concurrency,
                in_flight=self._in_flight,
                handlers=self._handlers,
                outcomes=self.outcomes,
                using=self._using,
            )
        for item in run:
            item.on_loop = all(is_async)
        return all(is_async)

    def stop(self) -> None:
        """Let idle threads end. Busy ones finish their handlers first; this does not wait."""
        self._pool.stop()
        if self._loop is not None:
            self._loop.stop()

    def _run(self, run: Run, thread: PoolThread) -> bool:
        """Run messages in order up to the first failure; False if this thread was replaced."""
        for item in run:
            if not item.take():
                return True
            self._in_flight.start(item)
            thread.began(item.started)
            crash_points.reach("handler.starting", item.message)
            report: Report | Release
            try:
                if item.is_async and self._loop is not None:
                    report = self._loop.wait_for(item)
                else:
                    report = execute(item.message, self._handlers, using=self._using)
            except BaseException as error:  # noqa: BLE001 - logged
                # Never expected. But the thread must live, and the message must be settled.
                report = _not_executed(item, error)
            crash_points.reach("handler.returned", item.message)
            if not self.outcomes.add(item, report):
                return False
            if type(report) in ENDS_RUN or item.message.stage:
                return True
        return True

    def cancel(self, item: InFlightMessage, now: float) -> bool:
        """
        Cancel a running async handler, so that its `finally` runs; its message is released.

        Return False if it cannot be cancelled. A handler may still ignore the cancellation.
        """
        if item.task is None or self._loop is None:
            return False
        item.cancelled = now
        self._loop.cancel(item)
        return True

    def give_up(self, item: InFlightMessage, report: Failure) -> bool:
        """Report for a handler that does not end, and replace its thread or slot."""
        if not self.outcomes.add(item, report):
            return False
        if item.on_loop and self._loop is not None:
            self._loop.add_slot()
        else:
            self._pool.add_thread()
        return True


def _not_executed(item: InFlightMessage, error: BaseException) -> Failure:
    """Return the failure of a message that could not be executed, and log it."""
    message, handler = item.message, item.handler
    crash(
        "execution_failed",
        "message {name} {message_id} of queue {queue} could not be executed",
        error,
        name=message.name,
        message_id=message.id,
        queue=message.queue,
    )
    policy = None if handler is None else handler.policy
    return Failure(message.id, error=describe(error).text, token=message.token, policy=policy)
