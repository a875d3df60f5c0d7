"""Schedules as text: their times in the reader's zone and in theirs, their state, their rule."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.translation import gettext

from ...durations import as_text
from ...models import Schedule
from ...operations.schedule_states import ScheduleState, schedule_state
from ...text import page_text
from ...times import lasting, moment
from ...timetable import TimetableError, read_zone

_BADGES = {
    ScheduleState.ACTIVE: "due",
    ScheduleState.LATE: "halted",
    ScheduleState.BROKEN: "halted",
    ScheduleState.ORPHANED: "waiting",
}


def state_badge(row: Schedule, now: datetime) -> str:
    state = schedule_state(row, now)
    kind = _BADGES.get(state, "paused")
    return format_html('<span class="dl-state dl-state-{}">{}</span>', kind, state.label)


def rule_text(row: Schedule) -> str:
    """Say when it runs: the expression, the interval, or "once"."""
    if row.cron:
        return page_text(row.cron, limit=200)
    if row.interval:
        return gettext("every %(time)s") % {"time": as_text(row.interval)}
    return gettext("once")


def zone_of(row: Schedule) -> ZoneInfo | None:
    """Return the zone of a schedule if its times differ from the reader's; None: they do not."""
    if not row.cron or row.time_zone == timezone.get_current_timezone_name():
        return None
    try:
        return read_zone(row.time_zone)
    except TimetableError:
        return None


def at_home(at: datetime, zone: ZoneInfo | None) -> str:
    """Return a moment in the schedule's zone: Sun 03:00 CET; "" if the reader has that zone."""
    if zone is None or at.astimezone(zone).utcoffset() == timezone.localtime(at).utcoffset():
        return ""
    local = at.astimezone(zone)
    return f"{date_format(local, 'D')} {local:%H:%M} {local.tzname() or ''}".strip()


def short(at: datetime, now: datetime) -> str:
    """Return a moment without its zone, which the page names: Thu, November 19, 02:00."""
    local = timezone.localtime(at)
    time = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    year = f" {local.year}" if local.year != timezone.localtime(now).year else ""
    return f"{date_format(local, 'D')}, {date_format(local, 'MONTH_DAY_FORMAT')}{year}, {time}"


def show_moment(at: datetime, row: Schedule, now: datetime) -> str:
    context = {
        "at": at,
        "short": short(at, now),
        "distance": lasting(*sorted((at, now)), depth=1),
        "is_ahead": at > now,
        "home": at_home(at, zone_of(row)),
        "zone": row.time_zone,
    }
    return render_to_string("admin/deadletter/schedule/moment.html", context)


def show_moments(moments: list[datetime], row: Schedule, now: datetime) -> list[dict[str, Any]]:
    """Return moments for a list, each in the reader's zone and in the schedule's."""
    zone = zone_of(row)
    return [{"at": at, "short": short(at, now), "home": at_home(at, zone)} for at in moments]


def reader_zone() -> str:
    return timezone.get_current_timezone_name()


def exact(at: datetime | None) -> str:
    return "-" if at is None else moment(at)
