"""
Acts on all poison records that a filter matches: at once, or as a job in the background.

The records are fixed when the act begins: a record that dies later is not touched. A record that
was done is gone from the poison, so an interrupted act is repeated without doing anything twice.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

from .. import clock
from ..durations import Duration, as_timedelta
from ..lifecycle import internal_queue
from ..lifecycle.enqueue import send
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, BulkJob, primary_alias
from ..text import storable_text
from . import acts, audit
from .acts import Progress, Total, Verb, act_on_matches
from .filters import PoisonFilter
from .poison_records import RetryOptions, remove_piece, retry_piece
from .queues import require_queue

#: The queue and the message name of background jobs.
QUEUE = internal_queue.QUEUE
NAME = "deadletter.bulk"
#: Columns of an audit entry that may be large, as a job sees them.
_LARGE = tuple(f"entry__{name}" for name in AuditEntry.LARGE)


def retry_matching(
    wanted: PoisonFilter,
    *,
    by: str | None = None,
    why: str = "",
    queue: str | None = None,
    rate: float | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """
    Retry every record that matches now, oldest first; with `limit`, at most the first so many.

    `progress` is called with the number of records looked at. Raises UnknownQueue before
    any change.
    """
    options = RetryOptions(queue=queue, rate=rate)
    if queue is not None:
        require_queue(queue, using=using)
    new = audit.NewEntry(act=Act.RETRY, by=by, why=why, detail=options.as_dict())
    verb = partial(retry_piece, options=options, by=by)
    return _act_on_matches(new, verb, wanted, limit, progress, using)


def remove_matching(
    wanted: PoisonFilter,
    *,
    by: str | None = None,
    why: str = "",
    limit: int | None = None,
    progress: Progress | None = None,
    act: Act = Act.REMOVE,
    using: str | None = None,
) -> Total:
    """Remove every record that matches now, for good, oldest first."""
    new = audit.NewEntry(act=act, by=by, why=why)
    return _act_on_matches(new, partial(remove_piece, by=by), wanted, limit, progress, using)


def purge(
    older_than: Duration,
    *,
    queue: str | None = None,
    by: str | None = None,
    why: str = "",
    limit: int | None = None,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """Remove poison that died longer ago than this, for good; streams that it halted go on."""
    return remove_matching(
        purge_filter(older_than, queue=queue, using=using),
        by=by,
        why=why,
        limit=limit,
        progress=progress,
        act=Act.PURGE,
        using=using,
    )


def purge_filter(
    older_than: Duration, *, queue: str | None = None, using: str | None = None
) -> PoisonFilter:
    """Return the filter of the records that `purge` removes."""
    age: timedelta = as_timedelta(older_than, field="older_than")
    return PoisonFilter(queue=queue, until=clock.now(primary_alias(using)) - age)


def start_job(
    act: Act,
    wanted: PoisonFilter,
    *,
    total: int,
    by: str | None = None,
    why: str = "",
    queue: str | None = None,
    rate: float | None = None,
    using: str | None = None,
) -> BulkJob:
    """
    Start an act that a worker does in the background, as messages of deadletter's internal queue.

    `wanted` must be fixed (`PoisonFilter.fixed`); `total` is the number that the user confirmed.
    """
    if act not in (Act.RETRY, Act.REMOVE) or wanted.up_to is None:
        raise ValueError("a job retries or removes what a fixed filter matches")
    options = RetryOptions(queue=queue, rate=rate)
    alias = primary_alias(using)
    if queue is not None:
        require_queue(queue, using=alias)
    selection, detail = wanted.as_dict(), options.as_dict()
    new = audit.NewEntry(act=act, by=by, why=why, selection=selection, detail=detail)

    def work(tx: Transaction) -> BulkJob:
        entry = audit.record(tx, new)
        job = BulkJob.objects.using(alias).create(
            entry=entry,
            total=total,
            last_id=wanted.up_to or 0,
            created_at=tx.time(),
            updated_at=tx.time(),
        )
        internal_queue.ensure_internal_queue(alias)
        _send_next(job, alias)
        return job

    return in_transaction(work, using=alias)


def step_job(job_id: int, *, using: str | None = None) -> bool:
    """Do one piece of a job and send the message for the next; return False if the job is over."""
    alias = primary_alias(using)

    def work(tx: Transaction) -> bool:
        jobs = BulkJob.objects.using(alias).select_for_update().select_related("entry")
        job = jobs.filter(pk=job_id).first()
        if job is None or job.state != BulkJob.State.RUNNING:
            return False
        rows = PoisonFilter.from_dict(job.entry.selection).records(alias)
        behind = rows.filter(pk__gt=job.next_id).values_list("pk", flat=True)
        ids = list(behind[: acts.PIECE])
        if ids:
            start = job.done + job.refused
            new, verb = _new_entry(job.entry), _verb(job.entry)
            result, _ = acts.act_in(tx, new, verb, ids, start=start, entry=job.entry)
            job.done += len(result.done)
            job.refused += len(result.refused)
        else:
            job.state = BulkJob.State.DONE
        job.next_id = ids[-1] if ids else 0
        job.updated_at = tx.time()
        job.save(using=alias, update_fields=["next_id", "done", "refused", "state", "updated_at"])
        if ids:
            _send_next(job, alias)
        return bool(ids)

    return in_transaction(work, using=alias)


def list_jobs(
    *, state: str | None = None, limit: int = 50, using: str | None = None
) -> list[BulkJob]:
    """List jobs with their audit entries, the latest first."""
    alias = primary_alias(using)
    rows = BulkJob.objects.using(alias).select_related("entry").defer(*_LARGE)
    if state is not None:
        rows = rows.filter(state=BulkJob.State(state))
    return list(rows.order_by("-pk")[:limit])


def get_job(job_id: int, *, using: str | None = None) -> BulkJob | None:
    """Return one job with its audit entry, or None."""
    rows = BulkJob.objects.using(primary_alias(using)).select_related("entry").defer(*_LARGE)
    return rows.filter(pk=job_id).first()


def control_job(
    job_id: int, state: str, *, by: str | None = None, using: str | None = None
) -> BulkJob:
    """
    Pause, resume or cancel a job; its audit entry keeps who did it, and when.

    Raises ValueError if the job is over.
    """
    alias = primary_alias(using)

    def work(tx: Transaction) -> BulkJob:
        jobs = BulkJob.objects.using(alias).select_for_update(of=("self",))
        job = jobs.select_related("entry").get(pk=job_id)
        if job.state in (BulkJob.State.DONE, BulkJob.State.CANCELLED):
            raise ValueError(f"job {job.pk} is {job.state}; it cannot be changed any more")
        resumed = state == BulkJob.State.RUNNING != job.state
        job.state = BulkJob.State(state)
        job.updated_at = tx.time()
        job.save(using=alias, update_fields=["state", "updated_at"])
        step = {"state": job.state.value, "by": storable_text(by or "", limit=200)}
        steps = [*job.entry.detail.get("steps", []), {**step, "at": tx.time().isoformat()}]
        job.entry.detail = {**job.entry.detail, "steps": steps}
        job.entry.save(using=alias, update_fields=["detail"])
        if resumed:
            _send_next(job, alias)
        return job

    return in_transaction(work, using=alias)


def _send_next(job: BulkJob, alias: str) -> None:
    # The job may be in another database than the one that the router names.
    send(NAME, {"job": job.pk, "using": alias}, queue=QUEUE, using=alias)


def _new_entry(entry: AuditEntry) -> audit.NewEntry:
    return audit.NewEntry(act=Act(entry.act), by=entry.by)


def _verb(entry: AuditEntry) -> Verb:
    if entry.act == Act.RETRY:
        return partial(retry_piece, options=RetryOptions.from_dict(entry.detail), by=entry.by)
    return partial(remove_piece, by=entry.by)


def _act_on_matches(
    new: audit.NewEntry,
    verb: Verb,
    wanted: PoisonFilter,
    limit: int | None,
    progress: Progress | None,
    using: str | None,
) -> Total:
    alias = primary_alias(using)
    fixed = wanted if wanted.up_to is not None else wanted.fixed(alias)
    new = replace(new, selection=fixed.as_dict() | ({"limit": limit} if limit else {}))
    return act_on_matches(
        new, verb, lambda: fixed.records(alias), limit=limit, progress=progress, using=alias
    )
