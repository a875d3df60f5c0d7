"""The history of schedules: what is recorded of their moments, and how much of it is kept."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from ..descriptions import describe
from ..lifecycle.transaction import Transaction
from ..logs import event
from ..models import Message, RunOutcome, Schedule, ScheduleRun
from ..text import storable_text
from ..timetable import TimetableError
from .messages import CannotFire

#: How long after a failure a schedule is tried again.
RETRY_AFTER = timedelta(seconds=60)
#: Runs that are kept of each schedule; and at most as many older ones whose message is unfinished.
KEPT = 100
#: How many more there may be before they are deleted.
SLACK = 20
#: Bytes of an error that are stored.
ERROR = 2_000


def record_missed(
    tx: Transaction,
    schedule: Schedule,
    *,
    first: datetime,
    count: int,
    known: ScheduleRun | None,
    now: datetime,
) -> None:
    """Record moments that are not fired as one run, at the first of them, which may have failed."""
    why = "no worker fired it in time"
    if known is None or known.outcome == RunOutcome.FAILED:
        why = f"{known.why}; {why}" if known is not None else why
        run = known or ScheduleRun(schedule=schedule, moment=first)
        run.fired_at, run.outcome, run.count, run.why = now, RunOutcome.MISSED, count, why
        run.save(using=tx.using)
    event(
        logging.WARNING,
        "schedule_missed",
        "schedule {schedule}: {count} moments from {moment} were missed",
        schedule=schedule.name,
        moment=first.isoformat(),
        count=count,
    )


def record_failure(tx: Transaction, pk: int, now: datetime, error: Exception) -> None:
    """Record why a schedule cannot fire. Its moment is not lost: it is tried again, or missed."""
    schedule = Schedule.objects.using(tx.using).get(pk=pk)
    text = storable_text(_in_words(error), limit=ERROR)
    is_new = schedule.failing_since is None or schedule.last_error != text
    schedule.failing_since = schedule.failing_since or now
    schedule.last_error, schedule.last_outcome = text, RunOutcome.FAILED
    schedule.due_at = now + RETRY_AFTER
    schedule.save(
        using=tx.using, update_fields=["failing_since", "last_error", "last_outcome", "due_at"]
    )
    if schedule.next_at is not None:
        ScheduleRun.objects.using(tx.using).update_or_create(
            schedule=schedule,
            moment=schedule.next_at,
            defaults={"outcome": RunOutcome.FAILED, "fired_at": now, "why": text},
        )
    if is_new:
        event(
            logging.ERROR,
            "schedule_failed",
            "schedule {schedule} cannot fire: {error}",
            schedule=schedule.name,
            error=text,
        )


def trim_runs(tx: Transaction, schedule: Schedule) -> None:
    """
    Delete runs beyond the newest hundred, except those that overlap must know.

    A message that waits for a day may be one of an old run: of those, the newest hundred are kept.
    """
    rows = ScheduleRun.objects.using(tx.using).filter(schedule=schedule)
    newest = rows.order_by("-id").values_list("pk", "message_id")
    old = list(newest[KEPT : 3 * KEPT + SLACK])
    if len(old) < SLACK:
        return
    ids = [message for _, message in old if message is not None]
    found = Message.objects.using(tx.using).filter(pk__in=ids).values_list("pk", flat=True)
    unfinished = set(found)
    kept = [pk for pk, message in old if message in unfinished][:KEPT]
    rows.filter(pk__in={pk for pk, _ in old} - {*kept}).delete()


def _in_words(error: Exception) -> str:
    """Return an error for people: ours without their class, which says nothing to them."""
    if isinstance(error, CannotFire):
        return str(error)
    if isinstance(error, TimetableError):
        return f"{error.field}: {error}"
    return describe(error).text
