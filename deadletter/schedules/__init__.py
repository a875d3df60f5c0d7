"""
Schedules: messages and tasks that are sent at the moments of a cron expression or an interval.

Reading order: timetable (at the root: the moments), models/schedule, messages (what is sent),
firings (any worker sends it), run_history (what is recorded of it), declarations (settings and
`@schedule`), rows (they become rows), celery_beat (rows of django-celery-beat as options).
What people do to schedules is in operations/schedules.
"""

from __future__ import annotations

from . import celery_beat
from .declarations import (
    Declaration,
    DeclaredSchedules,
    describe_problem,
    handler_names,
    read_declarations,
    read_options,
    schedule,
)
from .firings import BATCH, Firings, fire_due, seconds_until_due
from .messages import MOMENT_HEADER, NAME_HEADER, CannotFire, check, send
from .rows import RowChanges, create_declared_schedules, find_unsendable, sync_rows
from .run_history import trim_runs

__all__ = [
    "BATCH",
    "MOMENT_HEADER",
    "NAME_HEADER",
    "CannotFire",
    "Declaration",
    "DeclaredSchedules",
    "Firings",
    "RowChanges",
    "celery_beat",
    "check",
    "create_declared_schedules",
    "describe_problem",
    "find_unsendable",
    "fire_due",
    "handler_names",
    "read_declarations",
    "read_options",
    "schedule",
    "seconds_until_due",
    "send",
    "sync_rows",
    "trim_runs",
]
