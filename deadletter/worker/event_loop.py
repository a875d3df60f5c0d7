"""The event loop of a worker: runs `async def` handlers, in one thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from .. import crash_points, forks, tracing
from ..lifecycle import Failure, Release
from .execute import Report, TookTooLong, admit, completion, finish, is_activity, keep_result
from .failure import handler_failure
from .in_flight import ENDS_RUN, HandlerOutcomes, InFlight, InFlightMessage, Run
from .registry import Handler, Registry


class EventLoop:
    """One event loop in a thread; at most `concurrency` runs at a time."""

    def __init__(
        self,
        *,
        concurrency: int,
        in_flight: InFlight,
        handlers: Registry,
        outcomes: HandlerOutcomes,
        using: str | None,
    ) -> None:
        self._in_flight = in_flight
        self._handlers = handlers
        self._outcomes = outcomes
        self._using = using
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(concurrency)
        self._runs: set[asyncio.Future[None]] = set()
        threading.Thread(target=self._serve, name="deadletter-loop", daemon=True).start()

    def put(self, runs: Sequence[Run]) -> None:
        self._loop.call_soon_threadsafe(self._begin, runs)

    def wait_for(self, item: InFlightMessage) -> Report | Release:
        """Run one async message of a mixed stream for the calling executor thread."""
        return asyncio.run_coroutine_threadsafe(self._execute(item), self._loop).result()

    def add_slot(self) -> None:
        self._loop.call_soon_threadsafe(self._slots.release)

    def cancel(self, item: InFlightMessage) -> None:
        self._loop.call_soon_threadsafe(self._cancel, item)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        forks.end_with_process(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _begin(self, runs: Sequence[Run]) -> None:
        for run in runs:
            task = self._loop.create_task(self._run(run))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)

    def _cancel(self, item: InFlightMessage) -> None:
        """Cancel the handler unless it has returned meanwhile. Runs in the loop's thread."""
        if item.task is not None:
            item.task.cancel()

    async def _run(self, run: Run) -> None:
        await self._slots.acquire()
        if await self._run_in_order(run):
            self._slots.release()

    async def _run_in_order(self, run: Run) -> bool:
        """The async form of `Executors._run`; False if the slot was replaced."""
        for item in run:
            if not item.take():
                return True
            self._in_flight.start(item)
            crash_points.reach("handler.starting", item.message)
            report = await self._execute(item)
            crash_points.reach("handler.returned", item.message)
            if not self._outcomes.add(item, report):
                return False
            if type(report) in ENDS_RUN or item.message.stage:
                return True
        return True

    async def _execute(self, item: InFlightMessage) -> Report | Release:
        # A context of its own for each message, as in `execute`.
        context = contextvars.copy_context()
        try:
            return await self._loop.create_task(self._call(item), context=context)
        except BaseException as error:  # noqa: BLE001 - a handler may even cancel its own task
            return handler_failure(item.message, item.handler, error, item.before)

    async def _call(self, item: InFlightMessage) -> Report | Release:
        """The async form of `execute`."""
        message = item.message
        handler = admit(message, self._handlers)
        if isinstance(handler, Failure):
            return handler
        with tracing.execution_span(message):
            return await self._handle(item, handler)

    async def _handle(self, item: InFlightMessage, handler: Handler) -> Report | Release:
        message = item.message
        # The timeout cancels the handler; the pump steps in only if the handler ignores that.
        limit = asyncio.timeout(handler.seconds)
        item.task = asyncio.current_task()
        try:
            async with limit:
                result = await forks.wait_for(handler.function(message))
            keep_result(message, handler, result)
        except BaseException as raised:  # noqa: BLE001 - the failure of a message
            item.task = None
            if item.cancelled:
                # A stop cancelled the handler: whatever it raised is no failure of the message.
                await sync_to_async(close_old_connections)()
                return Release(message.id, 0, message.token)
            error = TookTooLong(handler.seconds) if limit.expired() else raised
            # Async code uses the ORM in threads of asgiref: drop connections the error may have
            # broken there.
            await sync_to_async(close_old_connections)()
            return handler_failure(message, handler, error, item.before)
        item.task = None
        if is_activity(message) and not message.stage:
            return await sync_to_async(self._finish)(item, handler, result)
        return completion(message, monotonic() - message.started)

    def _finish(self, item: InFlightMessage, handler: Handler, result: Any) -> Report:
        """Complete an activity. Runs in the thread of the ORM."""
        close_old_connections()
        try:
            return finish(item.message, handler, result, item.before, self._using)
        finally:
            close_old_connections()
