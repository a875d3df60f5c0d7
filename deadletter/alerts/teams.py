"""
Delivery of a notice to Microsoft Teams, as an Adaptive Card for the webhook of a workflow.

Text from outside is in runs of text, which are not Markdown: no link and no formatting comes from a
name or an error. Functions of dates, which every text may contain, are broken up.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from django.conf import settings
from django.utils import translation
from django.utils.translation import gettext

from ..alert_rules import Channel
from .facts import alert_facts, headline, omitted_lines, summary
from .http_post import post

#: Bytes of a message that Teams accepts, less some for what the workflow adds.
LIMIT = 26_000
#: Characters and lines of an error; each line is an element of the card.
ERROR, LINES = 1_000, 12


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """
    Post the notice once, within the channel's timeout.

    Raises: DeliveryFailed for any answer except 2xx.
    """
    post(channel, render(notice))


def render(notice: dict[str, Any]) -> bytes:
    """Return the message as JSON: as many alerts as fit, in the language of the site."""
    with translation.override(settings.LANGUAGE_CODE):
        for count in range(len(notice["alerts"]), -1, -1):
            body = json.dumps(_message(notice, count)).encode()
            if len(body) <= LIMIT:
                break
    return body


def _message(notice: dict[str, Any], count: int) -> dict[str, Any]:
    omitted = Counter(notice["omitted"])
    omitted.update(alert["event"] for alert in notice["alerts"][count:])
    body = [_text(summary(notice), weight="Bolder", size="Medium")]
    body += [_alert(alert) for alert in notice["alerts"][:count]]
    body += [_text(line, isSubtle=True) for line in omitted_lines(omitted)]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
        "msteams": {"width": "Full"},
    }
    content_type = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": content_type, "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _alert(alert: dict[str, Any]) -> dict[str, Any]:
    items = [_text(headline(alert), weight="Bolder")]
    items += [_text(f"{label}: {value}", isSubtle=True) for label, value in alert_facts(alert)]
    if alert["error"]:
        lines = alert["error"][:ERROR].split("\n")[:LINES]
        items += [_text(line or " ", fontType="Monospace") for line in lines]
    if alert["url"]:
        open = {"type": "Action.OpenUrl", "title": gettext("Open in the admin")}
        items.append({"type": "ActionSet", "actions": [{**open, "url": alert["url"]}]})
    return {"type": "Container", "separator": True, "items": items}


def _text(text: str, **options: Any) -> dict[str, Any]:
    run = {"type": "TextRun", "text": text.replace("{{", "{ {"), **options}
    return {"type": "RichTextBlock", "inlines": [run]}
