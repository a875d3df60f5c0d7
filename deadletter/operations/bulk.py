"""
How is a long act done? Piece by piece, each a transaction; interrupted, the same call goes on.

What matches is fixed when the act begins: a record that dies later is not touched. A piece that was
done is gone from the poison, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..error_details import printable
from ..lifecycle import internal_queue
from ..lifecycle.act_results import ActResult
from ..lifecycle.enqueue import send
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, BulkJob
from . import audit
from .acting import PIECE, Verb, after_pieces, alias_of, step
from .filters import PoisonFilter
from .poison_records import Terms, removal, retrial
from .queue_names import require_queue

#: The queue and the message name of work that goes on in the background.
QUEUE = internal_queue.QUEUE
NAME = "deadletter.bulk"
#: Refusals whose reasons are kept; the rest is counted.
_REASONS = 100

Progress = Callable[[int], None]


@dataclass
class Total:
    """What an act on many records did."""

    done: int = 0
    refused: int = 0
    #: Why, of the first hundred.
    reasons: dict[int, str] = field(default_factory=dict)
    #: Gone before their turn came: somebody else was faster.
    missing: int = 0
    #: The audit entry; 0 when nothing was done.
    entry_id: int = 0

    def add(self, piece: ActResult) -> int:
        """Add a piece; return how many were looked at in all."""
        self.done += len(piece.done)
        self.refused += len(piece.refused)
        self.missing += len(piece.missing)
        room = _REASONS - len(self.reasons)
        self.reasons |= dict(list(piece.refused.items())[:room])
        return self.done + self.refused + self.missing


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
    Retry every record that matches now, oldest first; with `limit`, the first so many.

    `progress` is told how many were looked at. Raises UnknownQueue before anything is touched.
    """
    terms = Terms(queue=queue, rate=rate)
    if queue is not None:
        require_queue(queue, using=using)
    opening = audit.Opening(act=Act.RETRY, by=by, why=why, detail=terms.as_dict())
    return _all(opening, retrial(terms, by), wanted, limit, progress, using)


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
    opening = audit.Opening(act=act, by=by, why=why)
    return _all(opening, removal(by), wanted, limit, progress, using)


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
    if queue is not None:
        require_queue(queue, using=alias)
    opening = audit.Opening(
        act=act, by=by, why=why, selection=wanted.as_dict(), detail=terms.as_dict()
    )

    def work(tx: Transaction) -> BulkJob:
        entry = audit.record(tx, opening)
        job = BulkJob.objects.using(alias).create(
            entry=entry,
            total=total,
            last_id=wanted.up_to or 0,
            created_at=tx.time(),
            updated_at=tx.time(),
        )
        internal_queue.own_queue(alias)
        _ask_for_more(job, alias)
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
        seen, piece, _entry = _piece(
            tx,
            _opening(job.entry),
            _verb(job.entry),
            wanted,
            entry=job.entry,
            after=job.next_id,
            start=job.done + job.refused,
            size=PIECE,
        )
        job.next_id = seen
        job.done += len(piece.done)
        job.refused += len(piece.refused)
        if not seen:
            job.state = BulkJob.State.DONE
        job.updated_at = tx.time()
        job.save(using=alias, update_fields=["next_id", "done", "refused", "state", "updated_at"])
        if seen:
            _ask_for_more(job, alias)
        return bool(seen)

    return in_transaction(work, using=alias)


def control_job(
    job_id: int, state: str, *, by: str | None = None, using: str | None = None
) -> BulkJob:
    """
    Pause, resume or cancel a job; its audit entry says who did, and when.

    Raises: ValueError when it is over.
    """
    alias = alias_of(using)

    def work(tx: Transaction) -> BulkJob:
        jobs = BulkJob.objects.using(alias).select_for_update(of=("self",))
        job = jobs.select_related("entry").get(pk=job_id)
        if job.state in (BulkJob.State.DONE, BulkJob.State.CANCELLED):
            raise ValueError(f"job {job.pk} is {job.state}; it cannot be changed any more")
        resumed = state == BulkJob.State.RUNNING != job.state
        job.state = BulkJob.State(state)
        job.updated_at = tx.time()
        job.save(using=alias, update_fields=["state", "updated_at"])
        step = {"state": job.state.value, "by": printable(by or "", limit=200)}
        steps = [*job.entry.detail.get("steps", []), {**step, "at": tx.time().isoformat()}]
        job.entry.detail = {**job.entry.detail, "steps": steps}
        job.entry.save(using=alias, update_fields=["detail"])
        if resumed:
            _ask_for_more(job, alias)
        return job

    return in_transaction(work, using=alias)


def _ask_for_more(job: BulkJob, alias: str) -> None:
    # The handler must look where the job is, which need not be where the router points.
    send(NAME, {"job": job.pk, "using": alias}, queue=QUEUE, using=alias)


def _opening(entry: AuditEntry) -> audit.Opening:
    return audit.Opening(act=Act(entry.act), by=entry.by)


def _verb(entry: AuditEntry) -> Verb:
    if entry.act == Act.RETRY:
        return retrial(Terms.from_dict(entry.detail), entry.by)
    return removal(entry.by)


def _all(
    opening: audit.Opening,
    verb: Verb,
    wanted: PoisonFilter,
    limit: int | None,
    progress: Progress | None,
    using: str | None,
) -> Total:
    alias = alias_of(using)
    fixed = wanted if wanted.up_to is not None else wanted.fixed(alias)
    opening = replace(opening, selection=fixed.as_dict() | ({"limit": limit} if limit else {}))
    total = Total()
    entry: AuditEntry | None = None
    seen = looked_at = 0
    while limit is None or looked_at < limit:
        size = PIECE if limit is None else min(PIECE, limit - looked_at)
        with after_pieces(total.done):
            seen, piece, entry = in_transaction(
                lambda tx: _piece(
                    tx,
                    opening,
                    verb,
                    fixed,
                    entry=entry,  # noqa: B023 - called before the loop goes on
                    after=seen,  # noqa: B023
                    start=looked_at,  # noqa: B023
                    size=size,  # noqa: B023
                ),
                using=alias,
            )
        if not seen:
            break
        looked_at = total.add(piece)
        if progress is not None:
            progress(looked_at)
    total.entry_id = entry.pk if entry else 0
    return total


def _piece(
    tx: Transaction,
    opening: audit.Opening,
    verb: Verb,
    wanted: PoisonFilter,
    *,
    entry: AuditEntry | None,
    after: int,
    start: int,
    size: int,
) -> tuple[int, ActResult, AuditEntry | None]:
    """Do the next records behind `after`; return the last id looked at, 0 when none was left."""
    rows = wanted.records(tx.using).filter(pk__gt=after)
    ids = list(rows.values_list("pk", flat=True)[:size])
    if not ids:
        return 0, ActResult(), entry
    verdicts, entry = step(tx, opening, verb, ids, entry=entry, start=start)
    return ids[-1], verdicts, entry
