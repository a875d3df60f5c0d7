"""
Notices: their content, texts and delivery, as messages of the internal queue.

One notice reports everything that is due at one time. Each channel gets it in a message of its own,
so that a channel that is down does not delay the others. A message names its channel: addresses and
secrets are read from the settings at delivery and are never in a row.

Names and errors come from outside. In a subject they are one line without control characters, so
that nothing becomes a header. In a body every line of an error is indented, so that it cannot be
taken for the notice itself.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext

from ..conf import get_settings
from ..lifecycle import send
from ..lifecycle.internal_queue import QUEUE, ensure_internal_queue
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Alert, Message, primary_alias
from ..payload import accept
from ..text import notice_block, notice_line, notice_value
from . import new_groups
from .context import COUNTED, MOVED_AS, AlertContext

#: The name of a message that carries a notice.
NAME = "deadletter.alert"
#: Alerts that a notice lists; it states the number of the others.
LISTED = 20
#: Characters of a subject.
SUBJECT = 150
RAISED, CONTINUES, RECOVERED = "raised", "continues", "recovered"
#: The order of the events in a notice.
EVENTS = {RAISED: 0, CONTINUES: 1, RECOVERED: 2}
#: Keys that every alert has, though the value may be null.
_PLAIN = ("queue", "name", "exception", "above", "within")


@dataclass(frozen=True)
class NoticeItem:
    """An alert and the event to report about it."""

    what: str
    alert: Alert


def announce(context: AlertContext, items: Sequence[NoticeItem]) -> int:
    """Send one notice about these alerts to every channel; return the number of messages."""
    if not items or not context.policy.channels:
        return 0
    chosen = _largest_first(context, items)
    alerts = [_described(context, item) for item in chosen[:LISTED]]
    omitted = Counter(item.what for item in chosen[LISTED:])
    notice = {
        "version": 1,
        "id": uuid.uuid4().hex,
        "at": context.now.isoformat(),
        "test": False,
        "alerts": alerts,
        "omitted": dict(omitted),
    }
    channels = [channel.name for channel in context.policy.channels]
    return _post(context.using, channels, _fitting(notice))


def send_test(*, using: str | None = None) -> list[str]:
    """Send a notice that says it is a test to every channel; return the channels."""
    policy = get_settings().alerts
    if policy is None or not policy.channels:
        return []
    alias = primary_alias(using)
    names = [channel.name for channel in policy.channels]

    def work(tx: Transaction) -> list[str]:
        notice = {
            "version": 1,
            "id": uuid.uuid4().hex,
            "at": tx.time().isoformat(),
            "test": True,
            "alerts": [],
            "omitted": {},
        }
        _post(alias, names, notice)
        return names

    return in_transaction(work, using=alias)


def describe_alert(
    context: AlertContext, what: str, alert: Alert, *, fresh: int = 0
) -> dict[str, Any]:
    """Return an alert as notices and signals carry it: plain values, text made safe."""
    detail = {key: notice_value(value) for key, value in alert.detail.items()}
    most = max(COUNTED, detail.get("above") or 0)
    found = {
        "event": what,
        "key": alert.key,
        "rule": alert.rule,
        "subject": notice_line(alert.subject),
        "since": alert.since.isoformat(),
        "last_at": alert.last_at.isoformat(),
        "ended_at": alert.closed_at and alert.closed_at.isoformat(),
        "count": min(alert.count, most),
        "more": alert.count > most,
        "new": fresh,
        # Filled in when the notice is delivered; see current_counts.py.
        "left": None,
        "left_more": False,
        "largest": None,
        **{key: detail.pop(key, None) for key in _PLAIN},
        "detail": detail,
        "error": notice_block(alert.error) if context.policy.errors else "",
        "url": link_to(context.policy.base_url, alert),
    }
    return {**found, "title": alert_title(found)}


def pending(*, using: str) -> int:
    """Count notices that wait to be delivered, up to a hundred."""
    rows = Message.objects.using(using).filter(queue__name=QUEUE, name=NAME)
    return int(rows.values("pk")[:100].count())


def _largest_first(context: AlertContext, items: Sequence[NoticeItem]) -> list[NoticeItem]:
    """Order by event, then by size: the first is in the subject, the last may be left out."""
    begun = [item.alert.since for item in items if item.alert.rule == new_groups.RULE]
    weights = new_groups.weights(context, min(begun)) if len(begun) > 1 else Counter()

    def sort_key(item: NoticeItem) -> tuple[Any, ...]:
        alert = item.alert
        size = max(weights[alert.subject], alert.count) if alert.rule == new_groups.RULE else 0
        return EVENTS[item.what], -size, alert.since, alert.key

    return sorted(items, key=sort_key)


def _described(context: AlertContext, item: NoticeItem) -> dict[str, Any]:
    fresh = new_groups.recount(context, item.alert) if item.alert.rule == new_groups.RULE else 0
    return describe_alert(context, item.what, item.alert, fresh=fresh)


def _fitting(notice: dict[str, Any]) -> dict[str, Any]:
    """Leave out the last alerts until the notice fits the site's limit for payloads."""
    limit = get_settings().payload_limit - 1_000
    while notice["alerts"] and len(accept(notice, limit=10**9).encode()) > limit:
        *kept, last = notice["alerts"]
        omitted = Counter(notice["omitted"])
        omitted[last["event"]] += 1
        notice = {**notice, "alerts": kept, "omitted": dict(omitted)}
    return notice


def _post(alias: str, channels: Sequence[str], notice: dict[str, Any]) -> int:
    ensure_internal_queue(alias)
    for name in channels:
        payload = {"channel": name, "notice": notice, "using": alias}
        send(NAME, payload, queue=QUEUE, using=alias)
    return len(channels)


# The page of the admin that an alert links to.


def link_to(base_url: str, alert: Alert) -> str:
    """Return the address of the page about the alert; "" if the site has no base address."""
    if not base_url:
        return ""
    page, query = page_of(alert)
    try:
        path = reverse(f"admin:deadletter_{page}")
    except NoReverseMatch:  # a site without the admin
        return base_url
    return f"{base_url}{path}{'?' if query else ''}{urlencode(query)}"


def page_of(alert: Alert) -> tuple[str, dict[str, str]]:
    """Return the admin page that shows the current state of the subject, and its query."""
    rule, subject = alert.rule, alert.subject
    # The latest dead letter is in a dead queue, where the list of poison records does not show it.
    is_moved = MOVED_AS in alert.detail
    if rule == Alert.Rule.NEW_GROUP and is_moved:
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
    if rule in (Alert.Rule.OUTBOX_AGE, Alert.Rule.BROKER_UNAVAILABLE):
        return "brokerstatus_changelist", {"q": subject}
    return "queue_changelist", {}


# The words.


def notice_subject(notice: dict[str, Any]) -> str:
    """Return the subject of a notice: its first alert, and the number of the others."""
    alerts = notice["alerts"]
    if notice["test"]:
        return gettext("deadletter: test of the alerts")
    rest = len(alerts) - 1 + sum(notice["omitted"].values())
    if not alerts:
        found = ngettext("%(n)d alert", "%(n)d alerts", rest + 1) % {"n": rest + 1}
        return f"deadletter: {found}"
    first = alerts[0]
    more = gettext(" (and %(n)d more)") % {"n": rest} if rest else ""
    head = f"deadletter: {event_text(first)}: "
    return head + notice_line(first["title"], SUBJECT - len(head) - len(more)) + more


def alert_title(alert: dict[str, Any]) -> str:
    """Describe an alert in one line."""
    values = {
        "name": notice_line(alert["name"] or "?"),
        # A rule that counts over all queues has no queue.
        "queue": notice_line(alert["queue"] or "*"),
        "cause": notice_line(alert["exception"] or "?"),
        "count": count_text(alert),
        "above": _grouped(alert["above"] or 0),
        "within": duration_text(alert["within"] or 0),
        "age": duration_text(alert["detail"].get("seconds") or 0),
    }
    text = _TITLES[alert["rule"]](alert) % values
    return notice_line(text + _largest_group(alert), SUBJECT)


def _largest_group(alert: dict[str, Any]) -> str:
    """Name the cause of most deaths, for an alert that counts all deaths of a queue."""
    largest = alert.get("largest")
    if not largest:
        return ""
    values = {
        "name": notice_line(largest["name"] or "?"),
        "cause": notice_line(largest["exception"] or "?"),
    }
    return gettext("; mostly %(name)s dies of %(cause)s") % values


def event_text(alert: dict[str, Any]) -> str:
    """Return "new", "continues" or "over"; "quiet, …" if it is over and dead letters are left."""
    if alert["event"] == RECOVERED and alert.get("left"):
        return quiet_text(left_text(alert))
    return event_word(alert["event"])


def quiet_text(left: str) -> str:
    return gettext("quiet, %(n)s still dead") % {"n": left}


def event_word(what: str) -> str:
    return {
        RAISED: gettext("new"),
        CONTINUES: gettext("continues"),
        RECOVERED: gettext("over"),
    }[what]


def count_text(alert: dict[str, Any]) -> str:
    return f"{_grouped(alert['count'])}{'+' if alert['more'] else ''}"


def left_text(alert: dict[str, Any]) -> str:
    """Return the number of dead letters that are left of an alert; "" if it is not known."""
    n = alert.get("left")
    return "" if n is None else f"{_grouped(n)}{'+' if alert.get('left_more') else ''}"


def duration_text(seconds: float) -> str:
    """Return a duration in one unit: 45 s, 12 min, 3 h, 5 d."""
    for size, unit, text in (
        (172_800, 86_400, gettext("%(n)s d")),
        (7_200, 3_600, gettext("%(n)s h")),
        (120, 60, gettext("%(n)s min")),
    ):
        if seconds >= size:
            return text % {"n": f"{seconds // unit:.0f}"}
    return gettext("%(n)s s") % {"n": f"{seconds:.0f}"}


def time_text(text: str | None) -> str:
    """Return a time of a notice in the time zone of the site."""
    found: datetime | None = parse_datetime(text) if text else None
    return timezone.localtime(found).strftime("%Y-%m-%d %H:%M:%S %Z") if found else ""


_TITLES: dict[str, Any] = {
    "new_group": lambda _: gettext("%(name)s dies of %(cause)s (%(count)s so far)"),
    "poison_rate": lambda alert: ngettext(
        "queue %(queue)s: %(count)s dead letter of the last %(within)s, more than %(above)s",
        "queue %(queue)s: %(count)s dead letters of the last %(within)s, more than %(above)s",
        alert["count"],
    ),
    "poison_depth": lambda alert: ngettext(
        "queue %(queue)s: %(count)s dead letter, more than %(above)s",
        "queue %(queue)s: %(count)s dead letters, more than %(above)s",
        alert["count"],
    ),
    "oldest_age": lambda _: gettext("queue %(queue)s: a message has been due for %(age)s"),
    "halted_stream": lambda alert: ngettext(
        "queue %(queue)s: %(count)s stream is halted",
        "queue %(queue)s: %(count)s streams are halted",
        alert["count"],
    ),
    "worker_lost": lambda _: gettext("worker %(name)s was lost: it did not shut down"),
    "breaker_opened": lambda _: gettext("%(name)s is held back by its circuit breaker"),
    "unserved_queue": lambda _: gettext(
        "queue %(queue)s has had work for %(age)s and no worker serves it"
    ),
    "stuck_instance": lambda alert: ngettext(
        "%(name)s: %(count)s instance is stuck",
        "%(name)s: %(count)s instances are stuck",
        alert["count"],
    ),
    "outbox_age": lambda _: gettext("broker %(name)s: a message of the outbox waits for %(age)s"),
    "broker_unavailable": lambda alert: ngettext(
        "broker %(name)s has accepted nothing for %(age)s; %(count)s message waits",
        "broker %(name)s has accepted nothing for %(age)s; %(count)s messages wait",
        alert["count"],
    ),
}


def _grouped(n: int) -> str:
    """Format 1234 for the language: a comma that groups in one is a decimal point in another."""
    return number_format(n, use_l10n=True, force_grouping=True)
