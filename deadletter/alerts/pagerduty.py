"""
Delivery of a notice to PagerDuty: an event for each alert, by the Events API, version 2.

The key of an incident is made from that of the alert. An event tells the state at the time of the
delivery: an alert that is open triggers the incident, one that is over resolves it. So a late
notice opens nothing that has ended since.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.utils import translation
from django.utils.translation import gettext

from ..alert_rules import Channel
from ..conf import get_settings
from ..models import Alert, primary_alias
from .facts import alert_facts, headline, summary
from .http_post import post

#: Characters of a summary, and of the other texts of an event.
SUMMARY, TEXT = 1_024, 255


def deliver(channel: Channel, notice: dict[str, Any], *, using: str | None = None) -> None:
    """
    Post an event for each alert, all of them within the channel's timeout.

    Raises: DeliveryFailed for any answer except 2xx. All events are posted again then; they have
    the same keys.
    """
    events = render(channel, notice, using=using)
    if events:
        post(channel, *(json.dumps(event).encode() for event in events))


def render(
    channel: Channel, notice: dict[str, Any], *, using: str | None = None
) -> list[dict[str, Any]]:
    """Return the events, in the language of the site."""
    keys = [alert["key"] for alert in notice["alerts"]]
    rows = Alert.objects.using(primary_alias(using)).filter(key__in=keys, closed_at=None)
    open = set(rows.values_list("key", flat=True)) if keys else set()
    source = channel.source or _site() or "deadletter"
    with translation.override(settings.LANGUAGE_CODE):
        if notice["test"]:
            return [_test(channel, notice, source)]
        return [
            _trigger(channel, alert, source)
            if alert["key"] in open
            else _event(channel, "resolve", source, alert["key"])
            for alert in notice["alerts"]
        ]


def _site() -> str:
    policy = get_settings().alerts
    return urlsplit(policy.base_url).hostname or "" if policy is not None else ""


def _event(channel: Channel, action: str, source: str, key: str) -> dict[str, Any]:
    digest = hashlib.sha256(f"{source}\0{key}".encode("utf-8", "replace")).hexdigest()
    return {
        "routing_key": channel.secrets[0].decode(),
        "event_action": action,
        "dedup_key": f"deadletter-{digest[:40]}",
    }


def _trigger(channel: Channel, alert: dict[str, Any], source: str) -> dict[str, Any]:
    payload = {
        "summary": headline(alert)[:SUMMARY],
        "source": source,
        "severity": channel.severity,
        "timestamp": alert["since"],
        "class": alert["rule"],
        "custom_details": dict(alert_facts(alert)),
    }
    for key, value in (("component", alert["queue"]), ("group", alert["name"])):
        if value:
            payload[key] = value[:TEXT]
    if alert["error"]:
        payload["custom_details"]["error"] = alert["error"]
    event = {**_event(channel, "trigger", source, alert["key"]), "payload": payload}
    if alert["url"]:
        link = {"href": alert["url"], "text": gettext("Open in the admin")}
        event |= {"client": "deadletter", "client_url": alert["url"], "links": [link]}
    return event


def _test(channel: Channel, notice: dict[str, Any], source: str) -> dict[str, Any]:
    payload = {"summary": summary(notice), "source": source, "severity": "info"}
    return {**_event(channel, "trigger", source, f"test:{notice['id']}"), "payload": payload}
