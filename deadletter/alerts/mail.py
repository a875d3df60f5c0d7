"""Delivery of a notice as an e-mail, with the mail settings of the site."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import connections
from django.template.loader import render_to_string
from django.utils import translation

from ..alert_rules import Channel
from ..text import notice_line
from .deadline import DeliveryFailed, call_within
from .notice import count_text, event_text, event_word, left_text, notice_subject, time_text

TEMPLATE = "deadletter/alerts/notice.txt"


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """
    Send one mail within the channel's timeout.

    Raises: DeliveryFailed, also when there are no recipients.
    """
    to = list(channel.to) or admins()
    if not to:
        raise DeliveryFailed(channel.name, "has no addresses, and the site's ADMINS are empty")
    subject, text = render(notice)
    prefix = "" if channel.to else settings.EMAIL_SUBJECT_PREFIX
    message = EmailMessage(
        subject=prefix + subject,
        body=text,
        from_email=channel.sender or (None if channel.to else settings.SERVER_EMAIL),
        to=to,
        headers={
            # The same for every attempt, so that a mailbox can drop a duplicate.
            "Message-ID": f"<{notice['id']}@deadletter.invalid>",
            # Suppresses out-of-office answers (RFC 3834).
            "Auto-Submitted": "auto-generated",
        },
    )
    _limit(message, channel.timeout)
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        # Inside the transaction of a test: a backend that stores mails needs this connection.
        sent = message.send()
    else:
        sent = call_within(channel.timeout, message.send, channel=channel.name)
    if not sent:
        raise DeliveryFailed(channel.name, "the mail backend sent nothing")


def _limit(message: EmailMessage, seconds: float) -> None:
    """Limit the wait for each answer of the mail server, unless the settings have a timeout."""
    if django.VERSION < (6, 1):  # since 6.1 MAILERS has its own timeout
        backend = message.get_connection()  # type: ignore[attr-defined]
        if getattr(backend, "timeout", seconds) is None:
            backend.timeout = seconds


def render(notice: dict[str, Any]) -> tuple[str, str]:
    """Return the subject, which is one line, and the text, in the language of the site."""
    with translation.override(settings.LANGUAGE_CODE):
        subject = notice_subject(notice)
        context = {
            "notice": notice,
            "at": time_text(notice["at"]),
            "alerts": [_shown(alert) for alert in notice["alerts"]],
            "omitted": [(event_word(e), n) for e, n in notice["omitted"].items()],
        }
        return notice_line(subject, 200), render_to_string(TEMPLATE, context)


def admins() -> list[str]:
    """Return the addresses of ADMINS: pairs of name and address, or since Django 6 addresses."""
    return [entry if isinstance(entry, str) else entry[1] for entry in settings.ADMINS]


def reason(error: Exception) -> str:
    """Describe a failure by its class and, if there is one, the code of the server's answer."""
    code = getattr(error, "smtp_code", None)
    return f"{type(error).__name__}{f' {code}' if code else ''}"


def _shown(alert: dict[str, Any]) -> dict[str, Any]:
    return {
        **alert,
        "word": event_text(alert),
        "counted": count_text(alert),
        "left_text": left_text(alert),
        "since_text": time_text(alert["since"]),
        "last_text": time_text(alert["last_at"]),
        "ended_text": time_text(alert["ended_at"]),
        "error_lines": alert["error"].split("\n") if alert["error"] else [],
        "streams": ", ".join(alert["detail"].get("streams") or ()),
        "running": ", ".join(alert["detail"].get("running") or ()),
    }
