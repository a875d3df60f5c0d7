"""
Fire: send the messages of due schedules, and record their moments, in one transaction.

Any worker may do it. The rows of due schedules are locked, and what another worker has locked is
left to it; the next moment is written with the message of the last one, and (schedule, moment) is
unique. So a moment is fired once, whichever process ends at which point.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import InterfaceError, OperationalError
from django.db.models import F
from django.db.transaction import atomic

from .. import clock, crash_points, timetable
from ..descriptions import describe
from ..exceptions import LockNotAvailable
from ..lifecycle.transaction import SHORT_WAIT, Transaction, in_transaction
from ..logs import event
from ..models import (
    Message,
    MissedRuns,
    Overlap,
    RunOutcome,
    Schedule,
    ScheduleRun,
    State,
    primary_alias,
)
from ..text import storable_text
from . import messages

#: Schedules fired in one transaction, so that it never holds locks for long.
BATCH = 50
#: The most moments that are computed in one go: a schedule of every minute that nobody fired for a
#: year is brought up to date in steps.
MOST_MOMENTS = 2_000
#: The most missed moments that are fired after an outage.
MOST_FIRED = 100
#: How long after a failure a schedule is tried again.
RETRY_AFTER = timedelta(seconds=60)
#: How long after it met a lock.
LOCKED_AFTER = timedelta(seconds=2)
#: Runs that are kept of each schedule; and how many more there may be before they are deleted.
KEPT, SLACK = 100, 20
#: Bytes of an error that are stored.
ERROR = 2_000


@dataclass(frozen=True)
class Firings:
    """What `fire_due` did."""

    #: Schedules that were due and not locked by another worker.
    schedules: int
    #: Messages that were sent.
    sent: int
    #: Schedules that cannot fire.
    failed: int


@dataclass(frozen=True)
class DueMoments:
    """The moments of a schedule that are due."""

    #: The latest ones, in order.
    latest: list[datetime]
    count: int
    first: datetime
    #: The first moment after them.
    following: datetime | None
    #: True if there may be more of them.
    is_part: bool


def seconds_until_due(*, using: str | None = None) -> float | None:
    """Return the seconds until a schedule is due, by the database's clock; None: there is none."""
    alias = primary_alias(using)
    rows = Schedule.objects.using(alias).filter(due_at__isnull=False).order_by("due_at", "id")
    due = rows.values_list(F("due_at"), flat=True).first()
    return None if due is None else (due - clock.now(alias)).total_seconds()


def fire_due(*, using: str | None = None, limit: int = BATCH) -> Firings:
    """Fire up to `limit` due schedules in one transaction, the longest overdue first."""
    done = in_transaction(lambda tx: _fire_some(tx, limit), using=using, wait=SHORT_WAIT)
    if done.schedules:
        crash_points.reach("schedule.fired")
    return done


def _fire_some(tx: Transaction, limit: int) -> Firings:
    now = tx.time()
    due = Schedule.objects.using(tx.using).due(now)
    rows = list(due.select_for_update(skip_locked=True)[:limit])
    if rows:
        crash_points.reach("schedule.firing")
    sent = failed = 0
    for schedule in rows:
        done = _fire_safely(tx, schedule, now)
        sent += done or 0
        failed += done is None
    return Firings(len(rows), sent, failed)


def _fire_safely(tx: Transaction, schedule: Schedule, now: datetime) -> int | None:
    """
    Fire one schedule; whatever prevents it is recorded and does not concern the others.

    Returns the number of messages; None if it failed.
    """
    try:
        # A savepoint, on SQLite too, where `attempt` makes none.
        with atomic(using=tx.using):
            return tx.attempt(lambda part: _fire(part, schedule, now))
    except LockNotAvailable:
        # Another transaction sends with the same key.
        Schedule.objects.using(tx.using).filter(pk=schedule.pk).update(due_at=now + LOCKED_AFTER)
        return 0
    except (OperationalError, InterfaceError):
        raise  # of the database, not of the schedule: the transaction is repeated
    except Exception as error:  # noqa: BLE001 - recorded: the code of tasks may raise anything
        _record_failure(tx, schedule.pk, now, error)
        return None


def _fire(tx: Transaction, schedule: Schedule, now: datetime) -> int:
    due = _due_moments(schedule, now)
    wanted = _choose(schedule, due, now)
    known = _known_runs(tx, schedule, due)
    outcome, sent = "", 0
    for moment in wanted:
        run = known.pop(moment, None)
        if run is not None and run.outcome != RunOutcome.FAILED:
            continue  # the moment has been fired
        if schedule.max_runs is not None and schedule.run_count >= schedule.max_runs:
            break
        run = run or ScheduleRun(schedule=schedule, moment=moment)
        _send(tx, schedule, run, now)
        run.save(using=tx.using)
        outcome = run.outcome
        sent += run.outcome == RunOutcome.SENT
    outcome = _record_missed(tx, schedule, due, wanted, known, now) or outcome
    schedule.last_at = due.latest[-1]
    schedule.last_outcome = outcome or schedule.last_outcome
    schedule.last_error, schedule.failing_since = "", None
    schedule.set_next(due.following)
    fields = ("last_at", "last_outcome", "last_error", "failing_since")
    schedule.save(using=tx.using, update_fields=[*fields, "next_at", "due_at", "run_count"])
    _trim(tx, schedule)
    crash_points.reach("schedule.recorded", schedule)
    return sent


def _due_moments(schedule: Schedule, now: datetime) -> DueMoments:
    """Return the due moments, beginning at the next one that was computed from the last one."""
    times = schedule.timetable()
    moment = first = schedule.next_at or schedule.due_at or now
    latest: deque[datetime] = deque(maxlen=MOST_FIRED)
    count = 0
    following: datetime | None = moment
    while following is not None and count < MOST_MOMENTS:
        moment = following
        if count and moment + timetable.offset(schedule.name, moment, schedule.jitter) > now:
            break
        latest.append(moment)
        count += 1
        following = times.after(moment)
    is_part = following is not None and _is_due(schedule, following, now)
    return DueMoments(list(latest), count, first, following, is_part)


def _is_due(schedule: Schedule, moment: datetime, now: datetime) -> bool:
    return moment + timetable.offset(schedule.name, moment, schedule.jitter) <= now


def _choose(schedule: Schedule, due: DueMoments, now: datetime) -> list[datetime]:
    """Return the moments to fire, in order; the others are missed."""
    if due.is_part:
        return []
    if schedule.missed == MissedRuns.ALL:
        return due.latest
    last = due.latest[-1]
    late = now - last - timetable.offset(schedule.name, last, schedule.jitter)
    if schedule.missed == MissedRuns.SKIP and late > schedule.grace:
        return []
    return [last]


def _known_runs(
    tx: Transaction, schedule: Schedule, due: DueMoments
) -> dict[datetime, ScheduleRun]:
    """Return the runs of due moments that have one: failed ones, as a rule."""
    rows = ScheduleRun.objects.using(tx.using).filter(
        schedule=schedule, moment__gte=due.first, moment__lte=due.latest[-1]
    )
    return {run.moment: run for run in rows.order_by("id") if run.moment is not None}


def _send(tx: Transaction, schedule: Schedule, run: ScheduleRun, now: datetime) -> None:
    """Send the message of a moment unless an earlier one hinders it, and say so in the run."""
    run.fired_at, run.why, run.message_id, run.count = now, "", None, 1
    run.outcome = RunOutcome.SKIPPED
    hindrance = _unfinished_message(tx, schedule, now)
    if hindrance is not None:
        run.why = f"message {hindrance} of an earlier moment is unfinished"
    else:
        stored = messages.send(tx, schedule, moment=run.moment)
        crash_points.reach("schedule.sent", schedule)
        if stored.is_new:
            run.outcome, run.message_id = RunOutcome.SENT, stored.message.pk
            schedule.run_count += 1
        else:
            run.why = f"message {stored.message.pk} has the key"
    if run.outcome == RunOutcome.SENT:
        event(
            logging.DEBUG,
            "schedule_fired",
            "schedule {schedule}: message {id} sent for {moment}",
            schedule=schedule.name,
            moment=_iso(run.moment),
            id=run.message_id,
        )
    else:
        event(
            logging.INFO,
            "schedule_skipped",
            "schedule {schedule}: nothing sent for {moment}: {why}",
            schedule=schedule.name,
            moment=_iso(run.moment),
            why=run.why,
        )


def _unfinished_message(tx: Transaction, schedule: Schedule, now: datetime) -> int | None:
    """
    Return the id of a message of the schedule that its overlap does not allow beside another.

    Unfinished means waiting or running. A dead message is not: it waits for a person.
    """
    if schedule.overlap == Overlap.ALLOW:
        return None
    runs = ScheduleRun.objects.using(tx.using).filter(schedule=schedule, message_id__isnull=False)
    found = Message.objects.using(tx.using).filter(pk__in=runs.values("message_id"))
    if schedule.overlap == Overlap.ONE:
        found = found.exclude(pk__in=found.in_state(State.ACTIVE, now).values("pk"))
    return found.order_by("pk").values_list("pk", flat=True).first()


def _record_missed(
    tx: Transaction,
    schedule: Schedule,
    due: DueMoments,
    wanted: Iterable[datetime],
    known: dict[datetime, ScheduleRun],
    now: datetime,
) -> str:
    """Record the moments that are not fired as one run; return its outcome if it is the last."""
    chosen = list(wanted)
    count = due.count - len(chosen)
    if count <= 0:
        return ""
    why = "no worker fired it in time"
    run = known.get(due.first)
    if run is None or run.outcome == RunOutcome.FAILED:
        why = f"{run.why}; {why}" if run is not None else why
        run = run or ScheduleRun(schedule=schedule, moment=due.first)
        run.fired_at, run.outcome, run.count, run.why = now, RunOutcome.MISSED, count, why
        run.save(using=tx.using)
    event(
        logging.WARNING,
        "schedule_missed",
        "schedule {schedule}: {count} moments from {moment} were missed",
        schedule=schedule.name,
        moment=_iso(due.first),
        count=count,
    )
    return "" if chosen else RunOutcome.MISSED.value


def _record_failure(tx: Transaction, pk: int, now: datetime, error: Exception) -> None:
    """Record why a schedule cannot fire. Its moment is not lost: it is tried again, or missed."""
    schedule = Schedule.objects.using(tx.using).get(pk=pk)
    text = storable_text(describe(error).text, limit=ERROR)
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


def _trim(tx: Transaction, schedule: Schedule) -> None:
    """Delete runs beyond the newest hundred, except those whose message is unfinished."""
    rows = ScheduleRun.objects.using(tx.using).filter(schedule=schedule)
    old = list(rows.order_by("-id").values_list("pk", "message_id")[KEPT : KEPT + 5 * SLACK])
    if len(old) < SLACK:
        return
    ids = [message for _, message in old if message is not None]
    open = set(Message.objects.using(tx.using).filter(pk__in=ids).values_list("pk", flat=True))
    rows.filter(pk__in=[pk for pk, message in old if message not in open]).delete()


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()
