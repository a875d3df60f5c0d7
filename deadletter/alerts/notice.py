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
from ..models import Alert, GroupState, Message, primary_alias
from ..payload import accept
from ..text import notice_block, notice_line, notice_value
from . import main_groups, new_groups
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
#: Kinds of channels whose receivers keep track of alerts: they are told of every end.
_PROGRAMS = ("webhook", "pagerduty")
#: Keys that every alert has, though the value may be null.
_PLAIN = ("queue", "name", "exception", "above", "within")


@dataclass(frozen=True)
class NoticeItem:
    """An alert and the event to report about it."""

    what: str
    alert: Alert

    @property
    def is_quiet(self) -> bool:
        """True for the end of an alert about a group that a person muted, resolved or merged."""
        closed_as = self.alert.detail.get(main_groups.CLOSED_AS)
        return self.what == RECOVERED and closed_as in main_groups.QUIET


def announce(context: AlertContext, items: Sequence[NoticeItem]) -> int:
    """
    Send one notice about these alerts to every channel; return the number of messages.

    Quiet ends are for programs that keep track of alerts, not for people. Incident services get
    further notices until they know of every end: nobody would close what stays open there.
    """
    channels = context.policy.channels
    if not items or not channels:
        return 0
    chosen = _largest_first(context, items)
    described: dict[int, dict[str, Any]] = {}
    loud = [item for item in chosen if not item.is_quiet]
    has_quiet = len(loud) < len(chosen)
    programs = [one for one in channels if has_quiet and one.kind in _PROGRAMS]
    others = [one for one in channels if one not in programs]
    sent = 0
    rest = chosen
    for some, to in ((loud, others), (chosen, programs)):
        if some and to:
            notice = _new_notice(context, some, described)
            rest = some[len(notice["alerts"]) :]
            sent += _post(context.using, [channel.name for channel in to], notice)
    incidents = [channel.name for channel in channels if channel.kind == "pagerduty"]
    ended = [item for item in rest if item.what == RECOVERED]
    while incidents and ended:
        notice = _new_notice(context, ended, described)
        ended = ended[max(len(notice["alerts"]), 1) :]
        sent += _post(context.using, incidents, notice)
    return sent


def _new_notice(
    context: AlertContext, items: Sequence[NoticeItem], described: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return a notice about as many of the alerts as it may list; `described` is a cache."""
    for item in items[:LISTED]:
        if id(item) not in described:
            described[id(item)] = _described(context, item)
    omitted = Counter(item.what for item in items[LISTED:])
    notice = {
        "version": 1,
        "id": uuid.uuid4().hex,
        "at": context.now.isoformat(),
        "test": False,
        "alerts": [described[id(item)] for item in items[:LISTED]],
        "omitted": dict(omitted),
    }
    return _fitting(notice)


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
        is_group = alert.rule in main_groups.RULES
        size = max(weights[alert.subject], alert.count) if is_group else 0
        return EVENTS[item.what], -size, alert.since, alert.key

    return sorted(items, key=sort_key)


def _described(context: AlertContext, item: NoticeItem) -> dict[str, Any]:
    is_group = item.alert.rule in main_groups.RULES
    fresh = new_groups.recount(context, item.alert) if is_group else 0
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
    try:
        path = path_of(alert)
    except NoReverseMatch:  # a site without the admin
        return base_url
    return f"{base_url}{path}"


def path_of(alert: Alert, *, site_name: str | None = None) -> str:
    """
    Return the path of the admin page about an alert: that of its group, if there is one.

    Raises: NoReverseMatch.
    """
    if alert.rule in main_groups.RULES:
        try:
            page = "admin:deadletter_poisonrecord_group"
            return reverse(page, args=[alert.subject], current_app=site_name)
        except NoReverseMatch:
            pass  # a site without pages of groups, or a damaged fingerprint
    name, query = page_of(alert)
    path = reverse(f"admin:deadletter_{name}", current_app=site_name)
    return f"{path}{'?' if query else ''}{urlencode(query)}"


def page_of(alert: Alert) -> tuple[str, dict[str, str]]:
    """Return the admin page that lists what an alert is about now, and its query."""
    rule, subject = alert.rule, alert.subject
    # The latest dead letter is in a dead queue, where the list of poison records does not show it.
    is_moved = MOVED_AS in alert.detail
    if rule in main_groups.RULES and is_moved:
        return "message_changelist", {"group": subject}
    if rule in main_groups.RULES:
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
    if rule in (Alert.Rule.SCHEDULE_FAILED, Alert.Rule.SCHEDULE_OVERDUE):
        return "schedule_changelist", {"q": subject} if subject else {}
    return "queue_changelist", {"q": subject} if subject else {}


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
        "release": notice_line(alert["detail"].get("release") or "?"),
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
    """
    Return "new", "continues" or "over"; "quiet, …" if it is over and dead letters are left, and
    what a person did if that ended it: "acknowledged", "muted".
    """
    if alert["event"] == RECOVERED and (word := closed_word(alert["detail"])):
        return word
    if alert["event"] == RECOVERED and alert.get("left"):
        return quiet_text(left_text(alert))
    return event_word(alert["event"])


def closed_word(detail: dict[str, Any]) -> str:
    """Return what a person did to the group of a closed alert; "" if nobody did."""
    closed_as = detail.get(main_groups.CLOSED_AS)
    if closed_as == main_groups.MERGED:
        return gettext("merged")
    # A new group was reopened, or split from another one.
    states = [state for state in GroupState if state != GroupState.NEW and state == closed_as]
    return str(states[0].label) if states else ""


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
    "regressed_group": lambda alert: (
        gettext("%(name)s fails with %(cause)s again after it was resolved (release %(release)s)")
        if alert["detail"].get("release")
        else gettext("%(name)s fails with %(cause)s again after it was resolved")
    ),
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
    "schedule_failed": lambda _: gettext("schedule %(name)s cannot fire"),
    "schedule_overdue": lambda alert: ngettext(
        "%(count)s schedule is due and no worker fires it, for %(age)s so far",
        "%(count)s schedules are due and no worker fires them, for %(age)s so far",
        alert["count"],
    ),
}


def _grouped(n: int) -> str:
    """Format 1234 for the language: a comma that groups in one is a decimal point in another."""
    return number_format(n, use_l10n=True, force_grouping=True)
