"""Where can a person look at it? The pages of the admin, when the site says its address."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse

from ..models import Alert


def link_to(base_url: str, alert: Alert) -> str:
    """Return the address of the page that shows what the alert is about; "" without a base."""
    if not base_url:
        return ""
    page, query = page_of(alert)
    try:
        path = reverse(f"admin:deadletter_{page}")
    except NoReverseMatch:  # a site without the admin
        return base_url
    return f"{base_url}{path}{'?' if query else ''}{urlencode(query)}"


def page_of(alert: Alert) -> tuple[str, dict[str, str]]:
    """Return the page of the admin that shows what is there now, and its query."""
    rule, subject = alert.rule, alert.subject
    # What died last lies in a dead queue, where the list of records has nothing of it.
    is_buried = "buried_as" in alert.detail
    if rule == Alert.Rule.NEW_GROUP and is_buried:
        return "message_changelist", {"group": subject}
    if rule == Alert.Rule.NEW_GROUP:
        return "poisonrecord_records", {"fingerprint": subject}
    if rule in (Alert.Rule.POISON_RATE, Alert.Rule.POISON_DEPTH):
        return (
            ("poisonrecord_records", {"queue": subject})
            if subject
            else ("poisonrecord_changelist", {})
        )
    if rule == Alert.Rule.HALTED_STREAM:
        return "streams", {}
    if rule == Alert.Rule.WORKER_LOST:
        return "workerprocess_changelist", {"q": subject}
    if rule == Alert.Rule.BREAKER_OPENED:
        return "breaker_changelist", {"q": subject}
    if rule == Alert.Rule.STUCK_INSTANCE:
        return "instance_changelist", {"status": "stuck", "name": subject}
    return "queue_changelist", {}
