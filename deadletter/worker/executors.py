"""
Who runs the handlers? Threads, and one event loop for `async def`.

They take runs from a queue and hand back outcomes as values; the pump takes it from there. They
never touch the queue's tables, except that an atomic handler completes its own message.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from .. import copies, crash_points, tracing
from ..descriptions import describe
from ..lifecycle import Completion, Failure, Release
from ..logs import crash
from .execute import (
    Overtaken,
    Report,
    TookTooLong,
    admit,
    completion,
    execute,
    failure,
    finish,
    is_activity,
)
from .in_flight import Holding, Holdings
from .registry import Handler, Registry
from .thread_pool import Crew, Member, Run

Outcome = tuple[Holding, Report | Release]
#: After these the rest of a run is not begun.
FAILED = frozenset((Failure, Overtaken))
ENDS_RUN = FAILED | {Release}


class Executors:
    """`concurrency` threads, and as many tasks on the loop once an async handler shows up."""

    def __init__(
        self,
        *,
        concurrency: int,
        holdings: Holdings,
        handlers: Registry,
        using: str | None,
        woken: threading.Event,
    ) -> None:
        self.concurrency = concurrency
        #: Each entry belongs into one transaction: an outcome, or a failure and what it releases.
        self.outcomes: deque[Sequence[Outcome]] = deque()
        #: How many outcomes may gather before the pump is told although there is more to run.
        self.enough = 1
        self._holdings = holdings
        self._handlers = handlers
        self.using = using
        self._woken = woken
        self._loop: _Loop | None = None
        self._crew = Crew(size=concurrency, work=self._run)

    def put(self, runs: Iterable[Run]) -> None:
        """Take runs: in order inside, side by side with each other."""
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
            self._crew.put(plain)

    @property
    def are_behind(self) -> bool:
        """Whether runs wait for a thread."""
        return bool(self._crew.runs)

    def _prepare(self, run: Run) -> bool:
        """Link the messages of a run; say whether all of it is for the event loop."""
        if len(run) > 1:
            for place, holding in enumerate(run, 1):
                holding.behind = run[place:]
        is_async = [holding.is_async for holding in run]
        if True not in is_async:
            return False
        if self._loop is None:
            # Here and nowhere else: two threads that needed it at once would make two.
            self._loop = _Loop(self, self._holdings, self._handlers)
        for holding in run:
            holding.on_loop = all(is_async)
        return all(is_async)

    def stop(self) -> None:
        """Let idle threads end. Those that run finish first; nobody waits for them here."""
        self._crew.stop()
        if self._loop is not None:
            self._loop.stop()

    def _run(self, run: Run, member: Member) -> bool:
        """Run messages in order up to the first failure; False when this thread was replaced."""
        for holding in run:
            if not holding.take():
                return True
            self._holdings.start(holding)
            self._crew.began(member, holding.started)
            crash_points.reach("handler.starting", holding.message)
            report = self._execute(holding)
            crash_points.reach("handler.returned", holding.message)
            if not self.finished(holding, report):
                return False
            if type(report) in ENDS_RUN or holding.message.stage:
                return True
        return True

    def _execute(self, holding: Holding) -> Report | Release:
        message, handler = holding.message, holding.handler
        try:
            if self._loop is not None and handler is not None and handler.is_async:
                return self._loop.wait_for(holding)
            return execute(message, self._handlers, using=self.using)
        except BaseException as error:  # noqa: BLE001 - logged
            # Never expected; but this thread must live, and its message be settled.
            crash(
                "execution_failed",
                "message {name} {message_id} of queue {queue} could not be executed",
                error,
                name=message.name,
                message_id=message.id,
                queue=message.queue,
            )
            policy = None if handler is None else handler.policy
            return Failure(
                message.id, error=describe(error).text, token=message.token, policy=policy
            )

    def finished(self, holding: Holding, report: Report | Release) -> bool:
        """Hand an outcome back; False when the pump has given up on it and replaced its thread."""
        if not holding.decide():
            return False
        if type(report) in ENDS_RUN or holding.message.stage:
            if isinstance(report, Release):
                self._holdings.give_back(holding)
            elif isinstance(report, Completion):
                self._holdings.finish_stage(holding, int(report.status))
            else:
                self._holdings.finish(holding, failed=type(report) in FAILED)
            behind = _released(behind for behind in holding.behind if behind.take())
            self.outcomes.append([(holding, report), *behind])
        else:
            self._holdings.finish(holding, failed=False)
            self.outcomes.append(((holding, report),))
        if len(self.outcomes) >= self.enough or not self._crew.runs:
            self._tell()
        return True

    def _tell(self) -> None:
        if not self._woken.is_set():
            self._woken.set()

    def give_back(self, run: Iterable[Holding]) -> None:
        """Return messages that were not started."""
        self.abandon(holding for holding in run if holding.take())

    def abandon(self, run: Iterable[Holding]) -> None:
        """Return messages whatever their handlers are doing; their own results come too late."""
        if outcomes := _released(run):
            self.outcomes.append(outcomes)

    def cancel(self, holding: Holding, now: float) -> bool:
        """
        End an async handler that runs, so that its `finally` does; its message is given back.

        False: it cannot be cancelled. It may still ignore that.
        """
        if holding.task is None or self._loop is None:
            return False
        holding.cancelled = now
        self._loop.cancel(holding)
        return True

    def give_up(self, holding: Holding, report: Failure) -> bool:
        """Report in place of a handler that does not end, and make up for its slot."""
        if not self.finished(holding, report):
            return False
        if holding.on_loop and self._loop is not None:
            self._loop.add_slot()
        else:
            self._crew.add_thread()
        return True


def _released(run: Iterable[Holding]) -> list[Outcome]:
    return [
        (holding, Release(holding.message.id, 0, holding.message.token))
        for holding in run
        if holding.decide()
    ]


class _Loop:
    """One event loop in a thread; at most `concurrency` runs at a time."""

    def __init__(self, executors: Executors, holdings: Holdings, handlers: Registry) -> None:
        self._executors = executors
        self._holdings = holdings
        self._handlers = handlers
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(executors.concurrency)
        self._runs: set[asyncio.Future[None]] = set()
        threading.Thread(target=self._serve, name="deadletter-loop", daemon=True).start()

    def put(self, runs: Sequence[Run]) -> None:
        self._loop.call_soon_threadsafe(self._begin, runs)

    def wait_for(self, holding: Holding) -> Report | Release:
        """Run one async message of a mixed stream for an executor thread."""
        return asyncio.run_coroutine_threadsafe(self._execute(holding), self._loop).result()

    def add_slot(self) -> None:
        self._loop.call_soon_threadsafe(self._slots.release)

    def cancel(self, holding: Holding) -> None:
        self._loop.call_soon_threadsafe(self._cancel, holding)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        copies.end_with_process(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _begin(self, runs: Sequence[Run]) -> None:
        for run in runs:
            task = self._loop.create_task(self._run(run))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)

    def _cancel(self, holding: Holding) -> None:
        """In the thread of the loop: a handler that has returned meanwhile is left alone."""
        if holding.task is not None:
            holding.task.cancel()

    async def _run(self, run: Run) -> None:
        await self._slots.acquire()
        if await self._run_in_order(run):
            self._slots.release()

    async def _run_in_order(self, run: Run) -> bool:
        """The async form of `Executors._run`; False when its slot was replaced."""
        for holding in run:
            if not holding.take():
                return True
            self._holdings.start(holding)
            crash_points.reach("handler.starting", holding.message)
            report = await self._execute(holding)
            crash_points.reach("handler.returned", holding.message)
            if not self._executors.finished(holding, report):
                return False
            if type(report) in ENDS_RUN or holding.message.stage:
                return True
        return True

    async def _execute(self, holding: Holding) -> Report | Release:
        # A fresh context each, as in `execute`.
        context = contextvars.copy_context()
        try:
            return await self._loop.create_task(self._call(holding), context=context)
        except BaseException as error:  # noqa: BLE001 - a handler may even cancel its own task
            return failure(holding.message, holding.handler, error, holding.before)

    async def _call(self, holding: Holding) -> Report | Release:
        """The async form of `execute`."""
        message = holding.message
        handler = admit(message, self._handlers)
        if isinstance(handler, Failure):
            return handler
        with tracing.execution_span(message):
            return await self._handle(holding, handler)

    async def _handle(self, holding: Holding, handler: Handler) -> Report | Release:
        message = holding.message
        # The deadline is the handler's own: the pump steps in only when it ignores this.
        limit = asyncio.timeout(handler.seconds)
        holding.task = asyncio.current_task()
        try:
            async with limit:
                result = await copies.wait_for(handler.function(message))
        except BaseException as raised:  # noqa: BLE001 - a failure of the message
            holding.task = None
            if holding.cancelled:
                # Not its fault: the worker goes, and whatever it raised on the way is no failure.
                await sync_to_async(close_old_connections)()
                return Release(message.id, 0, message.token)
            error = TookTooLong(handler.seconds) if limit.expired() else raised
            # The ORM's threads of async code are not ours: drop what the error may have broken.
            await sync_to_async(close_old_connections)()
            return failure(message, handler, error, holding.before)
        holding.task = None
        if is_activity(message) and not message.stage:
            return await sync_to_async(self._finish)(holding, handler, result)
        return completion(message, monotonic() - message.started)

    def _finish(self, holding: Holding, handler: Handler, result: Any) -> Report:
        """Tell the flow of an activity, in the thread of the ORM."""
        close_old_connections()
        try:
            return finish(holding.message, handler, result, holding.before, self._executors.using)
        finally:
            close_old_connections()
