"""
The numbers of a notice at the time of its delivery.

A notice is decided at the first death of a group and may wait behind others, or for a channel that
is down. Its counts are read again when it is written for its channel: how many messages died, how
many of them are still dead, and which group is the largest. Reads only, each limited by COUNTED.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.utils import translation
from django.utils.dateparse import parse_datetime

from .. import clock
from ..alert_rules import AlertPolicy
from ..conf import get_settings
from ..logs import event
from ..models import Alert, Message, primary_alias
from ..text import notice_line, storable_text
from .context import COUNTED, AlertContext, alert_poison
from .main_groups import RULES as _GROUPS
from .main_groups import members_of
from .new_groups import count_deaths
from .notice import EVENTS, alert_title

_RATE, _DEPTH = Alert.Rule.POISON_RATE.value, Alert.Rule.POISON_DEPTH.value
_HALTED = Alert.Rule.HALTED_STREAM.value
#: Rules about dead letters: those that are left of an alert can be counted.
COUNTING = (*_GROUPS, _RATE, _DEPTH, _HALTED)


def with_current_counts(notice: dict[str, Any], *, using: str | None) -> dict[str, Any]:
    """Return the notice with current numbers, the largest alert of each event first."""
    policy = get_settings().alerts
    if policy is None or notice["test"]:
        return notice
    alias = primary_alias(using)
    try:
        context = AlertContext(using=alias, now=clock.now(alias), policy=policy)
        with translation.override(settings.LANGUAGE_CODE):
            alerts = [_with_counts(context, alert) for alert in notice["alerts"]]
    except DatabaseError as error:
        # A notice with the numbers of its decision is better than no notice.
        event(
            logging.WARNING,
            "alert_not_recounted",
            "notice {notice} is sent with the numbers of its decision: {error}",
            notice=notice["id"],
            error=type(error).__name__,
        )
        return notice
    alerts.sort(key=_sort_key)
    return {**notice, "alerts": alerts}


def left_of(rule: str, subject: str, *, using: str, limit: int = COUNTED) -> int | None:
    """
    Count the dead letters of an alert that are still there, up to `limit` + 1; for halted streams,
    count the streams. None for rules that are not about dead letters.
    """
    if rule not in COUNTING:
        return None
    if rule == _HALTED:
        halting = alert_poison(using, subject).halting().order_by("stream", "message_id")
        return len(set(halting.values_list("stream", flat=True)[: limit + 1]))
    if rule in _GROUPS:
        return count_deaths(using, members_of(using, subject), limit=limit)
    return _up_to(alert_poison(using, subject), limit) + _moved(using, subject)


def _sort_key(alert: dict[str, Any]) -> tuple[int, int]:
    return EVENTS.get(alert["event"], 0), -alert["count"] if alert["rule"] in _GROUPS else 0


def _with_counts(context: AlertContext, alert: dict[str, Any]) -> dict[str, Any]:
    rule, subject = alert["rule"], _subject(alert)
    left = left_of(rule, subject, using=context.using)
    if left is None:
        return alert
    most = max(COUNTED, alert["above"] or 0)
    found = {**alert, "left": min(left, COUNTED), "left_more": left > COUNTED}
    # A death counts even if the message was retried or removed since.
    count = max(_count(context, found, subject), alert["count"])
    found |= {"count": min(count, most), "more": alert["more"] or count > most}
    if rule in (_RATE, _DEPTH):
        found["largest"] = _largest(context, found, subject)
    return {**found, "title": alert_title(found)}


def _subject(alert: dict[str, Any]) -> str:
    # The key has the whole subject; `subject` in the notice is cut to a line.
    return str(alert["key"]).partition(":")[2]


def _count(context: AlertContext, alert: dict[str, Any], subject: str) -> int:
    rule = alert["rule"]
    if rule in _GROUPS:
        since = parse_datetime(alert["since"]) or context.now
        members = members_of(context.using, subject)
        return count_deaths(context.using, members, {"gte": since})
    if rule == _RATE:
        begin = _begin(context, alert)
        records = alert_poison(context.using, subject).filter(poisoned_at__gt=begin)
        return _up_to(records) + context.moved(subject, after=begin).count
    return int(alert["left"])


def _moved(using: str, subject: str) -> int:
    """Count messages in dead queues that died in a queue, or in any."""
    policy = get_settings().alerts or AlertPolicy(rules=(), channels=())
    context = AlertContext(using=using, now=clock.now(using), policy=policy)
    return context.moved(subject).count


def _begin(context: AlertContext, alert: dict[str, Any]) -> datetime:
    return context.now - timedelta(seconds=alert["within"] or 0)


def _up_to(records: Any, limit: int = COUNTED) -> int:
    return int(records.order_by("poisoned_at", "id").values("pk")[: limit + 1].count())


def _largest(context: AlertContext, alert: dict[str, Any], subject: str) -> dict[str, Any] | None:
    """Return the group of most of the newest dead letters of a queue, or of all."""
    records = alert_poison(context.using, subject).order_by("-poisoned_at", "-id")
    if alert["rule"] == _RATE:
        records = records.filter(poisoned_at__gt=_begin(context, alert))
    groups = Counter(records.values_list("fingerprint", flat=True)[:COUNTED])
    moved = _newest_in_dead_queues(context, alert)
    groups.update(row[0] for row in moved if not subject or row[3] == subject)
    for fingerprint, count in groups.most_common(1):
        rows = records.filter(fingerprint=fingerprint).values_list("name", "exception")[:1]
        known = [*rows, *(row[1:3] for row in moved if row[0] == fingerprint)]
        for name, exception in known[:1]:
            return {
                "fingerprint": fingerprint,
                "name": notice_line(name),
                "exception": notice_line(storable_text(exception or "", limit=200)),
                "count": count,
            }
    return None


def _newest_in_dead_queues(
    context: AlertContext, alert: dict[str, Any]
) -> list[tuple[str, str, str, str]]:
    """Return the newest messages of each dead queue: fingerprint, name, exception, old queue."""
    found: list[tuple[str, str, str, str]] = []
    for queue_id in context.dead_queues:
        rows = Message.objects.using(context.using).filter(queue_id=queue_id, died_at__isnull=False)
        if alert["rule"] == _RATE:
            rows = rows.filter(died_at__gt=_begin(context, alert))
        rows = rows.order_by("-queue_id", "-died_at", "-id")
        columns = ("fingerprint", "name", "death__exception", "death__queue")
        found += rows.values_list(*columns)[:COUNTED]
    return found
