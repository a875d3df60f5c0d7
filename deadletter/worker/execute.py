"""What happens when a message meets its handler? The result is a value, whatever is raised."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from asgiref.sync import async_to_sync
from django.db import transaction

from .. import copies, crash_points, tracing
from ..descriptions import describe
from ..exceptions import LeaseLost, Permanent, Retry, Undecodable
from ..instance_events import read_event
from ..instances import Flow, UnknownVersion, finish_activity, take_turn
from ..lifecycle import Claimed, Completion, Failure
from ..lifecycle.failures import complete_last
from ..logs import crash, event, is_detailed
from ..models import Kind
from ..status import STAGE_BITS, Status
from .caller import Caller
from .deferring import exhausted, undecodable, unregistered
from .failure import classify
from .registry import Handler, Registry, registry
from .thread_connections import prepare, tidy


@dataclass(frozen=True)
class Settled:
    """The handler and the completion of its message were committed together: nothing to report."""

    id: int
    #: How long its handler took.
    seconds: float | None = None
    #: It finished a stage, not the message.
    is_stage: bool = False


@dataclass(frozen=True)
class Overtaken:
    """The lease was gone when an atomic handler wanted to commit: its work was rolled back."""

    id: int


@dataclass(frozen=True)
class Rest:
    """The messages of a run behind its first failure: to be given back unprocessed."""

    messages: Sequence[Claimed]


_ACTIVITY = Kind.ACTIVITY.value

Report = Completion | Failure | Settled | Overtaken


def execute(
    message: Claimed,
    handlers: Registry = registry,
    *,
    using: str | None = None,
    caller: Caller | None = None,
) -> Report:
    """
    Hand one message to its handler and say what became of it. Never raises.

    `caller` is for `testing.drain`, which runs handlers in its own thread: Ctrl-C is raised.
    """
    handler = admit(message, handlers)
    if isinstance(handler, Failure):
        return handler
    if not tracing.is_enabled():
        return _run(message, handler, using, caller)
    with tracing.execution_span(message):
        return _run(message, handler, using, caller)


def _run(message: Claimed, handler: Handler, using: str | None, caller: Caller | None) -> Report:
    before = message.status
    try:
        # A fresh context each: translations, time zones and the like end with the message.
        context = contextvars.copy_context()
        if caller is not None or not handler.is_plain:
            # Around all of it as well: hooks of the commit are the application's too.
            result = context.run(copies.call, _call, handler, message, using, caller)
        else:
            prepare(message.started)
            result = context.run(copies.call, handler.function, message)
            if result is not None:
                result = context.run(_finish, result)
    except _LostInCommit as lost:
        tracing.mark_failed(describe(lost))
        return Overtaken(message.id)
    except UnknownVersion as unknown:
        _tidy(caller)
        return unregistered(message, version=unknown.version)
    except BaseException as error:
        _tidy(caller)
        if caller is not None and isinstance(error, KeyboardInterrupt):
            # Somebody ends the test. In a worker Ctrl-C never comes here: it is a signal.
            raise
        return failure(message, handler, error, before)
    if left := _tidy(caller):
        return failure(message, handler, TransactionLeftOpen(left), before)
    if is_activity(message) and not handler.atomic and not message.stage:
        return finish(message, handler, result, before, using)
    seconds = monotonic() - message.started
    if handler.atomic:
        return Settled(message.id, seconds, bool(message.stage))
    return completion(message, seconds)


def admit(message: Claimed, handlers: Registry) -> Handler | Failure:
    """Find the handler and read the payload, or say why the message cannot even be started."""
    handler = handlers.find(message)
    if handler is None:
        return unregistered(message)
    try:
        payload = message.payload  # decoded here, after the attempt was counted
        if handler.versions is not None:
            read_event(payload)
    except Undecodable as error:
        return undecodable(message, error, handler.policy)
    if handler.policy is not None:
        limit = message.max_attempts = handler.limit(message.max_attempts)
        if limit is not None and message.attempt > max(limit, 1):
            return exhausted(message, handler.policy)
    message.started = monotonic()
    return handler


def completion(message: Claimed, seconds: float) -> Completion:
    """Report a handler that returned: the message is finished, or the stage that it named."""
    if message.stage:
        return Completion(message.id, reached(message), message.token, seconds, message)
    return Completion(message.id, Status.PUBLISHED, message.token, seconds, message)


def reached(message: Claimed) -> int:
    """Return the stages that a message has reached, whatever its handler made of the number."""
    return int(message.status) & STAGE_BITS


class TookTooLong(TimeoutError):
    """An attempt was ended because it took longer than its handler's timeout."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(f"took longer than {seconds} s")


class TransactionLeftOpen(Exception):
    """A handler returned inside a transaction it had begun; it was rolled back."""

    def __init__(self, aliases: Sequence[str]) -> None:
        super().__init__(
            f"the handler returned with a transaction open on {', '.join(aliases)}; it was rolled "
            "back. End every transaction that a handler begins."
        )


def _tidy(caller: Caller | None) -> list[str]:
    return tidy() if caller is None else caller.tidy()


def _call(handler: Handler, message: Claimed, using: str | None, caller: Caller | None) -> Any:
    """Return what the handler returned; an atomic one has completed its message as well."""
    if caller is None or not caller.is_in_transaction:
        prepare(message.started)
    if handler.versions is not None:
        _take_turn(handler.versions, message, using)
        return None
    if handler.atomic:
        return _call_atomic(handler, message, using, caller)
    if handler.is_async:
        result = _finish(_in_time(handler, message))
    else:
        result = _finish(copies.call(handler.function, message))
    _check_time(handler, message, caller)
    return result


async def _in_time(handler: Handler, message: Claimed) -> Any:
    """Cancel an async handler at its time limit, as the event loop of a worker does."""
    limit = asyncio.timeout(handler.seconds)
    try:
        async with limit:
            return await copies.wait_for(handler.function(message))
    except BaseException:
        if limit.expired():
            raise TookTooLong(handler.seconds) from None
        raise


def _check_time(handler: Handler, message: Claimed, caller: Caller | None) -> None:
    """Refuse a result that comes too late; in a worker the pump has done so before it came."""
    if caller is None or handler.seconds is None:
        return
    if monotonic() - message.started > handler.seconds:
        raise TookTooLong(handler.seconds)


def _call_atomic(
    handler: Handler, message: Claimed, using: str | None, caller: Caller | None
) -> Any:
    """Return what the handler returned when its work and its completion are committed."""
    commits: list[str] = []
    result = None
    try:
        with transaction.atomic(using=using):
            if caller is None or not caller.is_in_transaction:
                # First in line: hooks of the handler run behind it, and may raise.
                transaction.on_commit(lambda: commits.append("done"), using=using)
            # A copy of this process must not end the transaction, whose socket it shares.
            result = _finish(copies.call(handler.function, message))
            _check_time(handler, message, caller)
            _complete(message, result, using)
    except BaseException as error:
        if not commits:
            raise
        crash(
            "commit_hook_failed",
            "message {name} {message_id} of queue {queue} is completed; after the commit a "
            "function that its handler gave to on_commit failed",
            error,
            name=message.name,
            message_id=message.id,
            queue=message.queue,
            attempt=message.attempt,
        )
    return result


def _finish(result: Any) -> Any:
    """
    Run what an `async def` returned, wrapped or not: its work has not even begun.

    What it does by `sync_to_async`, and so the ORM, comes back to this thread and its connections:
    into the transaction of an atomic handler, or of a test.
    """
    if not inspect.iscoroutine(result):
        return result
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def run() -> Any:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await copies.wait_for(result)

    try:
        return async_to_sync(run)()
    except KeyboardInterrupt:
        # This thread was interrupted, not the loop's: Python would wait for that one at its end.
        for loop, task in running:
            if task is not None and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        raise


def is_activity(message: Claimed) -> bool:
    """Whether somebody waits for what the handler returns."""
    return message.kind == _ACTIVITY and message.instance is not None


def finish(
    message: Claimed, handler: Handler, result: Any, before: Status, using: str | None
) -> Report:
    """Complete an activity together with the message that carries its result."""
    try:
        finish_activity(message, result, using=using)
    except LeaseLost as lost:
        tracing.mark_failed(describe(lost))
        return Overtaken(message.id)
    except Exception as error:  # noqa: BLE001 - a failure of the message, not of the worker
        return failure(message, handler, error, before)
    return Settled(message.id, monotonic() - message.started)


class _LostInCommit(Exception):
    """Rolls an atomic handler back: somebody else holds its message now."""

    def __init__(self) -> None:
        super().__init__("the lease was gone before the commit; everything was rolled back")


def _take_turn(versions: Mapping[str, Flow], message: Claimed, using: str | None) -> None:
    try:
        take_turn(message, versions, using=using)
    except LeaseLost as error:
        raise _LostInCommit from error


def _complete(message: Claimed, result: Any, using: str | None) -> None:
    try:
        if is_activity(message) and not message.stage:
            finish_activity(message, result, using=using)
            return
        complete_last(
            message.token,
            message.id,
            seconds=monotonic() - message.started,
            wait=message.lease,
            stage=reached(message) if message.stage else 0,
            using=using,
        )
        crash_points.reach("atomic.completed", message)
    except LeaseLost as error:
        raise _LostInCommit from error


def _kept(message: Claimed, handler: Handler | None) -> int:
    """Return the stages that outlive a failed attempt: not one that was to be committed with it."""
    is_undone = handler is not None and handler.atomic
    return reached(message) & ~message.stage if is_undone else reached(message)


def failure(
    message: Claimed, handler: Handler | None, error: BaseException, before: Status
) -> Failure:
    """Turn what a handler raised into a value, and say so in the log."""
    described = describe(error)
    reason = classify(error)
    event(
        logging.WARNING,
        "message_failed",
        "failed message {name} {message_id} of queue {queue}, attempt {attempt} of {max_attempts} "
        "({reason}): {error}",
        name=message.name,
        message_id=message.id,
        queue=message.queue,
        stream=message.stream,
        attempt=message.attempt,
        max_attempts=message.max_attempts,
        reason=reason.name,
        error=described.text,
        exc_info=error if is_detailed() else None,
    )
    tracing.mark_failed(described)
    return Failure(
        message.id,
        error=described.text,
        reason=reason,
        completed=0 if message.status is before else _kept(message, handler) & ~before,
        delay=error.after if isinstance(error, Retry) else None,
        permanent=isinstance(error, Permanent),
        traceback=described.traceback,
        exception=described.exception,
        frame=described.frame,
        seconds=monotonic() - message.started if message.started else None,
        token=message.token,
        message=message,
        raised=error,
        policy=None if handler is None else handler.policy,
    )
