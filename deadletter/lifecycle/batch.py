"""Everything a worker reports and asks for, in ONE transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic

from .. import crash_points
from ..exceptions import LockNotAvailable
from . import failures as settles
from . import streams
from .claims import look_ahead, new_token, take
from .failures import Outcomes
from .held import held
from .locks import each_free, try_lock
from .stages import by_end, complete_stages, record_stages, unpublished
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
    Settle what was done, give back what was not, and claim more: all of it or nothing.

    `token` is the lease of every report that names none itself. Reports of messages that are not
    (or no longer) the caller's are skipped and returned as `lost`; those of messages that another
    transaction has locked, or whose stream it has, as `busy`: nobody is waited for longer than a
    moment, and with `careful` (for what was busy before) not even that. What failed in this call is
    not claimed by it again, what was released or finished a stage may be. Completions whose flags
    make no stage are `refused`, and the rest is applied. `progress` is of attempts that go on: what
    was written of it is `recorded`, and a locked row is not waited for.
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
    settles.check_reports(reports.done, reports.failed)

    hint: Levels | None = None
    if not (len(reports) or progress) and claim is not None and claim.limit:
        hint = look_ahead(claim, using=using)
        if hint is not None:
            if not hint.due:
                return WorkBatch(claim.token or new_token(), levels=hint)
            claim = replace(claim, levels=hint, rediscover=False)

    ending = {item.id for item in reports.back} if progress else ()

    def settled(tx: Transaction, way: _Way) -> WorkBatch:
        # Before they are given back; what goes on comes after the locks of the reports.
        recorded = record_stages(tx, [item for item in progress if item.id in ending])
        outcomes, busy = way(tx, reports, worker)
        recorded += record_stages(tx, [item for item in progress if item.id not in ending])
        return _answer(tx, reports, outcomes, busy, claim, worker, hint, recorded)

    def work(tx: Transaction) -> WorkBatch:
        return settled(tx, _settle_all)

    def work_carefully(tx: Transaction) -> WorkBatch:
        return settled(tx, _settle_free)

    if not careful:
        try:
            return in_transaction(work, using=using, wait=SHORT_WAIT)
        except LockNotAvailable:
            pass
    try:
        return in_transaction(work_carefully, using=using, wait=TRY_WAIT)
    except LockNotAvailable:
        # Something that no report names, a counter for example.
        return WorkBatch("", more=True, busy=sorted(reports.ids))


@dataclass(frozen=True)
class _Reports:
    done: Sequence[Completion]
    failed: Sequence[Failure]
    back: Sequence[Release]

    def __len__(self) -> int:
        return len(self.done) + len(self.failed) + len(self.back)

    def all(self) -> list[Completion | Failure | Release]:
        return [*self.done, *self.failed, *self.back]

    @property
    def ids(self) -> set[int]:
        return {report.id for report in self.all()}

    def of(self, ids: Collection[int]) -> _Reports:
        return _Reports(
            [item for item in self.done if item.id in ids],
            [item for item in self.failed if item.id in ids],
            [item for item in self.back if item.id in ids],
        )


_Way = Callable[[Transaction, _Reports, str], tuple[Outcomes, Collection[int]]]


def _settle(tx: Transaction, reports: _Reports, worker: str) -> Outcomes:
    done, failed, back = reports.done, reports.failed, reports.back
    stages: Sequence[Completion] = ()
    is_plain = not unpublished(done)
    if not is_plain:
        done, stages = by_end(done)
    if failed or back or not is_plain:
        # All streams of this transaction at once and in order: two reports that lock the same
        # streams in several steps could wait for each other.
        concerned = streams.concerned([*done, *stages, *failed])
        streams.lock(tx, {*concerned, *(item.id for item in back)})
    outcomes = settles.completing(tx, done) if done else {}
    if failed:
        outcomes |= settles.failing(tx, failed, by=worker)
    if back:
        outcomes |= settles.releasing(tx, back)
    if stages:
        # Last: a stage gives back what is left of its run, not what is reported here as well.
        outcomes |= complete_stages(tx, stages)
    return outcomes


def _settle_all(
    tx: Transaction, reports: _Reports, worker: str
) -> tuple[Outcomes, Collection[int]]:
    """Settle everything; nothing is busy, or the transaction fails."""
    return _settle(tx, reports, worker), ()


def _settle_free(
    tx: Transaction, reports: _Reports, worker: str
) -> tuple[Outcomes, Collection[int]]:
    """Settle what nobody else has locked; return also what was busy."""
    if tx.is_sqlite or not len(reports):
        return _settle(tx, reports, worker), ()
    locked = try_lock(tx, held(reports.all()), alive=True)

    def some(tx: Transaction, groups: Sequence[list[int]]) -> Outcomes:
        return _settle(tx, reports.of(set(chain.from_iterable(groups))), worker)

    # Their rows and streams are ours, but not what else a settle touches: the parked message it
    # wakes, the instance it tells of a death.
    done = each_free(tx, locked.groups(), some)
    outcomes: Outcomes = {}
    for part in done.results:
        outcomes |= part
    return outcomes, locked.busy | set(chain.from_iterable(done.busy))


def _answer(
    tx: Transaction,
    reports: _Reports,
    outcomes: Outcomes,
    busy: Collection[int],
    claim: ClaimRequest | None,
    worker: str,
    hint: Levels | None,
    recorded: Sequence[int],
) -> WorkBatch:
    """Claim, in the transaction of the settles, and say what became of each report."""
    if len(reports):
        crash_points.reach("batch.settled")
    taken, started = Batch(""), monotonic()
    if claim is not None and claim.limit:
        waiting = [id for id, what in outcomes.items() if isinstance(what, Scheduled)]
        taken = take(tx, claim, worker=worker, exclude=waiting)
    took = monotonic() - started
    return WorkBatch(
        taken.token,
        taken.messages,
        taken.dead,
        taken.more,
        taken.floor,
        taken.candidates,
        taken.levels or hint,
        outcomes,
        sorted(reports.ids.difference(outcomes, busy)),
        took,
        sorted(busy),
        recorded,
    )
