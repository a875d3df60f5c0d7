"""
How is a long act done? Piece by piece, each a transaction; interrupted, the same call goes on.

What matches is fixed when the act begins: a record that dies later is not touched. A piece that was
done is gone from the poison, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..lifecycle.enqueue import send
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, BulkJob, Queue
from . import audit
from .filters import PoisonFilter
from .poison import Terms, alias_of, removing, retrying

#: Records per transaction.
PIECE = 1_000
#: The queue and the message name of work that goes on in the background.
QUEUE = "deadletter"
NAME = "deadletter.bulk"
#: Refusals whose reasons are kept; the rest is counted.
_REASONS = 100

Progress = Callable[[int], None]


@dataclass
class Total:
    """What an act on many records did."""

    done: int = 0
    refused: int = 0
    reasons: dict[int, str] = field(default_factory=dict)
    entry_id: int = 0


def retry_matching(
    wanted: PoisonFilter,
    *,
    by: str | None = None,
    why: str = "",
    queue: str | None = None,
    rate: float | None = None,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """Retry every record that matches now; `progress` is told how many were looked at."""
    terms = Terms(queue=queue, rate=rate)
    return _all(Act.RETRY, wanted, terms, by=by, why=why, progress=progress, using=using)


def remove_matching(
    wanted: PoisonFilter,
    *,
    by: str | None = None,
    why: str = "",
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """Remove every record that matches now, for good."""
    return _all(Act.REMOVE, wanted, Terms(), by=by, why=why, progress=progress, using=using)


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
    Begin an act that a worker carries on in the background, as messages of its own queue.

    `wanted` must be fixed (`PoisonFilter.fixed`); `total` is what was shown when it was confirmed.
    """
    if act not in (Act.RETRY, Act.REMOVE) or wanted.up_to is None:
        raise ValueError("a job retries or removes what a fixed filter matches")
    terms = Terms(queue=queue, rate=rate)
    alias = alias_of(using)

    def work(tx: Transaction) -> BulkJob:
        entry = audit.record(
            tx, act, by=by, why=why, selection=wanted.as_dict(), detail=terms.as_dict()
        )
        job = BulkJob.objects.using(alias).create(
            entry=entry,
            total=total,
            last_id=wanted.up_to or 0,
            created_at=tx.time(),
            updated_at=tx.time(),
        )
        _own_queue(alias)
        send(NAME, {"job": job.pk}, queue=QUEUE, using=alias)
        return job

    return in_transaction(work, using=alias)


def step_job(job_id: int, *, using: str | None = None) -> bool:
    """Do one piece of a job and ask for the next; False when there is nothing more to do."""
    alias = alias_of(using)

    def work(tx: Transaction) -> bool:
        jobs = BulkJob.objects.using(alias).select_for_update().select_related("entry")
        job = jobs.filter(pk=job_id).first()
        if job is None or job.state != BulkJob.State.RUNNING:
            return False
        wanted = PoisonFilter.from_dict(job.entry.selection)
        terms = Terms.from_dict(job.entry.detail)
        act = Act(job.entry.act)
        seen, piece = _piece(tx, act, job.entry, wanted, terms, job.next_id, job.done)
        job.next_id = seen
        job.done += piece.done
        job.refused += piece.refused
        if not seen:
            job.state = BulkJob.State.DONE
        job.updated_at = tx.time()
        job.save(using=alias, update_fields=["next_id", "done", "refused", "state", "updated_at"])
        if seen:
            send(NAME, {"job": job.pk}, queue=QUEUE, using=alias)
        return bool(seen)

    return in_transaction(work, using=alias)


def control_job(job_id: int, state: str, *, using: str | None = None) -> BulkJob:
    """Pause, resume or cancel a job. Raises ValueError when it is over."""
    alias = alias_of(using)

    def work(tx: Transaction) -> BulkJob:
        job = BulkJob.objects.using(alias).select_for_update().get(pk=job_id)
        if job.state in (BulkJob.State.DONE, BulkJob.State.CANCELLED):
            raise ValueError(f"job {job.pk} is {job.state}; it cannot be changed any more")
        resumed = state == BulkJob.State.RUNNING != job.state
        job.state = BulkJob.State(state)
        job.updated_at = tx.time()
        job.save(using=alias, update_fields=["state", "updated_at"])
        if resumed:
            send(NAME, {"job": job.pk}, queue=QUEUE, using=alias)
        return job

    return in_transaction(work, using=alias)


def _own_queue(alias: str) -> None:
    """Made when it is first needed: most installations never see it."""
    if not Queue.objects.using(alias).filter(name=QUEUE).exists():
        policy = {"max_attempts": 10, "backoff_base": 1, "backoff_cap": 60}
        Queue(name=QUEUE, **policy).save(using=alias, force_insert=True)


def _all(
    act: Act,
    wanted: PoisonFilter,
    terms: Terms,
    *,
    by: str | None,
    why: str,
    progress: Progress | None,
    using: str | None,
) -> Total:
    alias = alias_of(using)
    fixed = wanted if wanted.up_to is not None else wanted.fixed(alias)
    entry = in_transaction(
        lambda tx: audit.record(
            tx, act, by=by, why=why, selection=fixed.as_dict(), detail=terms.as_dict()
        ),
        using=alias,
    )
    total = Total(entry_id=entry.pk)
    seen = looked_at = 0
    while True:
        after = seen
        seen, piece = in_transaction(
            lambda tx: _piece(tx, act, entry, fixed, terms, after, total.done),  # noqa: B023
            using=alias,
        )
        total.done += piece.done
        total.refused += piece.refused
        total.reasons |= dict(list(piece.reasons.items())[: _REASONS - len(total.reasons)])
        if not seen:
            return total
        looked_at += piece.done + piece.refused
        if progress is not None:
            progress(looked_at)


def _piece(
    tx: Transaction,
    act: Act,
    entry: AuditEntry,
    wanted: PoisonFilter,
    terms: Terms,
    after: int,
    start: int,
) -> tuple[int, Total]:
    """Do the next records behind `after`; return the last id looked at, 0 when none was left."""
    rows = wanted.records(tx.using).filter(pk__gt=after)
    ids = list(rows.values_list("pk", flat=True)[:PIECE])
    if not ids:
        return 0, Total()
    if act == Act.REMOVE:
        removed = removing(tx, entry, ids, by=entry.by)
        return ids[-1], Total(done=len(removed.removed))
    retried = retrying(tx, entry, ids, terms, by=entry.by, start=start)
    return ids[-1], Total(len(retried.retried), len(retried.refused), retried.refused)
