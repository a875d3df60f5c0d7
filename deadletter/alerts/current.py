"""
The numbers of a notice at the moment it is delivered.

A notice is decided at the first death of a cause and may wait behind others, or for a channel that
is down. What it says of counts is read again when it is written for its channel: how many died, how
many of them are still there, and which cause is the largest. Reads only, each bounded by COUNTED.
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
from . import wording
from .conditions import COUNTED, Look, dead_letters
from .notice import EVENTS

_GROUP = Alert.Rule.NEW_GROUP.value
_RATE, _DEPTH = Alert.Rule.POISON_RATE.value, Alert.Rule.POISON_DEPTH.value
_HALTED = Alert.Rule.HALTED_STREAM.value
#: Rules about dead letters: what is left of their alerts can be counted.
COUNTING = (_GROUP, _RATE, _DEPTH, _HALTED)


def bring_up_to_date(notice: dict[str, Any], *, using: str | None) -> dict[str, Any]:
    """Return the notice with the numbers of now, the largest alert of each event first."""
    policy = get_settings().alerts
    if policy is None or notice["test"]:
        return notice
    alias = primary_alias(using)
    try:
        look = Look(using=alias, now=clock.now(alias), policy=policy)
        with translation.override(settings.LANGUAGE_CODE):
            alerts = [_counted(look, alert) for alert in notice["alerts"]]
    except DatabaseError as error:
        # A notice with the numbers of its decision is better than none.
        event(
            logging.WARNING,
            "alert_not_recounted",
            "notice {notice} is told with the numbers of its decision: {error}",
            notice=notice["id"],
            error=type(error).__name__,
        )
        return notice
    alerts.sort(key=_place)
    return {**notice, "alerts": alerts}


def left_of(rule: str, subject: str, *, using: str, limit: int = COUNTED) -> int | None:
    """
    Count the dead letters of an alert that are there, up to `limit` + 1; of streams that stood
    still, the streams. None for rules that are not about dead letters.
    """
    if rule not in COUNTING:
        return None
    if rule == _HALTED:
        halting = dead_letters(using, subject).halting().order_by("stream", "message_id")
        return len(set(halting.values_list("stream", flat=True)[: limit + 1]))
    return _up_to(_records(using, rule, subject), limit) + _moved(using, rule, subject, limit=limit)


def _place(alert: dict[str, Any]) -> tuple[int, int]:
    return EVENTS.get(alert["event"], 0), -alert["count"] if alert["rule"] == _GROUP else 0


def _counted(look: Look, alert: dict[str, Any]) -> dict[str, Any]:
    rule, subject = alert["rule"], _subject(alert)
    left = left_of(rule, subject, using=look.using)
    if left is None:
        return alert
    most = max(COUNTED, alert["above"] or 0)
    found = {**alert, "left": min(left, COUNTED), "left_more": left > COUNTED}
    # What died has died, though somebody may have retried or removed it since.
    count = max(_count(look, found, subject), alert["count"])
    found |= {"count": min(count, most), "more": alert["more"] or count > most}
    if rule in (_RATE, _DEPTH):
        found["largest"] = _largest(look, found, subject)
    return {**found, "title": wording.title(found)}


def _subject(alert: dict[str, Any]) -> str:
    # The key has it whole: the notice's own `subject` is cut to a line.
    return str(alert["key"]).partition(":")[2]


def _records(using: str, rule: str, subject: str) -> Any:
    if rule == _GROUP:
        return dead_letters(using).filter(fingerprint=subject)
    return dead_letters(using, subject)


def _count(look: Look, alert: dict[str, Any], subject: str) -> int:
    rule = alert["rule"]
    if rule == _GROUP:
        since = parse_datetime(alert["since"])
        records = _records(look.using, rule, subject).filter(poisoned_at__gte=since)
        return _up_to(records) + _moved(look.using, rule, subject, since=since)
    if rule == _RATE:
        begin = _begin(look, alert)
        records = _records(look.using, rule, subject).filter(poisoned_at__gt=begin)
        return _up_to(records) + look.buried(subject, after=begin).count
    return int(alert["left"])


def _moved(
    using: str, rule: str, subject: str, *, since: datetime | None = None, limit: int = COUNTED
) -> int:
    """Count what lies in dead queues: of a cause, or of what died in a queue."""
    if rule == _GROUP:
        rows = Message.objects.using(using).filter(fingerprint=subject)
        rows = rows if since is None else rows.filter(died_at__gte=since)
        return int(rows.order_by("died_at", "id").values("pk")[: limit + 1].count())
    policy = get_settings().alerts or AlertPolicy(rules=(), channels=())
    look = Look(using=using, now=clock.now(using), policy=policy)
    return look.buried(subject).count


def _begin(look: Look, alert: dict[str, Any]) -> datetime:
    return look.now - timedelta(seconds=alert["within"] or 0)


def _up_to(records: Any, limit: int = COUNTED) -> int:
    return int(records.order_by("poisoned_at", "id").values("pk")[: limit + 1].count())


def _largest(look: Look, alert: dict[str, Any], subject: str) -> dict[str, Any] | None:
    """Return the cause of most of the newest dead letters of a queue, or of all."""
    records = _records(look.using, alert["rule"], subject).order_by("-poisoned_at", "-id")
    if alert["rule"] == _RATE:
        records = records.filter(poisoned_at__gt=_begin(look, alert))
    groups = Counter(records.values_list("fingerprint", flat=True)[:COUNTED])
    moved = _newest_moved(look, alert)
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


def _newest_moved(look: Look, alert: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the newest in each dead queue: fingerprint, name, exception, where it died."""
    found: list[tuple[str, str, str, str]] = []
    for queue_id in look.dead_queues:
        rows = Message.objects.using(look.using).filter(queue_id=queue_id, died_at__isnull=False)
        if alert["rule"] == _RATE:
            rows = rows.filter(died_at__gt=_begin(look, alert))
        rows = rows.order_by("-queue_id", "-died_at", "-id")
        columns = ("fingerprint", "name", "death__exception", "death__queue")
        found += rows.values_list(*columns)[:COUNTED]
    return found
