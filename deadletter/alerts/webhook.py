"""
A notice as an HTTP request, signed so that the receiver can tell who sent it, and when.

The scheme is that of standardwebhooks.com: the headers webhook-id, webhook-timestamp and
webhook-signature; the signature is HMAC-SHA256 over "id.timestamp.body". The id stays the same over
all attempts, so a receiver can leave out what it has; the timestamp is that of the attempt, so it
can refuse what is old.
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
from . import wording
from .deadline import call_within
from .failing import DeliveryFailed

#: Bytes of an answer that are read, and characters that are told; what it says matters only when it
#: is no success.
ANSWER, TOLD = 10_000, 500
#: Characters of a part of the address that are a word rather than a secret.
_WORD = 5


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """
    Post the notice once, all of it within the channel's timeout.

    Raises DeliveryFailed for anything but an answer of 2xx.
    """
    with translation.override(settings.LANGUAGE_CODE):
        text = wording.subject(notice)
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
    line = _Line()
    call_within(
        channel.timeout,
        lambda: _post(channel, request, line),
        channel=channel.name,
        cut=line.cut,
    )


def _post(channel: Channel, request: urllib.request.Request, line: _Line) -> None:
    try:
        # Of each single step; longer than all of it may take, so that one of them says so.
        with _opener(line).open(request, timeout=2 * channel.timeout):
            return
    except urllib.error.HTTPError as error:
        raise DeliveryFailed(channel.name, _refusal(error, channel.url)) from None
    except urllib.error.URLError as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {type(error).__name__}") from None
    finally:
        line.close()


def sign(secrets: Sequence[bytes], id: str, stamp: str, body: bytes) -> str:
    """Return a signature for each secret, separated by blanks: a receiver needs to know one."""
    content = f"{id}.{stamp}.".encode() + body
    digests = (hmac.new(secret, content, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


class _Line:
    """The connection of one request, which another thread can cut whatever it is busy with."""

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
            # A second handle of the same connection: TLS takes the first one for itself.
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


class _Http(urllib.request.HTTPHandler):
    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            return _on(self._line, http.client.HTTPConnection(host, **options))

        return self.do_open(connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            context = ssl.create_default_context()
            return _on(self._line, http.client.HTTPSConnection(host, context=context, **options))

        return self.do_open(connection, req)


def _on(line: _Line, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
    connection._create_connection = line.connect  # type: ignore[attr-defined]
    return connection


def _opener(line: _Line) -> urllib.request.OpenerDirector:
    """
    Speak HTTP and HTTPS, through the system's proxy, and follow no redirect.

    A POST that is redirected becomes a GET without the notice, and could lead anywhere.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Http(line),
        _Https(line),
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
    # Many a server repeats in its page for errors what it was asked for.
    for part in sorted(_parts(url), key=len, reverse=True):
        answer = answer.replace(part, "…")
    return f"answered {error.code}: {answer[:TOLD]}".rstrip(": ")


def _parts(url: str) -> Iterator[str]:
    """Return what stands behind the host, piece by piece, as it is and decoded."""
    parts = urllib.parse.urlsplit(url)
    for piece in re.split(r"[/?&=;#]", f"{parts.path}?{parts.query}#{parts.fragment}"):
        if len(piece) > _WORD:
            yield from (piece, urllib.parse.unquote(piece))
