"""What nobody else tidies up: expired messages, old poison, streams and instances left alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.db.transaction import atomic

from ..conf import get_settings
from ..exceptions import LockNotAvailable
from ..logs import event
from ..models import Queue, Span
from ..status import FailureReason
from . import locks, retry_outcomes, streams
from .counters import Subject
from .instances import retention, stuck
from .policy_edits import wake_released
from .quarantine import Death, quarantine
from .transaction import SHORT_WAIT, Transaction, in_transaction

#: Rows per transaction, so that a sweep never holds locks for long.
CHUNK = 500
#: Minutes this old are no longer written to, except by transactions that last longer.
_SETTLED = timedelta(minutes=2)
_MINUTES_KEPT = timedelta(hours=3)
_HOURS_KEPT = timedelta(days=15)


@dataclass(frozen=True)
class Sweep:
    """What a sweep did. `repaired` counts broken streams and should always be 0."""

    expired: int
    forgotten: int
    repaired: int
    #: Retried messages whose end has been entered in the audit trail.
    followed: int = 0
    #: Instances that ended long ago and were removed with their timeline.
    instances: int = 0
    #: Running instances newly found to wait for what was lost, see `stuck`.
    stuck: int = 0
    #: Audit entries that lost the payloads of an edit, which were kept long enough.
    cleared: int = 0
    #: Rows of counters folded into larger spans of time, or forgotten.
    folded: int = field(default=0, compare=False)


def sweep(*, using: str | None = None, by: str = "sweep") -> Sweep:
    """
    Quarantine what expired, remove what is old, repair stranded streams, mark the stuck.

    Waits for nobody: what another transaction has locked is left to the next sweep.
    """
    _try(wake_released, using)
    _try(_adopt, using)
    _until_nothing_is_left(retention.forget_deaths, using)
    return Sweep(
        expired=_until_nothing_is_left(lambda tx: _expire(tx, by), using),
        forgotten=_until_nothing_is_left(_forget, using),
        repaired=_try(_repair, using),
        followed=_until_nothing_is_left(lambda tx: retry_outcomes.close(tx, limit=CHUNK), using),
        instances=_until_nothing_is_left(retention.forget_ended, using),
        stuck=stuck.mark_stuck(using=using),
        cleared=_until_nothing_is_left(retention.clear_edits, using),
        folded=_until_nothing_is_left(_fold, using),
    )


def _until_nothing_is_left(step: Callable[[Transaction], int], using: str | None) -> int:
    total = 0
    while count := _try(step, using):
        total += count
    return total


def _try(step: Callable[[Transaction], int], using: str | None) -> int:
    """Do one step; one that somebody is in the way of is left to the next sweep."""
    try:
        return in_transaction(step, using=using, wait=SHORT_WAIT)
    except LockNotAvailable:
        return 0


def _expire(tx: Transaction, by: str) -> int:
    ids = [row[0] for row in tx.run("read_expired", limit=CHUNK)]
    if not ids:
        return 0
    # Only what can be had: a stream that somebody else holds is left to the next sweep.
    wanted = set(ids) - set(locks.try_streams(tx, ids))
    # Read again under the locks: somebody may have claimed one in between.
    still = [row[0] for row in tx.run("read_expired", limit=CHUNK) if row[0] in wanted]
    deaths = [Death(id, FailureReason.EXPIRED, "expired before it was handled") for id in still]
    done = locks.each_free(tx, deaths, lambda tx, some: quarantine(tx, some, by=by))
    return sum(len(dead) for dead in done.results)


def _adopt(tx: Transaction) -> int:
    """
    Give messages whose queue is gone a paused queue under its id, where people see them.

    A queue is deleted only when it is empty, see models/queue.py; this is for a process that died
    before it could look again, and for rows that were deleted by hand.
    """
    gone = [row[0] for row in tx.run("read_deleted_queues")]
    for id in gone:
        name = f"recovered-{id}"
        try:
            with atomic(using=tx.using):
                Queue(id=id, name=name, paused=True).save(using=tx.using, force_insert=True)
        except (IntegrityError, ValidationError):
            continue  # another sweep was faster
        event(
            logging.ERROR,
            "queue_recovered",
            "messages of queue {queue_id}, which is gone, were found: they are in queue {queue}, "
            "which is paused. Resume it, or remove them",
            queue_id=id,
            queue=name,
        )
    return 0


def _forget(tx: Transaction) -> int:
    rows = tx.run("delete_old_poison", limit=CHUNK)
    for _id, queue, name, kind in rows:
        tx.counts.add(Subject(queue, name, kind), "removed")
    return len(rows)


def _fold(tx: Transaction) -> int:
    """
    Fold counters: of all writers into one, minutes into hours, hours into days, days into one row.

    Each level is kept longer than the longest look at it: an hour of minutes, a week of hours.
    """
    now = tx.time()
    limit = 10 * CHUNK
    done = tx.run("fold_writers", before=now - _SETTLED, limit=limit)
    for span, into, age in (
        (Span.MINUTE, Span.HOUR, _MINUTES_KEPT),
        (Span.HOUR, Span.DAY, _HOURS_KEPT),
        (Span.DAY, Span.EVER, get_settings().counts_kept),
    ):
        # Whole spans only: a day is either all hours or one day.
        before = _start_of(into, now - age)
        done += tx.run("fold_spans", span=int(span), into=int(into), before=before, limit=limit)
    return len(done)


def _start_of(span: Span, moment: datetime) -> datetime:
    moment = moment.astimezone(UTC)
    start = moment.replace(minute=0, second=0, microsecond=0)
    return start if span is Span.HOUR else start.replace(hour=0)


def _repair(tx: Transaction) -> int:
    stranded = [(row[0], row[1]) for row in tx.run("read_stuck_streams")]
    if not stranded:
        return 0
    ours = locks.try_named(tx, stranded)
    # Judge again under the locks: a settle that was under way has woken its stream by now.
    still = {(row[0], row[1]) for row in tx.run("read_stuck_streams")} & ours
    woken = streams.wake(tx, still)
    for queue_id, stream in sorted(still):
        event(
            logging.ERROR,
            "stream_repaired",
            "stream {stream} of queue {queue_id} had parked messages and nothing to wake them; "
            "repaired. Please report this: it should never happen",
            stream=stream,
            queue_id=queue_id,
        )
    return len(woken)
