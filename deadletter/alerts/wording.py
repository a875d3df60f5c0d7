"""
In which words? Text from outside is made harmless first.

Names and errors come from anywhere: in a subject they are one line without control characters, so
that nothing becomes a header; in a body every line of an error is indented, so that it cannot pass
for the notice itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext

from ..text import notice_line

#: Characters of a subject.
SUBJECT = 150


def title(alert: dict[str, Any]) -> str:
    """Say in one line what an alert is about."""
    values = {
        "name": notice_line(alert["name"] or "?"),
        # A rule that counts over all queues has none of its own.
        "queue": notice_line(alert["queue"] or "*"),
        "cause": notice_line(alert["exception"] or "?"),
        "count": counted(alert),
        "above": _grouped(alert["above"] or 0),
        "within": span(alert["within"] or 0),
        "age": span(alert["detail"].get("seconds") or 0),
    }
    text = _TITLES[alert["rule"]](alert) % values
    return notice_line(text + _mostly(alert), SUBJECT)


def _mostly(alert: dict[str, Any]) -> str:
    """Name the cause of most deaths, where an alert counts all that die in a queue."""
    largest = alert.get("largest")
    if not largest:
        return ""
    values = {
        "name": notice_line(largest["name"] or "?"),
        "cause": notice_line(largest["exception"] or "?"),
    }
    return gettext("; mostly %(name)s dies of %(cause)s") % values


def counted(alert: dict[str, Any]) -> str:
    return f"{_grouped(alert['count'])}{'+' if alert['more'] else ''}"


def span(seconds: float) -> str:
    """Say how long in a person's unit: 45 s, 12 min, 3 h, 5 d."""
    for size, unit, text in (
        (172_800, 86_400, gettext("%(n)s d")),
        (7_200, 3_600, gettext("%(n)s h")),
        (120, 60, gettext("%(n)s min")),
    ):
        if seconds >= size:
            return text % {"n": f"{seconds // unit:.0f}"}
    return gettext("%(n)s s") % {"n": f"{seconds:.0f}"}


def moment(text: str | None) -> str:
    """Write a time of a notice as people of the site read it."""
    found: datetime | None = parse_datetime(text) if text else None
    return timezone.localtime(found).strftime("%Y-%m-%d %H:%M:%S %Z") if found else ""


def left(alert: dict[str, Any]) -> str:
    """Say how many dead letters of an alert are still there; "" where that is not known."""
    n = alert.get("left")
    return "" if n is None else f"{_grouped(n)}{'+' if alert.get('left_more') else ''}"


def what_happens(alert: dict[str, Any]) -> str:
    """Say in a word whether it is new, goes on or has ended; with dead letters left it is quiet."""
    if alert["event"] == "recovered" and alert.get("left"):
        return quiet(left(alert))
    return event_word(alert["event"])


def quiet(left: str) -> str:
    return gettext("quiet, %(n)s still dead") % {"n": left}


def event_word(what: str) -> str:
    return {
        "raised": gettext("new"),
        "continues": gettext("goes on"),
        "recovered": gettext("over"),
    }[what]


def subject(notice: dict[str, Any]) -> str:
    """Return the subject of a notice: its first alert, and how many more there are."""
    alerts = notice["alerts"]
    if notice["test"]:
        return gettext("deadletter: test of the alerts")
    rest = len(alerts) - 1 + sum(notice["omitted"].values())
    if not alerts:
        found = ngettext("%(n)d alert", "%(n)d alerts", rest + 1) % {"n": rest + 1}
        return f"deadletter: {found}"
    first = alerts[0]
    more = gettext(" (and %(n)d more)") % {"n": rest} if rest else ""
    head = f"deadletter: {what_happens(first)}: "
    return head + notice_line(first["title"], SUBJECT - len(head) - len(more)) + more


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
        "queue %(queue)s: %(count)s stream stands still",
        "queue %(queue)s: %(count)s streams stand still",
        alert["count"],
    ),
    "worker_lost": lambda _: gettext("worker %(name)s was lost without a goodbye"),
    "breaker_opened": lambda _: gettext("%(name)s is held back by its circuit breaker"),
    "unserved_queue": lambda _: gettext(
        "queue %(queue)s has had work for %(age)s and no worker serves it"
    ),
    "stuck_instance": lambda alert: ngettext(
        "%(name)s: %(count)s instance is stuck",
        "%(name)s: %(count)s instances are stuck",
        alert["count"],
    ),
}


def _grouped(n: int) -> str:
    """Write 1234 as the language does: a comma that groups in one is a decimal point in another."""
    return number_format(n, use_l10n=True, force_grouping=True)
