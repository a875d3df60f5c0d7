"""
Delivery of a notice to Slack, as a message of an incoming webhook.

Text from outside is in elements of plain text, which Slack does not interpret: no mention, no link
and no formatting comes from a name or an error. The summary and the link are escaped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.utils import translation
from django.utils.translation import gettext

from ..alert_rules import Channel
from .facts import alert_facts, headline, omitted_lines, summary
from .http_post import post

#: The limits of Slack: blocks of a message, characters of a header, of a section and of the text.
BLOCKS, HEADER, SECTION, TEXT = 50, 150, 3_000, 3_000
#: Alerts of one message: four blocks each, beside the header and the rest.
LISTED = 11
#: Characters of an error.
ERROR = 1_000


def deliver(channel: Channel, notice: dict[str, Any]) -> None:
    """
    Post the notice once, within the channel's timeout.

    Raises: DeliveryFailed for any answer except 2xx.
    """
    post(channel, json.dumps(render(notice)).encode())


def render(notice: dict[str, Any]) -> dict[str, Any]:
    """Return the message, in the language of the site."""
    with translation.override(settings.LANGUAGE_CODE):
        text = summary(notice)
        shown, omitted = notice["alerts"][:LISTED], Counter(notice["omitted"])
        omitted.update(alert["event"] for alert in notice["alerts"][LISTED:])
        blocks = [{"type": "header", "text": _plain(text, HEADER)}]
        for alert in shown:
            blocks += _blocks(alert)
        blocks += [_section(line) for line in omitted_lines(omitted)]
    return {
        # For notifications; Slack interprets it, so it is escaped and cannot mention anybody.
        "text": escape(text)[:TEXT],
        "mrkdwn": False,
        "link_names": False,
        "unfurl_links": False,
        "blocks": blocks[:BLOCKS],
    }


def _blocks(alert: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield _section(headline(alert))
    facts = " · ".join(f"{label}: {value}" for label, value in alert_facts(alert))
    yield {"type": "context", "elements": [_plain(facts or "-", 2_000)]}
    if alert["error"]:
        error = {"type": "text", "text": _cut(alert["error"], ERROR)}
        block = {"type": "rich_text_preformatted", "elements": [error]}
        yield {"type": "rich_text", "elements": [block]}
    if alert["url"]:
        address = escape(alert["url"]).replace("|", "%7C")
        label = escape(gettext("Open in the admin"))
        link = f"<{address}|{label}>"
        if len(link) <= SECTION:
            text = {"type": "mrkdwn", "text": link, "verbatim": True}
            yield {"type": "section", "text": text}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _plain(text, SECTION)}


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": _cut(text, limit), "emoji": False}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def escape(text: str) -> str:
    """Escape the three characters that Slack interprets: no mention, channel or link begins."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
