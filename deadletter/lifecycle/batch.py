"""Process a batch: everything a worker reports and asks for, in ONE transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from time import monotonic

from .. import crash_points
from ..exceptions import LockNotAvailable
from . import streams
from .claims import claim_in, look_ahead, new_token
from .completions import complete_in, complete_stages_in
from .failures import fail_in
from .locks import for_each_unlocked, try_lock
from .releases import release_in
from .settles import Outcomes, lease_guard
from .stages import check_reports, record_progress, split_stages, unpublished
from .transaction import SHORT_WAIT, TRY_WAIT, Transaction, in_transaction
from .values import (
    Batch,
    ClaimRequest,
    Completion,
    Failure,
    Levels,
    Progress,
    Release,
    Scheduled,
    WorkBatch,
)


def process_batch(
    *,
    worker: str,
    token: str | None = None,
    completions: Sequence[Completion] = (),
    failures: Sequence[Failure] = (),
    releases: Sequence[int | Release] = (),
    claim: ClaimRequest | None = None,
    progress: Sequence[Progress] = (),
    careful: bool = False,
    using: str | None = None,
) -> WorkBatch:
    """
    Settle reports, release what was not processed, and claim more: all of it or nothing.

    `token` is the lease of every report that names none itself. Reports of messages that are not
    (or no longer) the caller's are skipped and returned as `lost`; reports of messages whose row or
    stream another transaction has locked are returned as `busy`. The call waits for a lock only a
    moment, and with `careful` (for what was busy before) not at all. A message that failed in this
    call is not claimed by it again; a message that was released or completed a stage may be.
    Completions whose flags make no stage are `refused`, and the rest is applied. `progress` is of
    attempts that go on: the ids that were written are `recorded`, and locked rows are skipped.
    Raises: ValueError when no row can hold the flags of a report; nothing is done.
    """
    reports = _Reports(
        [item if item.token else item._replace(token=token) for item in completions],
        [item if item.token else replace(item, token=token) for item in failures],
        [
            Release(item, 0, token)
            if isinstance(item, int)
            else item
            if item.token
            else replace(item, token=token)
            for item in releases
        ],
    )
    check_reports(reports.completions, reports.failures)

    hint: Levels | None = None
    if not (len(reports) or progress) and claim is not None and claim.limit:
        hint = look_ahead(claim, using=using)
        if hint is not None:
            if not hint.due:
                return WorkBatch(claim.token or new_token(), levels=hint)
            claim = replace(claim, levels=hint, rediscover=False)

    work = partial(
        _process_in, reports=reports, worker=worker, progress=progress, claim=claim, hint=hint
    )
    if not careful:
        try:
            return in_transaction(partial(work, careful=False), using=using, wait=SHORT_WAIT)
        except LockNotAvailable:
            pass
    try:
        return in_transaction(partial(work, careful=True), using=using, wait=TRY_WAIT)
    except LockNotAvailable:
        # The lock is on something that no report names, a counter for example.
        return WorkBatch("", more=True, busy=sorted({report.id for report in reports}))


@dataclass(frozen=True)
class _Reports:
    completions: Sequence[Completion]
    failures: Sequence[Failure]
    releases: Sequence[Release]

    def __len__(self) -> int:
        return len(self.completions) + len(self.failures) + len(self.releases)

    def __iter__(self) -> Iterator[Completion | Failure | Release]:
        return chain(self.completions, self.failures, self.releases)

    def only(self, ids: Collection[int]) -> _Reports:
        return _Reports(
            [item for item in self.completions if item.id in ids],
            [item for item in self.failures if item.id in ids],
            [item for item in self.releases if item.id in ids],
        )


def _process_in(
    tx: Transaction,
    reports: _Reports,
    *,
    worker: str,
    progress: Sequence[Progress],
    claim: ClaimRequest | None,
    hint: Levels | None,
    careful: bool,
) -> WorkBatch:
    """Settle and claim in one transaction, and return the outcome of each report."""
    released = {item.id for item in reports.releases} if progress else ()
    # Before the release of the same message; the progress of others is written after the locks of
    # the reports are taken.
    recorded = record_progress(tx, [item for item in progress if item.id in released])
    busy: Collection[int] = ()
    if careful:
        outcomes, busy = _settle_unlocked(tx, reports, worker)
    else:
        outcomes = _settle_in(tx, reports, worker)
    recorded += record_progress(tx, [item for item in progress if item.id not in released])
    if len(reports):
        crash_points.reach("batch.settled")
    claimed, started = Batch(""), monotonic()
    if claim is not None and claim.limit:
        waiting = [id for id, what in outcomes.items() if isinstance(what, Scheduled)]
        claimed = claim_in(tx, claim, worker=worker, exclude=waiting)
    return WorkBatch(
        token=claimed.token,
        messages=claimed.messages,
        dead=claimed.dead,
        more=claimed.more,
        floor=claimed.floor,
        candidates=claimed.candidates,
        levels=claimed.levels or hint,
        outcomes=outcomes,
        lost=sorted({report.id for report in reports}.difference(outcomes, busy)),
        claim_seconds=monotonic() - started,
        busy=sorted(busy),
        recorded=recorded,
    )


def _settle_in(tx: Transaction, reports: _Reports, worker: str) -> Outcomes:
    done, failed, released = reports.completions, reports.failures, reports.releases
    stages: Sequence[Completion] = ()
    is_plain = not unpublished(done)
    if not is_plain:
        done, stages = split_stages(done)
    if failed or released or not is_plain:
        # All streams of this transaction at once and in order: two transactions that lock the same
        # streams in several steps could deadlock.
        reported: list[Completion | Failure] = [*done, *stages, *failed]
        may_have_stream = [
            item.id for item in reported if item.message is None or item.message.stream is not None
        ]
        streams.lock(tx, {*may_have_stream, *(item.id for item in released)})
    outcomes = complete_in(tx, done) if done else {}
    if failed:
        outcomes |= fail_in(tx, failed, by=worker)
    if released:
        outcomes |= release_in(tx, released)
    if stages:
        # Last: a stage releases the rest of its run, except what is reported here as well.
        outcomes |= complete_stages_in(tx, stages)
    return outcomes


def _settle_unlocked(
    tx: Transaction, reports: _Reports, worker: str
) -> tuple[Outcomes, Collection[int]]:
    """Settle the reports that no other transaction blocks; return also the ids that are busy."""
    if tx.is_sqlite or not len(reports):
        return _settle_in(tx, reports, worker), ()
    locked = try_lock(tx, lease_guard(list(reports)), alive=True)

    def settle_some(tx: Transaction, groups: Sequence[list[int]]) -> Outcomes:
        return _settle_in(tx, reports.only(set(chain.from_iterable(groups))), worker)

    # Rows and streams are locked now, but not what else a settle touches: the parked message that
    # it wakes, the instance that it notifies of a death.
    done = for_each_unlocked(tx, locked.groups(), settle_some)
    outcomes: Outcomes = {}
    for part in done.results:
        outcomes |= part
    return outcomes, locked.busy | set(chain.from_iterable(done.busy))
