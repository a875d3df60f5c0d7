"""The failure reason of an exception."""

from __future__ import annotations

import errno
import json
import smtplib
import socket
import ssl
from concurrent.futures import CancelledError
from email.message import Message
from http.client import RemoteDisconnected
from urllib.error import HTTPError, URLError

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, InterfaceError, OperationalError

from deadletter import FailureReason, MessageRejected
from deadletter.exceptions import Undecodable
from deadletter.worker.failure import classify


class Own(Exception):
    failure_reason = FailureReason.DEPENDENCY_FAILURE


class Raising(Exception):
    @property
    def failure_reason(self):
        raise RuntimeError("a property's own trouble")


def by_hand(error):
    """A classifier as a setting would name it."""
    return FailureReason.TRANSPORT_UNAVAILABLE if isinstance(error, KeyError) else None


def broken(error):
    raise RuntimeError("a classifier's own trouble")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError(), FailureReason.HANDLER_EXCEPTION),
        (ValidationError("no"), FailureReason.VALIDATION_FAILURE),
        (MessageRejected("name", "no"), FailureReason.VALIDATION_FAILURE),
        (TimeoutError(), FailureReason.TIMEOUT_EXCEEDED),
        (CancelledError(), FailureReason.TIMEOUT_EXCEEDED),
        (json.JSONDecodeError("no", "", 0), FailureReason.SERIALIZATION_ERROR),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "no"), FailureReason.SERIALIZATION_ERROR),
        (Undecodable("no"), FailureReason.SERIALIZATION_ERROR),
        (ConnectionResetError(), FailureReason.TRANSPORT_UNAVAILABLE),
        (ConnectionRefusedError(), FailureReason.TRANSPORT_UNAVAILABLE),
        (OperationalError(), FailureReason.DEPENDENCY_FAILURE),
        (InterfaceError(), FailureReason.DEPENDENCY_FAILURE),
        (IntegrityError(), FailureReason.HANDLER_EXCEPTION),
        (OSError(), FailureReason.HANDLER_EXCEPTION),
        (FileNotFoundError(2, "no such file"), FailureReason.HANDLER_EXCEPTION),
        (OSError(errno.ENOSPC, "no space"), FailureReason.HANDLER_EXCEPTION),
        (OSError(errno.EHOSTUNREACH, "no route"), FailureReason.TRANSPORT_UNAVAILABLE),
        (OSError(errno.ENETUNREACH, "no network"), FailureReason.TRANSPORT_UNAVAILABLE),
        (OSError(errno.ECONNREFUSED, "refused"), FailureReason.TRANSPORT_UNAVAILABLE),
        (OSError(errno.EPIPE, "broken pipe"), FailureReason.TRANSPORT_UNAVAILABLE),
        (OSError(errno.ETIMEDOUT, "timed out"), FailureReason.TIMEOUT_EXCEEDED),
        (socket.gaierror(-2, "name not known"), FailureReason.TRANSPORT_UNAVAILABLE),
        (socket.herror(1, "host not known"), FailureReason.TRANSPORT_UNAVAILABLE),
        (URLError("no route"), FailureReason.TRANSPORT_UNAVAILABLE),
        (URLError(socket.gaierror(-2, "no")), FailureReason.TRANSPORT_UNAVAILABLE),
        (URLError(TimeoutError("timed out")), FailureReason.TIMEOUT_EXCEEDED),
        (HTTPError("http://x", 503, "no", Message(), None), FailureReason.HANDLER_EXCEPTION),
        (smtplib.SMTPConnectError(421, "no"), FailureReason.TRANSPORT_UNAVAILABLE),
        (smtplib.SMTPServerDisconnected("no"), FailureReason.TRANSPORT_UNAVAILABLE),
        (smtplib.SMTPDataError(554, b"refused"), FailureReason.HANDLER_EXCEPTION),
        (smtplib.SMTPRecipientsRefused({}), FailureReason.HANDLER_EXCEPTION),
        (ssl.SSLError(1, "handshake"), FailureReason.TRANSPORT_UNAVAILABLE),
        (ssl.SSLCertVerificationError(1, "expired"), FailureReason.TRANSPORT_UNAVAILABLE),
        (RemoteDisconnected("no answer"), FailureReason.TRANSPORT_UNAVAILABLE),
        (Own(), FailureReason.DEPENDENCY_FAILURE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_stands_for_a_reason(error, reason):
    assert classify(error) is reason


#: Bases and subclasses as these packages define them: module, and a class behind its bases.
LIBRARIES = {
    "requests.exceptions": """
        RequestException(OSError) HTTPError(RequestException) ConnectionError(RequestException)
        ProxyError(ConnectionError) SSLError(ConnectionError) Timeout(RequestException)
        ConnectTimeout(ConnectionError,Timeout) ReadTimeout(Timeout)
        ChunkedEncodingError(RequestException) InvalidURL(RequestException,ValueError)
        TooManyRedirects(RequestException)""",
    "httpx": """
        HTTPError(Exception) RequestError(HTTPError) TransportError(RequestError)
        TimeoutException(TransportError) ConnectTimeout(TimeoutException)
        ReadTimeout(TimeoutException) PoolTimeout(TimeoutException) NetworkError(TransportError)
        ConnectError(NetworkError) ReadError(NetworkError) ProxyError(TransportError)
        ProtocolError(TransportError) RemoteProtocolError(ProtocolError)
        LocalProtocolError(ProtocolError) UnsupportedProtocol(TransportError)
        HTTPStatusError(HTTPError)""",
    "httpcore._exceptions": """
        TimeoutException(Exception) ConnectTimeout(TimeoutException) NetworkError(Exception)
        ConnectError(NetworkError) ProtocolError(Exception) RemoteProtocolError(ProtocolError)""",
    "urllib3.exceptions": """
        HTTPError(Exception) PoolError(HTTPError) RequestError(PoolError)
        MaxRetryError(RequestError) TimeoutError(HTTPError) ReadTimeoutError(TimeoutError)
        ConnectTimeoutError(TimeoutError) NewConnectionError(ConnectTimeoutError,PoolError)
        NameResolutionError(NewConnectionError) ProtocolError(HTTPError) SSLError(HTTPError)
        LocationValueError(ValueError,HTTPError)""",
    "aiohttp.client_exceptions": """
        ClientError(Exception) ClientConnectionError(ClientError)
        ClientOSError(ClientConnectionError,OSError) ClientConnectorError(ClientOSError)
        ServerConnectionError(ClientConnectionError) ServerDisconnectedError(ServerConnectionError)
        ServerTimeoutError(ServerConnectionError,PythonTimeout) ClientPayloadError(ClientError)
        ClientResponseError(ClientError)""",
}


def library(module: str) -> dict[str, type[BaseException]]:
    """Make the exceptions of a package that is not installed."""
    known = {"Exception": Exception, "OSError": OSError, "ValueError": ValueError}
    known["PythonTimeout"] = TimeoutError
    found = dict(known)
    for text in LIBRARIES[module].split():
        name, bases = text.rstrip(")").split("(")
        made = type(name, tuple(found[base] for base in bases.split(",")), {"__module__": module})
        found[name] = made
    return {name: made for name, made in found.items() if name not in known}


@pytest.mark.parametrize(
    ("module", "timeouts", "connections"),
    [
        (
            "requests.exceptions",
            "Timeout ConnectTimeout ReadTimeout",
            "ConnectionError ProxyError SSLError ChunkedEncodingError",
        ),
        (
            "httpx",
            "TimeoutException ConnectTimeout ReadTimeout PoolTimeout",
            "NetworkError ConnectError ReadError ProxyError RemoteProtocolError",
        ),
        (
            "httpcore._exceptions",
            "TimeoutException ConnectTimeout",
            "NetworkError ConnectError RemoteProtocolError",
        ),
        (
            "urllib3.exceptions",
            "TimeoutError ReadTimeoutError ConnectTimeoutError",
            "NewConnectionError NameResolutionError MaxRetryError ProtocolError SSLError",
        ),
        (
            "aiohttp.client_exceptions",
            "ServerTimeoutError",
            (
                "ClientConnectionError ClientOSError ClientConnectorError ServerConnectionError"
                " ServerDisconnectedError ClientPayloadError"
            ),
        ),
    ],
)
def test_errors_of_client_libraries_are_known_without_importing_them(module, timeouts, connections):
    expected = dict.fromkeys(timeouts.split(), FailureReason.TIMEOUT_EXCEEDED)
    expected |= dict.fromkeys(connections.split(), FailureReason.TRANSPORT_UNAVAILABLE)
    made = library(module)
    assert expected.keys() <= made.keys()

    for name, kind in made.items():
        own = type("OfTheApplication", (kind,), {})
        reason = expected.get(name, FailureReason.HANDLER_EXCEPTION)
        assert (name, classify(kind()), classify(own())) == (name, reason, reason)


def test_a_class_of_the_same_name_elsewhere_means_nothing():
    made = type("NetworkError", (Exception,), {"__module__": "shop.requests"})
    nameless = type("NetworkError", (Exception,), {"__module__": None})

    assert classify(made()) is FailureReason.HANDLER_EXCEPTION
    assert classify(nameless()) is FailureReason.HANDLER_EXCEPTION


@pytest.mark.parametrize(
    ("value", "reason"),
    [(1, FailureReason.TRANSPORT_UNAVAILABLE), (1234, FailureReason.UNKNOWN),
     ("text", FailureReason.UNKNOWN), ([], FailureReason.UNKNOWN)],
    ids=repr,
)  # fmt: skip
def test_an_exception_may_bring_a_number(value, reason):
    error = ValueError()
    error.failure_reason = value

    assert classify(error) is reason


def test_an_exception_whose_reason_raises_is_a_plain_failure():
    assert classify(Raising()) is FailureReason.HANDLER_EXCEPTION


def test_settings_may_name_a_classifier(settings):
    settings.DEADLETTER = {"CLASSIFY": f"{__name__}.by_hand"}

    assert classify(KeyError()) is FailureReason.TRANSPORT_UNAVAILABLE
    assert classify(TimeoutError()) is FailureReason.TIMEOUT_EXCEEDED


def test_the_exceptions_own_word_comes_first(settings):
    settings.DEADLETTER = {"CLASSIFY": lambda error: FailureReason.UNKNOWN}

    assert classify(Own()) is FailureReason.DEPENDENCY_FAILURE
    assert classify(ValueError()) is FailureReason.UNKNOWN


def test_a_classifier_that_raises_leaves_the_exception_what_it_is(settings):
    settings.DEADLETTER = {"CLASSIFY": broken}

    assert classify(TimeoutError()) is FailureReason.TIMEOUT_EXCEEDED
