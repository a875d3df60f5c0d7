"""
Delivery of a notice as an HTTP request, signed so that the receiver can verify sender and time.

The scheme is that of standardwebhooks.com: the headers webhook-id, webhook-timestamp and
webhook-signature; the signature is HMAC-SHA256 over "id.timestamp.body". The id is the same for all
attempts, so that a receiver can drop duplicates. The timestamp is that of the attempt, so that a
receiver can refuse old requests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.utils import translation

from ..alert_rules import Channel
from .deadline import DeliveryFailed, call_within
from .notice import notice_subject

#: Bytes of an answer that are read, and characters that are reported. Only the text of an error
#: matters.
ANSWER, TOLD = 10_000, 500
#: Parts of the address up to this length are words; longer ones may be secrets.
_WORD = 5


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """
    Post the notice once, within the channel's timeout.

    Raises: DeliveryFailed for any answer except 2xx.
    """
    with translation.override(settings.LANGUAGE_CODE):
        text = notice_subject(notice)
    body = json.dumps({**notice, "text": text}, separators=(",", ":")).encode()
    stamp = str(int(time.time()))
    request = urllib.request.Request(  # noqa: S310 - the settings accept http and https only
        channel.url,
        data=body,
        method="POST",
        headers={
            "Content-Type": "application/json",
            "User-Agent": "deadletter",
            "webhook-id": notice["id"],
            "webhook-timestamp": stamp,
            "webhook-signature": sign(channel.secrets, notice["id"], stamp, body),
        },
    )
    cuttable = _CuttableConnection()
    call_within(
        channel.timeout,
        lambda: _post(channel, request, cuttable),
        channel=channel.name,
        cut=cuttable.cut,
    )


def _post(channel: Channel, request: urllib.request.Request, cuttable: _CuttableConnection) -> None:
    try:
        # The timeout of each step is longer than that of the whole, which ends the delivery.
        with _opener(cuttable).open(request, timeout=2 * channel.timeout):
            return
    except urllib.error.HTTPError as error:
        raise DeliveryFailed(channel.name, _refusal(error, channel.url)) from None
    except urllib.error.URLError as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {type(error).__name__}") from None
    finally:
        cuttable.close()


def sign(secrets: Sequence[bytes], id: str, stamp: str, body: bytes) -> str:
    """Return a signature for each secret, separated by blanks: a receiver checks any of them."""
    content = f"{id}.{stamp}.".encode() + body
    digests = (hmac.new(secret, content, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


class _CuttableConnection:
    """The connection of one request, which another thread can cut at any time."""

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


def _refusal(error: urllib.error.HTTPError, url: str) -> str:
    with error:
        if 300 <= error.code < 400:
            return f"answered {error.code}, a redirect; put the final address into the settings"
        try:
            answer = error.read(ANSWER).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            answer = ""
    # Many servers repeat the requested address in their error page.
    for part in sorted(_parts(url), key=len, reverse=True):
        answer = answer.replace(part, "…")
    return f"answered {error.code}: {answer[:TOLD]}".rstrip(": ")


def _parts(url: str) -> Iterator[str]:
    """Yield the parts of the address behind the host, as they are and decoded."""
    parts = urllib.parse.urlsplit(url)
    for piece in re.split(r"[/?&=;#]", f"{parts.path}?{parts.query}#{parts.fragment}"):
        if len(piece) > _WORD:
            yield from (piece, urllib.parse.unquote(piece))
