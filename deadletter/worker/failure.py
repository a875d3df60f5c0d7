"""
Failures as values: the reason for an exception, and messages whose handler cannot be started.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import smtplib
import socket
import ssl
import urllib.error
from concurrent.futures import CancelledError
from dataclasses import replace
from time import monotonic

from django.core.exceptions import ValidationError
from django.db import InterfaceError, OperationalError

from .. import tracing
from ..backoff import UNDECODABLE
from ..conf import get_settings
from ..descriptions import Description, describe
from ..exceptions import MessageRejected, PayloadMismatch, Permanent, Retry, Undecodable
from ..failure_policy import Policy
from ..lifecycle import Claimed, Failure, Outcome, Scheduled
from ..logs import crash, event, is_detailed
from ..status import STAGE_BITS, FailureReason, Status
from .failure_groups import own_fingerprint, tags_of
from .registry import Handler


def handler_failure(
    message: Claimed, handler: Handler | None, error: BaseException, before: Status
) -> Failure:
    """Return what a handler raised as a Failure, and log it. `before`: the stages at its start."""
    return _failure(message, handler, error, describe(error), before)


def mismatched(message: Claimed, handler: Handler, error: PayloadMismatch) -> Failure:
    """Return the failure of a message whose payload is not what its handler expects, and log it."""
    # The place in the class, not in the code that checks it, so that each field has its own group.
    described = replace(describe(error.with_traceback(None)), frame=error.origin)
    return _failure(message, handler, error, described, message.status)


def _failure(
    message: Claimed,
    handler: Handler | None,
    error: BaseException,
    described: Description,
    before: Status,
) -> Failure:
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
        completed=0 if message.status is before else _kept_stages(message, handler) & ~before,
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
        fingerprint=own_fingerprint(error, message),
        tags=() if handler is None else tags_of(message, handler),
    )


def _kept_stages(message: Claimed, handler: Handler | None) -> int:
    """
    Return the stages that outlive a failed attempt.

    An atomic handler's own is rolled back, and no event was stored for one that publishes.
    """
    reached = int(message.status) & STAGE_BITS
    if handler is None:
        return reached
    if handler.atomic:
        return reached & ~message.stage
    if handler.publication is not None:
        return reached & ~(message.stage & Status.EVENT_STORED)
    return reached


def unregistered(message: Claimed, *, version: str | None = None) -> Failure:
    """
    Return the deferral of a message whose name, or version of a flow, has no handler here.

    Its delay comes from a count on the row, so the transaction computes it: see `log_deferral`.
    """
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


def log_deferral(failure: Failure, outcome: Outcome) -> None:
    """Log that a message waits because its name has no handler here."""
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
    """Return the deferral of a message whose payload cannot be decoded, and log it."""
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
    """
    Return the failure of a message that has no attempt left.

    The handler allows fewer attempts than the queue, and earlier attempts ended in crashes.
    """
    return Failure(
        message.id,
        error=f"given up after {message.attempt - 1} attempts that never reported",
        reason=FailureReason.WORKER_LOST,
        token=message.token,
        policy=policy,
    )


def classify(error: BaseException) -> FailureReason:
    """
    Return the reason for an exception; never raises.

    Order: the exception's own `failure_reason`, DEADLETTER["CLASSIFY"], the tables below. A
    classifier that raises is logged and skipped.
    """
    try:
        own = getattr(error, "failure_reason", None)
    except Exception as problem:  # noqa: BLE001 - application code; logged
        crash(
            "classifier_failed",
            "failure_reason of {exception} raised",
            problem,
            exception=type(error).__name__,
        )
        own = None
    if own is not None:
        return FailureReason.read(own)
    custom = get_settings().classify
    if custom is not None:
        try:
            answer = custom(error)
        except Exception as problem:  # noqa: BLE001 - application code; logged
            crash(
                "classifier_failed",
                "DEADLETTER['CLASSIFY'] raised for {exception}",
                problem,
                exception=type(error).__name__,
            )
            answer = None
        if answer is not None:
            return FailureReason.read(answer)
    return _known(error) or FailureReason.HANDLER_EXCEPTION


def _known(error: BaseException) -> FailureReason | None:
    """Return the reason of a known exception of Python, Django or a client library, or None."""
    if isinstance(error, urllib.error.URLError):
        return _of_url(error)
    for kinds, reason in _DEFAULTS:
        if isinstance(error, kinds):
            return reason
    for kind in type(error).__mro__:
        package = str(kind.__module__).partition(".")[0]
        if named := _NAMED.get((package, kind.__name__)):
            return named
    if isinstance(error, OSError) and error.errno in _NETWORK:
        return FailureReason.TRANSPORT_UNAVAILABLE
    return None


def _of_url(error: urllib.error.URLError) -> FailureReason | None:
    """Return the reason of a URLError: by its cause, or None for an answer with an HTTP status."""
    if isinstance(error, urllib.error.HTTPError):
        return None
    if isinstance(error.reason, TimeoutError):
        return FailureReason.TIMEOUT_EXCEEDED
    return FailureReason.TRANSPORT_UNAVAILABLE


#: The first match wins: TimeoutError is also an OSError.
_DEFAULTS: tuple[tuple[tuple[type[BaseException], ...], FailureReason], ...] = (
    ((TimeoutError, asyncio.CancelledError, CancelledError), FailureReason.TIMEOUT_EXCEEDED),
    ((ValidationError, MessageRejected), FailureReason.VALIDATION_FAILURE),
    ((Undecodable, json.JSONDecodeError, UnicodeError), FailureReason.SERIALIZATION_ERROR),
    (
        (
            ConnectionError,
            socket.gaierror,
            socket.herror,
            ssl.SSLError,
            smtplib.SMTPConnectError,
            smtplib.SMTPServerDisconnected,
        ),
        FailureReason.TRANSPORT_UNAVAILABLE,
    ),
    ((OperationalError, InterfaceError), FailureReason.DEPENDENCY_FAILURE),
)

#: Errors of the network that are a plain OSError. Not every platform has all of them.
_NETWORK = frozenset(
    getattr(errno, name)
    for name in (
        "EADDRNOTAVAIL",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "ENONET",
        "ENOTCONN",
    )
    if hasattr(errno, name)
)

_TIMEOUT = FailureReason.TIMEOUT_EXCEEDED
_TRANSPORT = FailureReason.TRANSPORT_UNAVAILABLE

#: By package and class name, so that none of these packages is imported. Subclasses are found
#: through their bases, the nearest first. Errors about a status, a URL or a redirect are left out.
_NAMED: dict[tuple[str, str], FailureReason] = {
    ("requests", "ConnectTimeout"): _TIMEOUT,
    ("requests", "Timeout"): _TIMEOUT,
    ("requests", "ConnectionError"): _TRANSPORT,
    ("requests", "ChunkedEncodingError"): _TRANSPORT,
    ("httpx", "TimeoutException"): _TIMEOUT,
    ("httpx", "NetworkError"): _TRANSPORT,
    ("httpx", "ProxyError"): _TRANSPORT,
    ("httpx", "RemoteProtocolError"): _TRANSPORT,
    ("httpcore", "TimeoutException"): _TIMEOUT,
    ("httpcore", "NetworkError"): _TRANSPORT,
    ("httpcore", "ProxyError"): _TRANSPORT,
    ("httpcore", "RemoteProtocolError"): _TRANSPORT,
    # In urllib3 1.x a refused connection is a ConnectTimeoutError as well.
    ("urllib3", "NewConnectionError"): _TRANSPORT,
    ("urllib3", "TimeoutError"): _TIMEOUT,
    ("urllib3", "MaxRetryError"): _TRANSPORT,
    ("urllib3", "ProtocolError"): _TRANSPORT,
    ("urllib3", "ProxyError"): _TRANSPORT,
    ("urllib3", "SSLError"): _TRANSPORT,
    ("aiohttp", "ClientConnectionError"): _TRANSPORT,
    ("aiohttp", "ClientPayloadError"): _TRANSPORT,
}
