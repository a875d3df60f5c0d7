"""Which FailureReason does an exception stand for?"""

from __future__ import annotations

import asyncio
import errno
import json
import smtplib
import socket
import ssl
import urllib.error
from concurrent.futures import CancelledError

from django.core.exceptions import ValidationError
from django.db import InterfaceError, OperationalError

from ..conf import get_settings
from ..exceptions import MessageRejected, Undecodable
from ..logs import crash
from ..status import FailureReason


def classify(error: BaseException) -> FailureReason:
    """
    Ask the exception (`failure_reason`), then DEADLETTER["CLASSIFY"], then the list below.

    Never raises: a classifier that fails leaves the exception what it is.
    """
    try:
        own = getattr(error, "failure_reason", None)
    except Exception as problem:  # noqa: BLE001 - of the application, logged
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
        except Exception as problem:  # noqa: BLE001 - of the application, logged
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
    """Return the reason of an exception of Python, Django or a client library; else None."""
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
    """An answer with a status is no trouble of the transport; a timeout is named by its cause."""
    if isinstance(error, urllib.error.HTTPError):
        return None
    if isinstance(error.reason, TimeoutError):
        return FailureReason.TIMEOUT_EXCEEDED
    return FailureReason.TRANSPORT_UNAVAILABLE


#: First match wins: TimeoutError is also an OSError.
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

#: Of an OSError that has no class of its own. Not every platform has all of them.
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

#: By package and name, so that none of these packages is imported; subclasses are found by their
#: bases, the nearest first. Errors of a status, a URL or a redirect are not among them.
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
    # In its first major version a refused connection is a ConnectTimeoutError as well.
    ("urllib3", "NewConnectionError"): _TRANSPORT,
    ("urllib3", "TimeoutError"): _TIMEOUT,
    ("urllib3", "MaxRetryError"): _TRANSPORT,
    ("urllib3", "ProtocolError"): _TRANSPORT,
    ("urllib3", "ProxyError"): _TRANSPORT,
    ("urllib3", "SSLError"): _TRANSPORT,
    ("aiohttp", "ClientConnectionError"): _TRANSPORT,
    ("aiohttp", "ClientPayloadError"): _TRANSPORT,
}
