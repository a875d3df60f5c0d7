"""What happens when a message meets its handler? The result is a value, whatever is raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db import connections, transaction

from ..backoff import UNDECODABLE
from ..conf import get_settings
from ..exceptions import Permanent, Retry, Undecodable
from ..failures import describe
from ..lifecycle import Claimed, Completion, Failure
from ..status import FailureReason, Status
from .classify import classify
from .registry import Handler, Registry, registry

logger = logging.getLogger("deadletter")

Report = Completion | Failure


@dataclass(frozen=True)
class Rest:
    """The messages of a run behind its first failure: to be given back unprocessed."""

    messages: Sequence[Claimed]


def execute_run(run: Sequence[Claimed], handlers: Registry = registry) -> Iterator[Report | Rest]:
    """Run the messages of one stream in order; stop at the first that does not complete."""
    for place, message in enumerate(run, 1):
        report = execute(message, handlers)
        yield report
        if isinstance(report, Failure):
            if place < len(run):
                yield Rest(run[place:])
            return


def execute(message: Claimed, handlers: Registry = registry) -> Report:
    """Hand one message to its handler and say what became of it. Never raises."""
    handler = handlers.get(message.name)
    if handler is None:
        return _unregistered(message)
    before = message.status
    try:
        message.payload  # noqa: B018 - decoded here, after the attempt was counted
    except Undecodable as error:
        return _undecodable(message, error)
    try:
        _call(handler, message)
    except BaseException as error:  # noqa: BLE001 - a failure of the message, not the worker
        return _failure(message, error, completed=message.status & ~before)
    return Completion(message.id, Status.PUBLISHED, message.token)


def _call(handler: Handler, message: Claimed) -> None:
    if handler.is_async:
        asyncio.run(handler.function(message))
        return
    # A test runs inside a transaction: a database error of the handler must not break it.
    if connections[transaction.get_connection().alias].in_atomic_block:
        with transaction.atomic():
            handler.function(message)
    else:
        handler.function(message)


def _failure(message: Claimed, error: BaseException, *, completed: Status) -> Failure:
    described = describe(error)
    reason = classify(error)
    logger.warning(
        "failed message %s %s of queue %s, attempt %s of %s (%s): %s",
        message.name,
        message.id,
        message.queue,
        message.attempt,
        message.max_attempts,
        reason.name,
        described.text[:200].replace("\n", " "),
    )
    return Failure(
        message.id,
        error=described.text,
        reason=reason,
        completed=completed,
        delay=error.after if isinstance(error, Retry) else None,
        permanent=isinstance(error, Permanent),
        traceback=described.traceback,
        exception=described.exception,
        frame=described.frame,
        token=message.token,
    )


def _unregistered(message: Claimed) -> Failure:
    delay = get_settings().unregistered.delay(message.attempt)
    remaining = "unlimited"
    if message.max_attempts is not None:
        remaining = str(max(0, message.max_attempts - message.attempt))
    logger.warning(
        "message name %s (message %s of queue %s) is not registered, attempt %s of %s: waiting "
        "%.1f s (will poison in %s more attempts)",
        message.name,
        message.id,
        message.queue,
        message.attempt,
        message.max_attempts,
        delay.total_seconds(),
        remaining,
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
    logger.warning(
        "message %s %s of queue %s cannot be decoded, attempt %s of %s: %s",
        message.name,
        message.id,
        message.queue,
        message.attempt,
        message.max_attempts,
        error,
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
