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
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.utils import translation

from ..alert_rules import Channel
from . import wording
from .failing import DeliveryFailed

#: Bytes of an answer that are read, and characters that are told; what it says matters only when it
#: is no success.
ANSWER, TOLD = 10_000, 500
#: Characters of a part of the address that are a word rather than a secret.
_WORD = 5


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """Post the notice once. Raises DeliveryFailed for anything but an answer of 2xx."""
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
    try:
        with _opener().open(request, timeout=channel.timeout):
            return
    except urllib.error.HTTPError as error:
        raise DeliveryFailed(channel.name, _refusal(error, channel.url)) from None
    except urllib.error.URLError as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise DeliveryFailed(channel.name, f"cannot be reached: {type(error).__name__}") from None


def sign(secrets: Sequence[bytes], id: str, stamp: str, body: bytes) -> str:
    """Return a signature for each secret, separated by blanks: a receiver needs to know one."""
    content = f"{id}.{stamp}.".encode() + body
    digests = (hmac.new(secret, content, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _opener() -> urllib.request.OpenerDirector:
    """
    Speak HTTP and HTTPS, through the system's proxy, and follow no redirect.

    A POST that is redirected becomes a GET without the notice, and could lead anywhere.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
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
