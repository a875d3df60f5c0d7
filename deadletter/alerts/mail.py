"""A notice as an e-mail, through the site's own mail settings."""

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
from . import wording
from .deadline import call_within
from .failing import DeliveryFailed

TEMPLATE = "deadletter/alerts/notice.txt"


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """
    Send one mail, all of it within the channel's timeout.

    Raises DeliveryFailed, also when it would reach nobody.
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
            # The same at every attempt: a mailbox that has it already can leave it out.
            "Message-ID": f"<{notice['id']}@deadletter.invalid>",
            # No out-of-office answers, please (RFC 3834).
            "Auto-Submitted": "auto-generated",
        },
    )
    _limit(message, channel.timeout)
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        # Inside a transaction, of a test: a backend that stores mails needs this connection.
        sent = message.send()
    else:
        sent = call_within(channel.timeout, message.send, channel=channel.name)
    if not sent:
        raise DeliveryFailed(channel.name, "the mail backend sent nothing")


def _limit(message: EmailMessage, seconds: float) -> None:
    """Let no single answer of the mail server take longer, unless the settings say how long."""
    if django.VERSION < (6, 1):  # since then MAILERS has its own
        backend = message.get_connection()  # type: ignore[attr-defined]
        if getattr(backend, "timeout", seconds) is None:
            backend.timeout = seconds


def render(notice: dict[str, Any]) -> tuple[str, str]:
    """Return the subject, one line, and the text, in the language of the site."""
    with translation.override(settings.LANGUAGE_CODE):
        subject = wording.subject(notice)
        context = {
            "notice": notice,
            "at": wording.moment(notice["at"]),
            "alerts": [_shown(alert) for alert in notice["alerts"]],
            "omitted": [(wording.event_word(e), n) for e, n in notice["omitted"].items()],
        }
        return notice_line(subject, 200), render_to_string(TEMPLATE, context)


def admins() -> list[str]:
    """Return the addresses of ADMINS: pairs of name and address, or since Django 6 addresses."""
    return [entry if isinstance(entry, str) else entry[1] for entry in settings.ADMINS]


def reason(error: Exception) -> str:
    """Name a failure by its class, and by the answer of the server where there was one."""
    code = getattr(error, "smtp_code", None)
    return f"{type(error).__name__}{f' {code}' if code else ''}"


def _shown(alert: dict[str, Any]) -> dict[str, Any]:
    return {
        **alert,
        "word": wording.what_happens(alert),
        "counted": wording.counted(alert),
        "left_text": wording.left(alert),
        "since_text": wording.moment(alert["since"]),
        "last_text": wording.moment(alert["last_at"]),
        "ended_text": wording.moment(alert["ended_at"]),
        "error_lines": alert["error"].split("\n") if alert["error"] else [],
        "streams": ", ".join(alert["detail"].get("streams") or ()),
        "running": ", ".join(alert["detail"].get("running") or ()),
    }
