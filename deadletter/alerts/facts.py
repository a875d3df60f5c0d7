"""What the formats of chat and incident services say about a notice and each of its alerts."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext

from .notice import count_text, event_text, event_word, left_text, notice_subject, time_text


def headline(alert: dict[str, Any]) -> str:
    return f"{event_text(alert)}: {alert['title']}"


def alert_facts(alert: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and values, in the order of the mail."""
    new, count = alert["new"], count_text(alert) if alert["count"] else ""
    if count and new:
        fresh = gettext("%(n)s since the last notice") % {"n": new}
        count = f"{count} ({fresh})"
    detail = alert["detail"]
    found = [
        (gettext("since"), time_text(alert["since"])),
        (gettext("how many"), count),
        (gettext("still there"), left_text(alert)),
        (gettext("name"), alert["name"] or ""),
        (gettext("queue"), alert["queue"] or ""),
        (gettext("release"), detail.get("release") or ""),
        (gettext("streams"), ", ".join(detail.get("streams") or ())),
        (gettext("was running"), ", ".join(detail.get("running") or ())),
    ]
    return [(label, value) for label, value in found if value]


def omitted_lines(omitted: dict[str, int]) -> list[str]:
    """Return a line for each event of which alerts were left out."""
    return [
        gettext("and %(n)s more: %(word)s") % {"n": n, "word": event_word(event)}
        for event, n in omitted.items()
        if n
    ]


def summary(notice: dict[str, Any]) -> str:
    """Return the notice in one line; a test says that it is one."""
    return notice_subject(notice)
