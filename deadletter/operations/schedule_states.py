"""The state of a schedule in one word, and the latest run of each."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import models
from django.db.models import OuterRef, Q, Subquery
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ..models import Schedule, ScheduleRun, primary_alias

#: A schedule that is due for longer is late: no worker fires it.
LATE = timedelta(minutes=2)


class ScheduleState(models.TextChoices):
    """What a person calls the situation of a schedule; computed, never stored."""

    ACTIVE = "active", pgettext_lazy("schedule", "active")
    LATE = "late", pgettext_lazy("schedule", "late")
    BROKEN = "broken", pgettext_lazy("schedule", "cannot fire")
    PAUSED = "paused", pgettext_lazy("schedule", "paused")
    ORPHANED = "orphaned", _("no longer declared")
    ENDED = "ended", pgettext_lazy("schedule", "ended")


def schedule_state(row: Schedule, now: datetime) -> ScheduleState:
    if row.orphaned_at is not None:
        return ScheduleState.ORPHANED
    if row.paused:
        return ScheduleState.PAUSED
    if row.failing_since is not None:
        return ScheduleState.BROKEN
    if row.due_at is None:
        return ScheduleState.ENDED
    return ScheduleState.LATE if now - row.due_at > LATE else ScheduleState.ACTIVE


def in_schedule_state(state: str, now: datetime) -> Q:
    """Return the condition for the schedules in one state. Raises ValueError for another word."""
    free = Q(orphaned_at=None, paused=False)
    fires = free & Q(failing_since=None, due_at__isnull=False)
    return {
        ScheduleState.ORPHANED: Q(orphaned_at__isnull=False),
        ScheduleState.PAUSED: Q(orphaned_at=None, paused=True),
        ScheduleState.BROKEN: free & Q(failing_since__isnull=False),
        ScheduleState.ENDED: free & Q(failing_since=None, due_at=None),
        ScheduleState.LATE: fires & Q(due_at__lt=now - LATE),
        ScheduleState.ACTIVE: fires & Q(due_at__gte=now - LATE),
    }[ScheduleState(state)]


def latest_runs(
    schedule_ids: Collection[int], *, using: str | None = None
) -> dict[int, ScheduleRun]:
    """Return the latest run of each of these schedules: one index probe for each."""
    alias = primary_alias(using)
    runs = ScheduleRun.objects.using(alias)
    latest = runs.filter(schedule=OuterRef("pk")).order_by("-id").values("pk")[:1]
    rows = Schedule.objects.using(alias).filter(pk__in=schedule_ids)
    ids = [id for id in rows.values_list(Subquery(latest), flat=True) if id is not None]
    return {run.schedule_id: run for run in runs.filter(pk__in=ids)}
