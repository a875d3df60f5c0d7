"""Times as text for people: exact, with seconds and zone, or relative to now."""

from __future__ import annotations

from datetime import datetime

from django.utils.formats import date_format
from django.utils.timesince import timesince
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext, ngettext


def moment(at: datetime) -> str:
    """Return date, time with seconds and zone, in the reader's zone: 17 Nov. 2026, 14:03:05 CET."""
    local = localtime(at) if is_aware(at) else at
    day = date_format(local, "DATE_FORMAT")
    return f"{day}, {local:%H:%M:%S} {local.tzname() or ''}".strip()


def lasting(start: datetime, end: datetime, *, depth: int = 2) -> str:
    """Return the time between two moments in up to `depth` units: 12 seconds, 1 day."""
    seconds = max(int((end - start).total_seconds()), 0)
    if seconds < 60:
        return ngettext("%(n)s second", "%(n)s seconds", seconds) % {"n": seconds}
    return timesince(start, end, depth=depth)


def ago(at: datetime, now: datetime, *, depth: int = 2) -> str:
    """Return how long ago a time is; less than a second ago, or in the future: "just now"."""
    if (now - at).total_seconds() < 1:
        return gettext("just now")
    return gettext("%(time)s ago") % {"time": lasting(at, now, depth=depth)}


def ahead(at: datetime, now: datetime) -> str:
    """Return how far ahead a time is; less than a second ahead, or in the past: "now"."""
    if (at - now).total_seconds() < 1:
        return gettext("now")
    return gettext("in %(time)s") % {"time": lasting(now, at)}


def age(at: datetime, now: datetime) -> str:
    """Return how long ago a time is, in one unit: 40 s, 12 min, 3 h, 2 d."""
    seconds = max(int((now - at).total_seconds()), 0)
    if seconds < 60:
        return gettext("%(n)s s") % {"n": seconds}
    if seconds < 3_600:
        return gettext("%(n)s min") % {"n": seconds // 60}
    if seconds < 172_800:
        return gettext("%(n)s h") % {"n": seconds // 3_600}
    return gettext("%(n)s d") % {"n": seconds // 86_400}
