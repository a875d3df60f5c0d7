"""
What is said, and how does it get out? As messages of deadletter's own queue.

One notice says everything that is to be told at one moment; each channel gets it in a message of
its own, so that one that is down does not delay the others. A message names its channel: addresses
and secrets are read from the settings when it is delivered, and are never in a row.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..conf import get_settings
from ..lifecycle.enqueue import send
from ..lifecycle.internal_queue import QUEUE, own_queue
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Alert, Message, primary_alias
from ..payload import accept
from ..text import notice_block, notice_line, notice_value
from . import links, new_groups, wording
from .conditions import COUNTED, Look

#: The message name of a notice on its way.
NAME = "deadletter.alert"
#: Alerts of which a notice tells all; of the others it tells how many there are.
LISTED = 20
RAISED, CONTINUES, RECOVERED = "raised", "continues", "recovered"
#: What every alert has, though it may be null.
_PLAIN = ("queue", "name", "exception", "above", "within")
#: The order in which a notice tells its events.
EVENTS = {RAISED: 0, CONTINUES: 1, RECOVERED: 2}


@dataclass(frozen=True)
class Item:
    """An alert, and what there is to tell about it."""

    what: str
    alert: Alert


def announce(look: Look, items: Sequence[Item]) -> int:
    """Send one notice about these to every channel; return how many messages that made."""
    if not items or not look.policy.channels:
        return 0
    chosen = _largest_first(look, items)
    alerts = [_described(look, item) for item in chosen[:LISTED]]
    omitted = Counter(item.what for item in chosen[LISTED:])
    notice = {
        "version": 1,
        "id": uuid.uuid4().hex,
        "at": look.now.isoformat(),
        "test": False,
        "alerts": alerts,
        "omitted": dict(omitted),
    }
    return _post(look.using, [channel.name for channel in look.policy.channels], _fitting(notice))


def _largest_first(look: Look, items: Sequence[Item]) -> list[Item]:
    """Order by event, then by size: the first is in the subject, the last may be left out."""
    begun = [item.alert.since for item in items if item.alert.rule == new_groups.RULE]
    weights = new_groups.weights(look, min(begun)) if len(begun) > 1 else Counter()

    def place(item: Item) -> tuple[Any, ...]:
        alert = item.alert
        size = max(weights[alert.subject], alert.count) if alert.rule == new_groups.RULE else 0
        return EVENTS[item.what], -size, alert.since, alert.key

    return sorted(items, key=place)


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


def describe_alert(look: Look, what: str, alert: Alert, *, fresh: int = 0) -> dict[str, Any]:
    """Return an alert as notices and signals carry it: plain values, nothing a person typed in."""
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
        # Known when the notice is delivered; see current.py.
        "left": None,
        "left_more": False,
        "largest": None,
        **{key: detail.pop(key, None) for key in _PLAIN},
        "detail": detail,
        "error": notice_block(alert.error) if look.policy.errors else "",
        "url": links.link_to(look.policy.base_url, alert),
    }
    return {**found, "title": wording.title(found)}


def pending(*, using: str) -> int:
    """Count notices that wait to be delivered, up to a hundred."""
    rows = Message.objects.using(using).filter(queue__name=QUEUE, name=NAME)
    return int(rows.values("pk")[:100].count())


def _described(look: Look, item: Item) -> dict[str, Any]:
    fresh = new_groups.recount(look, item.alert) if item.alert.rule == new_groups.RULE else 0
    return describe_alert(look, item.what, item.alert, fresh=fresh)


def _fitting(notice: dict[str, Any]) -> dict[str, Any]:
    """Make a notice as small as the site's limit for payloads wants it, the last alerts first."""
    limit = get_settings().payload_limit - 1_000
    while notice["alerts"] and len(accept(notice, limit=10**9).encode()) > limit:
        *kept, last = notice["alerts"]
        omitted = Counter(notice["omitted"])
        omitted[last["event"]] += 1
        notice = {**notice, "alerts": kept, "omitted": dict(omitted)}
    return notice


def _post(alias: str, channels: Sequence[str], notice: dict[str, Any]) -> int:
    own_queue(alias)
    for name in channels:
        payload = {"channel": name, "notice": notice, "using": alias}
        send(NAME, payload, queue=QUEUE, using=alias)
    return len(channels)
