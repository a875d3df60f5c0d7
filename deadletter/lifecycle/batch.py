"""Everything a worker reports and asks for, in ONE transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from .. import points
from . import settle, streams
from .claim import look_ahead, new_token, take
from .transaction import Transaction, in_transaction
from .values import (
    Batch,
    ClaimRequest,
    Completion,
    Failure,
    Levels,
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
    using: str | None = None,
) -> WorkBatch:
    """
    Settle what was done, give back what was not, and claim more: all of it or nothing.

    `token` is the lease of every report that names none itself. Reports of messages that are not
    (or no longer) the caller's are skipped and returned as `lost`. What failed in this call is not
    claimed by it again, what was released may be.
    """
    done = [item if item.token else item._replace(token=token) for item in completions]
    failed = [item if item.token else replace(item, token=token) for item in failures]
    back = [
        Release(item, 0, token)
        if isinstance(item, int)
        else item
        if item.token
        else replace(item, token=token)
        for item in releases
    ]
    reports: list[Completion | Failure | Release] = [*done, *failed, *back]
    hint: Levels | None = None
    if not reports and claim is not None and claim.limit:
        hint = look_ahead(claim, using=using)
        if hint is not None:
            if not hint.due:
                return WorkBatch(claim.token or new_token(), levels=hint)
            claim = replace(claim, levels=hint, rediscover=False)
    ids = {report.id for report in reports}
    named = any(not item.status for item in done)

    def work(tx: Transaction) -> WorkBatch:
        if failed or back or named:
            # All streams of this transaction at once and in order: two reports that lock the same
            # streams in several steps could wait for each other.
            concerned = streams.concerned([*done, *failed])
            streams.lock(tx, {*concerned, *(item.id for item in back)})
        outcomes = settle.completing(tx, done) if done else {}
        if failed:
            outcomes |= settle.failing(tx, failed, by=worker)
        if back:
            outcomes |= settle.releasing(tx, back)
        if reports:
            points.reach("batch.settled")
        taken, started = Batch(""), monotonic()
        if claim is not None and claim.limit:
            waiting = [id for id, what in outcomes.items() if isinstance(what, Scheduled)]
            taken = take(tx, claim, worker=worker, exclude=waiting)
        lost = sorted(ids - outcomes.keys())
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
            lost,
            took,
        )

    return in_transaction(work, using=using)
