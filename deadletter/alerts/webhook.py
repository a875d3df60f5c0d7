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
import json
import time
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.utils import translation

from ..alert_rules import Channel
from .http_post import post
from .notice import notice_subject


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """
    Post the notice once, within the channel's timeout.

    Raises: DeliveryFailed for any answer except 2xx.
    """
    with translation.override(settings.LANGUAGE_CODE):
        text = notice_subject(notice)
    body = json.dumps({**notice, "text": text}, separators=(",", ":")).encode()
    stamp = str(int(time.time()))
    headers = {
        "webhook-id": notice["id"],
        "webhook-timestamp": stamp,
        "webhook-signature": sign(channel.secrets, notice["id"], stamp, body),
    }
    post(channel, body, headers=headers)


def sign(secrets: Sequence[bytes], id: str, stamp: str, body: bytes) -> str:
    """Return a signature for each secret, separated by blanks: a receiver checks any of them."""
    content = f"{id}.{stamp}.".encode() + body
    digests = (hmac.new(secret, content, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
