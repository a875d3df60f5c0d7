"""
Fire: send the messages of due schedules, and record their moments, in one transaction.

Any worker may do it. The rows of due schedules are locked, and what another worker has locked is
left to it; the next moment is written with the message of the last one, and (schedule, moment) is
unique. So a moment is fired once, whichever process ends at which point.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import InterfaceError, OperationalError
from django.db.models import F, Q
from django.db.transaction import atomic

from .. import clock, crash_points, timetable
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
from . import messages, run_history

#: Schedules fired in one transaction, so that it never holds locks for long.
BATCH = 50
#: The most moments of a schedule that are computed in one go: one of every minute that nobody fired
#: for a year is brought up to date in steps. A transaction that has computed as many ends: those of
#: cron expressions take 30 µs each, and its locks must not be held for seconds.
MOST_MOMENTS = 2_000
#: The most missed moments that are fired after an outage.
MOST_FIRED = 100
#: How long after it met a lock a schedule is tried again.
LOCKED_AFTER = timedelta(seconds=2)


@dataclass(frozen=True)
class Firings:
    """What `fire_due` did."""

    #: Schedules that were due, and not locked by another transaction.
    schedules: int = 0
    #: Messages that were sent.
    sent: int = 0
    #: Schedules that cannot fire.
    failed: int = 0
    #: Moments that were computed.
    moments: int = 0
    #: True if more schedules may be due.
    is_part: bool = False


@dataclass(frozen=True)
class DueMoments:
    """The moments of a schedule that are due, or the first of them."""

    #: The latest ones, in order.
    latest: list[datetime]
    count: int
    first: datetime
    #: The first moment after them.
    following: datetime | None
    #: True if there are more. Those that may have to be fired are never among the first.
    is_part: bool


def seconds_until_due(*, using: str | None = None) -> float | None:
    """Return the seconds until a schedule is due, by the database's clock; None: there is none."""
    alias = primary_alias(using)
    rows = Schedule.objects.using(alias).filter(due_at__isnull=False).order_by("due_at", "id")
    due = rows.values_list(F("due_at"), flat=True).first()
    return None if due is None else (due - clock.now(alias)).total_seconds()


def fire_due(*, using: str | None = None, limit: int = BATCH) -> Firings:
    """
    Fire up to `limit` due schedules in one transaction, the longest overdue first.

    Fewer if they have many moments; `is_part` of the result says that more may be due.
    """
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
    done = Firings(is_part=len(rows) == limit)
    for schedule in rows:
        if done.moments >= MOST_MOMENTS:
            return replace(done, is_part=True)
        one = _fire_safely(tx, schedule, now)
        done = Firings(
            schedules=done.schedules + 1,
            sent=done.sent + one.sent,
            failed=done.failed + one.failed,
            moments=done.moments + one.moments,
            is_part=done.is_part or one.is_part,
        )
    return done


def _fire_safely(tx: Transaction, schedule: Schedule, now: datetime) -> Firings:
    """Fire one schedule; whatever prevents it is recorded and does not concern the others."""
    try:
        # A savepoint, on SQLite too, where `attempt` makes none.
        with atomic(using=tx.using):
            return tx.attempt(lambda part: _fire(part, schedule, now))
    except LockNotAvailable:
        # Another transaction sends with the same key.
        Schedule.objects.using(tx.using).filter(pk=schedule.pk).update(due_at=now + LOCKED_AFTER)
        return Firings()
    except (OperationalError, InterfaceError):
        raise  # of the database, not of the schedule: the transaction is repeated
    except Exception as error:  # noqa: BLE001 - recorded: the code of tasks may raise anything
        run_history.record_failure(tx, schedule.pk, now, error)
        return Firings(failed=1)


def _fire(tx: Transaction, schedule: Schedule, now: datetime) -> Firings:
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
    if missed := due.count - len(wanted):
        run_history.record_missed(
            tx, schedule, first=due.first, count=missed, known=known.get(due.first), now=now
        )
        outcome = outcome if wanted else RunOutcome.MISSED.value
    schedule.last_at = due.latest[-1]
    schedule.last_outcome = outcome or schedule.last_outcome
    schedule.last_error, schedule.failing_since = "", None
    schedule.set_next(due.following)
    if due.is_part:
        # Behind the others: it takes several turns, and they need not wait for it.
        schedule.due_at = now
    fields = ("last_at", "last_outcome", "last_error", "failing_since")
    schedule.save(using=tx.using, update_fields=[*fields, "next_at", "due_at", "run_count"])
    run_history.trim_runs(tx, schedule)
    crash_points.reach("schedule.recorded", schedule)
    moments = MOST_MOMENTS if due.is_part else due.count
    return Firings(sent=sent, moments=moments, is_part=due.is_part)


def _due_moments(schedule: Schedule, now: datetime) -> DueMoments:
    """Return the due moments, beginning at the next one that was computed from the last one."""
    times = schedule.timetable()
    moment = first = schedule.next_at or schedule.due_at or now
    latest: deque[datetime] = deque(maxlen=MOST_FIRED + 1)
    count = 0
    following: datetime | None = moment
    while following is not None and count < MOST_MOMENTS:
        moment = following
        if count and not _is_due(schedule, moment, now):
            break
        latest.append(moment)
        count += 1
        following = times.after(moment)
    if following is not None and count == MOST_MOMENTS and _is_due(schedule, following, now):
        # Only the latest hundred are ever fired; these may be among them.
        return DueMoments([latest[0]], count - MOST_FIRED, first, latest[1], is_part=True)
    return DueMoments(list(latest)[-MOST_FIRED:], count, first, following, is_part=False)


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
    is_free = Q(available_at=None) | Q(available_at__lte=now)
    runs = ScheduleRun.objects.using(tx.using).filter(schedule=schedule, message_id__isnull=False)
    found = Message.objects.using(tx.using).filter(pk__in=runs.values("message_id"))
    # Expired, so it is dead, although no sweep has met it yet.
    found = found.exclude(is_free, expires_at__isnull=False, expires_at__lte=now)
    if schedule.overlap == Overlap.ONE:
        found = found.exclude(pk__in=found.in_state(State.ACTIVE, now).values("pk"))
    return found.order_by("pk").values_list("pk", flat=True).first()


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()
