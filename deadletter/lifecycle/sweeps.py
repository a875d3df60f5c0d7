"""
Sweep: periodic maintenance of the tables.

Quarantines expired messages, deletes what is past its retention, repairs stranded streams, marks
stuck instances, and folds the counters and the failure groups.
"""

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
from ..models import AuditEntry, Kind, PoisonRecord, Queue, Span, WorkerDeath
from ..status import FailureReason
from . import (
    archives,
    group_retention,
    group_states,
    inboxes,
    locks,
    results,
    retry_outcomes,
    streams,
)
from .counters import CounterKey
from .groups import fold_all_groups
from .instances import retention, stuck
from .outbox_batches import free_stranded_keys
from .policy_edits import wake_released
from .quarantine import MessageDeath, quarantine
from .transaction import SHORT_WAIT, Transaction, in_transaction

#: Rows per transaction, so that a sweep never holds locks for long.
CHUNK = 500
#: Deaths of workers, and audit entries, changed in one transaction.
SMALL_CHUNK = 100
#: How long deaths of workers are kept.
WORKER_DEATHS_KEPT = timedelta(days=30)
#: Rows of minutes this old are no longer written, except by transactions that last longer.
_SETTLED = timedelta(minutes=2)
_MINUTES_KEPT = timedelta(hours=3)
_HOURS_KEPT = timedelta(days=15)


@dataclass(frozen=True)
class Sweep:
    """What a sweep did. `repaired` counts broken streams and should always be 0."""

    expired: int
    forgotten: int
    repaired: int
    #: Retried messages whose outcome was added to the audit trail.
    followed: int = 0
    #: Instances past their retention that were deleted with their log.
    instances: int = 0
    #: Running instances newly found to wait for a lost message, see `stuck`.
    stuck: int = 0
    #: Audit entries whose payloads of an edit were past their retention and cleared.
    cleared: int = 0
    #: Results past their time that were deleted.
    results: int = 0
    #: Messages of the inbox past their retention that were deleted.
    inbox: int = 0
    #: Published messages past their time that were deleted from the archive.
    archive: int = 0
    #: Rows of counters that were folded into larger spans of time, or deleted.
    folded: int = field(default=0, compare=False)
    #: Failure groups past their retention that were deleted.
    groups: int = field(default=0, compare=False)


def sweep(
    *, using: str | None = None, by: str = "sweep", go_on: Callable[[], bool] = lambda: True
) -> Sweep:
    """
    Quarantine what expired, delete what is old, repair stranded streams, mark stuck instances.

    Waits for no lock: what another transaction has locked is left to the next sweep. `go_on` is
    called between its transactions, of which there may be thousands; once it returns False, the
    rest is left to the next sweep too.
    """

    def repeat(step: Callable[[Transaction], int]) -> int:
        total = 0
        while go_on() and (count := _try(step, using)):
            total += count
        return total

    _try(wake_released, using)
    _try(_recover_queues, using)
    _try(free_stranded_keys, using)
    repeat(_delete_worker_deaths)
    expired = repeat(lambda tx: _expire(tx, by))
    fold_all_groups(using=using)
    repeat(group_states.end_mutes)
    repeat(lambda tx: group_retention.delete_old_hours(tx, limit=CHUNK))
    repeat(lambda tx: group_retention.delete_old_tags(tx, limit=CHUNK))
    return Sweep(
        expired=expired,
        forgotten=repeat(_delete_old_poison),
        repaired=_try(_repair_streams, using),
        followed=repeat(lambda tx: retry_outcomes.close(tx, limit=CHUNK)),
        instances=repeat(retention.delete_ended),
        stuck=stuck.mark_stuck(using=using),
        cleared=repeat(_clear_edits),
        results=repeat(lambda tx: results.delete_old_results(tx, limit=CHUNK)),
        inbox=repeat(lambda tx: inboxes.delete_old_inbox(tx, limit=CHUNK)),
        archive=repeat(lambda tx: archives.delete_old_archive(tx, limit=CHUNK)),
        folded=repeat(_fold_counters),
        groups=repeat(lambda tx: group_retention.delete_old_groups(tx, limit=CHUNK)),
    )


def _try(step: Callable[[Transaction], int], using: str | None) -> int:
    """Do one step; a step that meets a lock is left to the next sweep."""
    try:
        return in_transaction(step, using=using, wait=SHORT_WAIT)
    except LockNotAvailable:
        return 0


def _expire(tx: Transaction, by: str) -> int:
    ids = [row[0] for row in tx.run("read_expired", limit=CHUNK)]
    if not ids:
        return 0
    # A stream that another transaction has locked is left to the next sweep.
    wanted = set(ids) - set(locks.try_lock_streams_of(tx, ids))
    # Read again under the locks: one may have been claimed in between.
    still = [row[0] for row in tx.run("read_expired", limit=CHUNK) if row[0] in wanted]
    deaths = [
        MessageDeath(id, FailureReason.EXPIRED, "expired before it was handled") for id in still
    ]
    done = locks.for_each_unlocked(tx, deaths, lambda tx, some: quarantine(tx, some, by=by))
    return sum(len(dead) for dead in done.results)


def _recover_queues(tx: Transaction) -> int:
    """
    Create a paused queue for messages whose queue is gone, so that operators see them.

    A queue is deleted only when it is empty, see models/queue.py; this is for a process that died
    before it could check again, and for rows that were deleted by hand.
    """
    gone = [row[0] for row in tx.run("read_deleted_queues")]
    for id in gone:
        name = f"recovered-{id}"
        try:
            with atomic(using=tx.using):
                Queue(id=id, name=name, paused=True).save(using=tx.using, force_insert=True)
        except (IntegrityError, ValidationError):
            continue  # another sweep has created it
        event(
            logging.ERROR,
            "queue_recovered",
            "messages of queue {queue_id}, which is gone, were found: they are in queue {queue}, "
            "which is paused. Resume it, or remove them",
            queue_id=id,
            queue=name,
        )
    return 0


def _delete_old_poison(tx: Transaction) -> int:
    rows = tx.run("read_old_poison", limit=CHUNK)
    ids = [row[0] for row in rows]
    results.keep_results_of_poison(tx, [row[0] for row in rows if row[3] == Kind.TASK])
    PoisonRecord.objects.using(tx.using).filter(pk__in=ids).delete()
    for _id, queue, name, kind in rows:
        tx.counts.add(CounterKey(queue, name, kind), "removed")
    return len(rows)


def _delete_worker_deaths(tx: Transaction) -> int:
    """Delete some deaths of workers older than WORKER_DEATHS_KEPT; return how many."""
    rows = WorkerDeath.objects.using(tx.using).filter(died_at__lte=tx.time() - WORKER_DEATHS_KEPT)
    ids = list(
        rows.select_for_update(skip_locked=True)
        .order_by("died_at", "id")
        .values_list("pk", flat=True)[:SMALL_CHUNK]
    )
    WorkerDeath.objects.using(tx.using).filter(pk__in=ids).delete()
    return len(ids)


def _clear_edits(tx: Transaction) -> int:
    """
    Clear the payloads of some edits past DEADLETTER["AUDIT_PAYLOADS_KEPT"]; return how many.

    The audit entries stay: who edited what, when and why is kept for good.
    """
    kept = get_settings().audit_payloads_kept
    if kept is None:
        return 0
    rows = AuditEntry.objects.using(tx.using)
    old = rows.filter(payload_after__isnull=False, at__lte=tx.time() - kept)
    ids = list(
        old.select_for_update(skip_locked=True)
        .order_by("at", "id")
        .values_list("pk", flat=True)[:SMALL_CHUNK]
    )
    rows.filter(pk__in=ids).update(payload_before=None, payload_after=None)
    return len(ids)


def _fold_counters(tx: Transaction) -> int:
    """
    Fold counters: all writers into one, minutes into hours, hours into days, days into one row.

    Each span is kept longer than the longest chart of it: an hour of minutes, a week of hours.
    """
    now = tx.time()
    limit = 10 * CHUNK
    done = tx.run("fold_writers", before=now - _SETTLED, limit=limit)
    for span, into, age in (
        (Span.MINUTE, Span.HOUR, _MINUTES_KEPT),
        (Span.HOUR, Span.DAY, _HOURS_KEPT),
        (Span.DAY, Span.EVER, get_settings().counts_kept),
    ):
        # Whole spans only: a day is stored either as hours or as one day.
        before = _start_of(into, now - age)
        done += tx.run("fold_spans", span=int(span), into=int(into), before=before, limit=limit)
    return len(done)


def _start_of(span: Span, moment: datetime) -> datetime:
    moment = moment.astimezone(UTC)
    start = moment.replace(minute=0, second=0, microsecond=0)
    return start if span is Span.HOUR else start.replace(hour=0)


def _repair_streams(tx: Transaction) -> int:
    stranded = [(row[0], row[1]) for row in tx.run("read_stuck_streams")]
    if not stranded:
        return 0
    ours = locks.try_lock_streams(tx, stranded)
    # Read again under the locks: a settle that was in progress may have woken its stream.
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
