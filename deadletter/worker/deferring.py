"""What if a message cannot even be started? Nobody knows its name, or nobody can read it."""

from __future__ import annotations

import logging

from ..backoff import UNDECODABLE
from ..exceptions import Undecodable
from ..failure_policy import Policy
from ..lifecycle import Claimed, Failure, Outcome, Scheduled
from ..logs import event
from ..status import FailureReason


def unregistered(message: Claimed, *, version: str | None = None) -> Failure:
    """The delay is that of the message's own count, which the row has: see `say_deferred`."""
    what = message.name if version is None else f"{message.name} {version}"
    return Failure(
        message.id,
        error=f"no handler is registered for {what!r}",
        reason=FailureReason.UNREGISTERED,
        deferred=True,
        token=message.token,
        message=message,
        version=version,
    )


def say_deferred(failure: Failure, outcome: Outcome) -> None:
    """Warn that a message waits because nobody here knows its name."""
    message, version = failure.message, failure.version
    if not isinstance(outcome, Scheduled) or outcome.deferral is None or message is None:
        return
    count, limit = outcome.deferral.count, outcome.deferral.limit
    event(
        logging.WARNING,
        "message_unregistered",
        "message name {what} (message {message_id} of queue {queue}) is not registered, attempt "
        "{attempt} of {max_attempts}: waiting {delay:.1f} s (will poison in {remaining} more "
        "attempts)",
        what=message.name if version is None else f"{message.name} {version}",
        name=message.name,
        message_id=message.id,
        queue=message.queue,
        attempt=count,
        max_attempts=limit,
        remaining="unlimited" if limit is None else max(0, max(limit, 1) - count),
        delay=outcome.deferral.delay.total_seconds(),
        version=version,
        instance=message.instance,
    )


def undecodable(message: Claimed, error: Undecodable, policy: Policy | None = None) -> Failure:
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
        policy=policy,
    )


def exhausted(message: Claimed, policy: Policy) -> Failure:
    """The handler allows fewer attempts than the queue, and earlier ones were lost in crashes."""
    return Failure(
        message.id,
        error=f"given up after {message.attempt - 1} attempts that never reported",
        reason=FailureReason.WORKER_LOST,
        token=message.token,
        policy=policy,
    )
