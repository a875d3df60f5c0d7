"""What happens when a message meets its handler? The result is a value, whatever is raised."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from django.db import transaction

from .. import points, tracing
from ..backoff import UNDECODABLE
from ..conf import get_settings
from ..exceptions import LeaseLost, Permanent, Retry, Undecodable
from ..failures import describe
from ..lifecycle import Claimed, Completion, Failure, complete
from ..logs import event
from ..status import FailureReason, Status
from .classify import classify
from .hygiene import prepare, tidy
from .registry import Handler, Registry, registry


@dataclass(frozen=True)
class Settled:
    """The handler and the completion of its message were committed together: nothing to report."""

    id: int
    #: How long its handler took.
    seconds: float | None = None


@dataclass(frozen=True)
class Overtaken:
    """The lease was gone when an atomic handler wanted to commit: its work was rolled back."""

    id: int


@dataclass(frozen=True)
class Rest:
    """The messages of a run behind its first failure: to be given back unprocessed."""

    messages: Sequence[Claimed]


Report = Completion | Failure | Settled | Overtaken


def execute(
    message: Claimed,
    handlers: Registry = registry,
    *,
    using: str | None = None,
    nested: bool = False,
) -> Report:
    """
    Hand one message to its handler and say what became of it. Never raises.

    `nested` is for tests that run inside a transaction of their own.
    """
    handler = admit(message, handlers)
    if isinstance(handler, Failure):
        return handler
    if not tracing.is_on():
        return _run(message, handler, using, nested)
    with tracing.processing(message):
        return _run(message, handler, using, nested)


def _run(message: Claimed, handler: Handler, using: str | None, nested: bool) -> Report:
    before = message.status
    try:
        # A fresh context each: translations, time zones and the like end with the message.
        context = contextvars.copy_context()
        if nested or not handler.is_plain:
            context.run(_call, handler, message, using, nested)
        else:
            prepare(message.started)
            result = context.run(handler.function, message)
            if result is not None:
                context.run(_finish, result)
    except _LostInCommit as lost:
        tracing.failed(describe(lost))
        return Overtaken(message.id)
    except BaseException as error:  # noqa: BLE001 - a failure of the message, not of the worker
        if not nested:
            tidy()
        return failure(message, handler, error, before)
    if not nested and (left := tidy()):
        return failure(message, handler, TransactionLeftOpen(left), before)
    seconds = monotonic() - message.started
    if handler.atomic:
        return Settled(message.id, seconds)
    return Completion(message.id, Status.PUBLISHED, message.token, seconds)


def admit(message: Claimed, handlers: Registry) -> Handler | Failure:
    """Find the handler and read the payload, or say why the message cannot even be started."""
    handler = handlers.get(message.name)
    if handler is None:
        return _unregistered(message)
    try:
        message.payload  # noqa: B018 - decoded here, after the attempt was counted
    except Undecodable as error:
        return _undecodable(message, error)
    if handler.has_own_limit:
        message.max_attempts = handler.max_attempts
        if handler.max_attempts is not None and message.attempt > max(handler.max_attempts, 1):
            return _exhausted(message)
    message.started = monotonic()
    return handler


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


def _call(handler: Handler, message: Claimed, using: str | None, nested: bool) -> None:
    if not nested:
        prepare(message.started)
    if handler.atomic:
        with transaction.atomic(using=using):
            _finish(handler.function(message))
            _complete(message, using)
    elif not handler.is_async:
        # A test runs inside a transaction: a database error of the handler must not break it.
        with transaction.atomic(using=using):
            _finish(handler.function(message))
    else:
        asyncio.run(handler.function(message))


def _finish(result: object) -> None:
    """Run what a wrapped `async def` returned: its work has not even begun."""
    if inspect.iscoroutine(result):
        asyncio.run(result)


class _LostInCommit(Exception):
    """Rolls an atomic handler back: somebody else holds its message now."""

    def __init__(self) -> None:
        super().__init__("the lease was gone before the commit; everything was rolled back")


def _complete(message: Claimed, using: str | None) -> None:
    try:
        taken = monotonic() - message.started
        complete(message.token, [message.id], seconds=taken, using=using)
        points.reach("atomic.completed", message)
    except LeaseLost as error:
        raise _LostInCommit from error


def failure(
    message: Claimed, handler: Handler | None, error: BaseException, before: Status
) -> Failure:
    """Turn what a handler raised into a value, and say so in the log."""
    described = describe(error)
    reason = classify(error)
    delay = error.after if isinstance(error, Retry) else None
    if delay is None and handler is not None and handler.backoff is not None:
        delay = handler.backoff.delay(message.attempt)
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
    )
    tracing.failed(described)
    own_limit = handler.max_attempts if handler is not None and handler.has_own_limit else None
    return Failure(
        message.id,
        error=described.text,
        reason=reason,
        completed=message.status & ~before,
        delay=delay,
        permanent=isinstance(error, Permanent),
        max_attempts=own_limit,
        unlimited=handler is not None and handler.max_attempts is None,
        traceback=described.traceback,
        exception=described.exception,
        frame=described.frame,
        seconds=monotonic() - message.started if message.started else None,
        token=message.token,
    )


def _unregistered(message: Claimed) -> Failure:
    delay = get_settings().unregistered.delay(message.attempt)
    remaining: int | str = "unlimited"
    if message.max_attempts is not None:
        remaining = max(0, message.max_attempts - message.attempt)
    event(
        logging.WARNING,
        "message_unregistered",
        "message name {name} (message {message_id} of queue {queue}) is not registered, attempt "
        "{attempt} of {max_attempts}: waiting {delay:.1f} s (will poison in {remaining} more "
        "attempts)",
        name=message.name,
        message_id=message.id,
        queue=message.queue,
        attempt=message.attempt,
        max_attempts=message.max_attempts,
        remaining=remaining,
        delay=delay.total_seconds(),
    )
    return Failure(
        message.id,
        error=f"no handler is registered for {message.name!r}",
        reason=FailureReason.UNREGISTERED,
        delay=delay,
        deferred=True,
        token=message.token,
    )


def _undecodable(message: Claimed, error: Undecodable) -> Failure:
    event(
        logging.WARNING,
        "message_undecodable",
        "message {name} {message_id} of queue {queue} cannot be decoded, attempt {attempt} of "
        "{max_attempts}: {error}",
        name=message.name,
        message_id=message.id,
        queue=message.queue,
        attempt=message.attempt,
        max_attempts=message.max_attempts,
        error=str(error),
    )
    return Failure(
        message.id,
        error=f"the payload cannot be decoded: {error}",
        reason=FailureReason.SERIALIZATION_ERROR,
        delay=UNDECODABLE,
        deferred=True,
        exception="Undecodable",
        token=message.token,
    )


def _exhausted(message: Claimed) -> Failure:
    """The handler allows fewer attempts than the queue, and earlier ones were lost in crashes."""
    return Failure(
        message.id,
        error=f"given up after {message.attempt - 1} attempts that never reported",
        reason=FailureReason.WORKER_LOST,
        permanent=True,
        token=message.token,
    )
