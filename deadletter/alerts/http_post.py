"""
Requests to the receivers of notices: JSON by POST, without redirects, within a time limit.

No error text contains the address or a secret of a channel.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..alert_rules import Channel
from .deadline import DeliveryFailed, call_within

#: Bytes of an answer that are read, and characters that are reported. Only the text of an error
#: matters.
ANSWER, TOLD = 10_000, 500
#: Parts of the address up to this length are words; longer ones may be secrets.
_WORD = 5


def post(channel: Channel, *bodies: bytes, headers: Mapping[str, str] | None = None) -> None:
    """
    Post each body once, in order, all of them within the channel's timeout.

    Raises: DeliveryFailed for any answer except 2xx; the bodies after it are not posted.
    """
    cuttable = _CuttableConnection()
    requests = [
        urllib.request.Request(  # noqa: S310 - the settings accept http and https only
            channel.url,
            data=body,
            method="POST",
            headers={
                "Content-Type": "application/json",
                "User-Agent": "deadletter",
                **(headers or {}),
            },
        )
        for body in bodies
    ]
    call_within(
        channel.timeout,
        lambda: _post_all(channel, requests, cuttable),
        channel=channel.name,
        cut=cuttable.cut,
    )


def _post_all(
    channel: Channel, requests: Sequence[urllib.request.Request], cuttable: _CuttableConnection
) -> None:
    for request in requests:
        _post(channel, request, cuttable)


def _post(channel: Channel, request: urllib.request.Request, cuttable: _CuttableConnection) -> None:
    try:
        # The timeout of each step is longer than that of the whole, which ends the delivery.
        with _opener(cuttable).open(request, timeout=2 * channel.timeout):
            return
    except urllib.error.HTTPError as error:
        raise DeliveryFailed(channel.name, _refusal(error, channel)) from None
    except urllib.error.URLError as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {type(error).__name__}") from None
    finally:
        cuttable.close()


class _CuttableConnection:
    """The connection of the current request, which another thread can cut at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_cut = False
        self._socket: socket.socket | None = None

    def connect(self, *arguments: Any, **options: Any) -> socket.socket:
        """As `socket.create_connection`."""
        made = socket.create_connection(*arguments, **options)
        with self._lock:
            if self._is_cut:
                made.close()
                raise TimeoutError
            # A second handle of the same connection: TLS takes over the first.
            self._socket = made.dup()
        return made

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, cuttable: _CuttableConnection) -> None:
        super().__init__()
        self._cuttable = cuttable

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            return _use(self._cuttable, http.client.HTTPConnection(host, **options))

        return self.do_open(connection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, cuttable: _CuttableConnection) -> None:
        super().__init__()
        self._cuttable = cuttable

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            context = ssl.create_default_context()
            return _use(
                self._cuttable, http.client.HTTPSConnection(host, context=context, **options)
            )

        return self.do_open(connection, req)


def _use(
    cuttable: _CuttableConnection, connection: http.client.HTTPConnection
) -> http.client.HTTPConnection:
    connection._create_connection = cuttable.connect  # type: ignore[attr-defined]
    return connection


def _opener(cuttable: _CuttableConnection) -> urllib.request.OpenerDirector:
    """
    Return an opener for HTTP and HTTPS that uses the system's proxy and follows no redirect.

    A redirected POST would become a GET without the notice, to any address.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _HttpHandler(cuttable),
        _HttpsHandler(cuttable),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _refusal(error: urllib.error.HTTPError, channel: Channel) -> str:
    with error:
        if 300 <= error.code < 400:
            return f"answered {error.code}, a redirect; put the final address into the settings"
        try:
            answer = error.read(ANSWER).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            answer = ""
    # Many servers repeat the requested address, or a part of the request, in their error page.
    for part in sorted(_secret_parts(channel), key=len, reverse=True):
        answer = answer.replace(part, "…")
    return f"answered {error.code}: {answer[:TOLD]}".rstrip(": ")


def _secret_parts(channel: Channel) -> Iterator[str]:
    """Yield secrets, and the parts of the address behind the host, as they are and decoded."""
    yield from (secret.decode("utf-8", "replace") for secret in channel.secrets)
    parts = urllib.parse.urlsplit(channel.url)
    for piece in re.split(r"[/?&=;#]", f"{parts.path}?{parts.query}#{parts.fragment}"):
        if len(piece) > _WORD:
            yield from (piece, urllib.parse.unquote(piece))
