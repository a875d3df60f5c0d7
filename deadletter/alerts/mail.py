"""A notice as an e-mail, through the site's own mail settings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.template.loader import render_to_string
from django.utils import translation

from ..alert_rules import Channel
from . import wording
from .failing import DeliveryFailed

TEMPLATE = "deadletter/alerts/notice.txt"


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """Send one mail. Raises DeliveryFailed, also when it would reach nobody."""
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
    if not message.send():
        raise DeliveryFailed(channel.name, "the mail backend sent nothing")


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
        return wording.line(subject, 200), render_to_string(TEMPLATE, context)


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
        "word": wording.event_word(alert["event"]),
        "counted": wording.counted(alert),
        "since_text": wording.moment(alert["since"]),
        "last_text": wording.moment(alert["last_at"]),
        "ended_text": wording.moment(alert["ended_at"]),
        "error_lines": alert["error"].split("\n") if alert["error"] else [],
        "streams": ", ".join(alert["detail"].get("streams") or ()),
        "running": ", ".join(alert["detail"].get("running") or ()),
    }
