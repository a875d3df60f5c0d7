"""Call the handler of one message. The result is a value, whatever the handler raises."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from asgiref.sync import async_to_sync
from django.db import transaction

from .. import crash_points, forks, tracing
from ..descriptions import describe
from ..exceptions import LeaseLost, PayloadMismatch, Undecodable
from ..instance_events import read_event
from ..instances import Flow, UnknownVersion, finish_activity, take_turn
from ..lifecycle import Claimed, Completion, Failure, KeptResult, complete_last
from ..lifecycle.publications import prepare_event
from ..logs import crash
from ..models import Kind
from ..status import STAGE_BITS, Status
from .failure import exhausted, handler_failure, mismatched, undecodable, unregistered
from .registry import NOT_KEPT, Handler, Registry, registry
from .thread_connections import after_message, before_message


@dataclass(frozen=True)
class Settled:
    """The handler's work and its completion were committed together: nothing is left to report."""

    id: int
    #: Duration of the handler.
    seconds: float | None = None
    #: True if it finished a stage, not the message.
    is_stage: bool = False


@dataclass(frozen=True)
class Overtaken:
    """The lease was lost before an atomic handler could commit: its work was rolled back."""

    id: int


class CallingThread(Protocol):
    """The thread that calls `testing.drain`, which runs handlers in place of a worker's threads."""

    @property
    def is_in_transaction(self) -> bool:
        """True if the thread has a transaction open around the handler."""

    def after_message(self) -> list[str]:
        """Roll back what the handler left open; return the aliases of those databases."""


_ACTIVITY = Kind.ACTIVITY.value

Report = Completion | Failure | Settled | Overtaken


def execute(
    message: Claimed,
    handlers: Registry = registry,
    *,
    using: str | None = None,
    caller: CallingThread | None = None,
) -> Report:
    """
    Call the handler of one message and return the outcome. Never raises.

    `caller` is given by `testing.drain` only, which runs handlers in its own thread. Then Ctrl-C is
    raised.
    """
    handler = admit(message, handlers)
    if isinstance(handler, Failure):
        return handler
    if not tracing.is_enabled():
        return _run(message, handler, using, caller)
    with tracing.execution_span(message):
        return _run(message, handler, using, caller)


def _run(
    message: Claimed, handler: Handler, using: str | None, caller: CallingThread | None
) -> Report:
    before = message.status
    try:
        # A context of its own: the active translation and time zone end with the message.
        context = contextvars.copy_context()
        if caller is not None or not handler.is_plain:
            # Around everything: on_commit functions are application code, too.
            result = context.run(forks.call, _call, handler, message, using, caller)
        else:
            before_message(message.started)
            result = context.run(forks.call, handler.function, message)
            if result is not None:
                result = context.run(_finish, result)
            if handler.keeps_returned:
                keep_result(message, handler, result)
    except _LostInCommit as lost:
        tracing.mark_failed(describe(lost))
        return Overtaken(message.id)
    except UnknownVersion as unknown:
        _after_message(caller)
        return unregistered(message, version=unknown.version)
    except BaseException as error:
        _after_message(caller)
        if caller is not None and isinstance(error, KeyboardInterrupt):
            # A person ends the test. A worker never gets here: there, Ctrl-C is a signal.
            raise
        return handler_failure(message, handler, error, before)
    if left := _after_message(caller):
        return handler_failure(message, handler, TransactionLeftOpen(left), before)
    if is_activity(message) and not handler.atomic and not message.stage:
        return finish(message, handler, result, before, using)
    seconds = monotonic() - message.started
    if handler.atomic:
        return Settled(message.id, seconds, bool(message.stage))
    return completion(message, seconds)


def admit(message: Claimed, handlers: Registry) -> Handler | Failure:
    """Return the handler, with the payload read, or the failure to start the message."""
    handler = handlers.find(message)
    if handler is None:
        return unregistered(message)
    try:
        payload = message.payload  # decoded only here, after the attempt was counted
        if handler.versions is not None:
            read_event(payload)
    except Undecodable as error:
        return undecodable(message, error, handler.policy)
    if handler.policy is not None:
        limit = message.max_attempts = handler.limit(message.max_attempts)
        if limit is not None and message.attempt > max(limit, 1):
            return exhausted(message, handler.policy)
    if handler.payload is not None:
        try:
            message.payload = handler.payload.read(payload)
        except PayloadMismatch as error:
            return mismatched(message, handler, error)
        except KeyboardInterrupt:
            # A person ends `testing.drain`. In a worker, Ctrl-C is a signal.
            raise
        except BaseException as error:  # noqa: BLE001 - the class is application code; a SystemExit
            # would end the event loop, and pydantic's core raises its panics beside Exception.
            return handler_failure(message, handler, error, message.status)
    message.started = monotonic()
    return handler


def completion(message: Claimed, seconds: float) -> Completion:
    """Return the completion of a message, or of the stage that its handler named."""
    if message.stage:
        flags = reached(message)
        return Completion(message.id, flags, message.token, seconds, message, message.result)
    return Completion(message.id, Status.PUBLISHED, message.token, seconds, message, message.result)


def keep_result(message: Claimed, handler: Handler, result: Any) -> None:
    """
    Keep what the handler returned, to be stored or published with the completion.

    It is encoded here, so that a value that cannot be stored fails its own message and no batch.
    """
    value, event = None, None
    if handler.encode is not None and not message.stage and message.kind != _ACTIVITY:
        text = handler.encode(result)
        value = None if handler.kept == NOT_KEPT else text
    if handler.publication is not None:
        event = prepare_event(handler.publication, message, result)
    if value is not None or event is not None:
        message.result = KeptResult(value, handler.kept, message.progress, event)


def reached(message: Claimed) -> int:
    """Return the stages that a message has reached, without bits that are no stages."""
    return int(message.status) & STAGE_BITS


class TookTooLong(TimeoutError):
    """An attempt took longer than its handler's timeout and was ended."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(f"took longer than {seconds} s")


class TransactionLeftOpen(Exception):
    """A handler returned without ending a transaction it had begun; it was rolled back."""

    def __init__(self, aliases: Sequence[str]) -> None:
        super().__init__(
            f"the handler returned with a transaction open on {', '.join(aliases)}; it was rolled "
            "back. End every transaction that a handler begins."
        )


def _after_message(caller: CallingThread | None) -> list[str]:
    return after_message() if caller is None else caller.after_message()


def _call(
    handler: Handler, message: Claimed, using: str | None, caller: CallingThread | None
) -> Any:
    """Return the handler's result. An atomic handler has completed its message as well."""
    if caller is None or not caller.is_in_transaction:
        before_message(message.started)
    if handler.versions is not None:
        _take_turn(handler.versions, message, using)
        return None
    if handler.atomic:
        return _call_atomic(handler, message, using, caller)
    if handler.is_async:
        result = _finish(_in_time(handler, message))
    else:
        result = _finish(forks.call(handler.function, message))
    _check_time(handler, message, caller)
    keep_result(message, handler, result)
    return result


async def _in_time(handler: Handler, message: Claimed) -> Any:
    """Cancel an async handler at its timeout, as the event loop of a worker does."""
    limit = asyncio.timeout(handler.seconds)
    try:
        async with limit:
            return await forks.wait_for(handler.function(message))
    except BaseException:
        if limit.expired():
            raise TookTooLong(handler.seconds) from None
        raise


def _check_time(handler: Handler, message: Claimed, caller: CallingThread | None) -> None:
    """Raise if the handler exceeded its timeout. In a worker, the pump has ended it before."""
    if caller is None or handler.seconds is None:
        return
    if monotonic() - message.started > handler.seconds:
        raise TookTooLong(handler.seconds)


def _call_atomic(
    handler: Handler, message: Claimed, using: str | None, caller: CallingThread | None
) -> Any:
    """Return the handler's result after its work and its completion are committed."""
    commits: list[str] = []
    result = None
    try:
        with transaction.atomic(using=using):
            if caller is None or not caller.is_in_transaction:
                # Registered first: on_commit functions of the handler run after it, and may raise.
                transaction.on_commit(lambda: commits.append("done"), using=using)
            # A forked copy must not end the transaction: it shares the socket.
            result = _finish(forks.call(handler.function, message))
            _check_time(handler, message, caller)
            keep_result(message, handler, result)
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
    Run the coroutine that a handler returned; return any other result as it is.

    The handler may be a wrapped `async def`. Its `sync_to_async` calls, and so the ORM, run in this
    thread and on its connections: inside the transaction of an atomic handler, or of a test.
    """
    if not inspect.iscoroutine(result):
        return result
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def run() -> Any:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await forks.wait_for(result)

    try:
        return async_to_sync(run)()
    except KeyboardInterrupt:
        # Only this thread was interrupted. Python would wait for the loop's thread at exit.
        for loop, task in running:
            if task is not None and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        raise


def is_activity(message: Claimed) -> bool:
    """True if an instance waits for the handler's result."""
    return message.kind == _ACTIVITY and message.instance is not None


def finish(
    message: Claimed, handler: Handler, result: Any, before: Status, using: str | None
) -> Report:
    """Complete an activity and send its result to the instance, in one transaction."""
    try:
        finish_activity(message, result, using=using)
    except LeaseLost as lost:
        tracing.mark_failed(describe(lost))
        return Overtaken(message.id)
    except Exception as error:  # noqa: BLE001 - the failure of a message
        return handler_failure(message, handler, error, before)
    return Settled(message.id, monotonic() - message.started)


class _LostInCommit(Exception):
    """Rolls back an atomic handler whose lease was lost."""

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
            result=message.result,
            message=message,
            using=using,
        )
        crash_points.reach("atomic.completed", message)
    except LeaseLost as error:
        raise _LostInCommit from error
