"""
Complete: delete finished messages, count them, and wake the streams that waited for them.

A completion without PUBLISHED ends only a stage of its message; see stages.py.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import crash_points, signals
from ..durations import Duration, as_timedelta
from ..exceptions import CompletionRefused, LeaseLost
from ..models import Message
from ..sql import Row
from ..status import Status, check_flags
from . import results, stages, streams
from .counters import times_by_key, writer
from .outbox import store_events
from .releases import release_in
from .settles import Outcomes, lease_guard, queue_names, settle
from .transaction import Transaction, in_transaction
from .values import (
    Claimed,
    Completed,
    Completion,
    KeptResult,
    Refused,
    Release,
    Released,
    Staged,
)

#: One value for all messages: it says nothing about a single one.
_COMPLETED = Completed()
_PUBLISHED = int(Status.PUBLISHED)


def complete(
    token: str,
    ids: Iterable[int],
    *,
    status: Status | int = Status.PUBLISHED,
    seconds: float | None = None,
    using: str | None = None,
) -> Outcomes:
    """
    Complete messages: their rows are deleted. With status 0 they are released by name instead.

    Without PUBLISHED, in `status` or on the row, a stage is completed: the message is due again.
    `seconds` is how long each handler took, for the counters.
    Raises: LeaseLost naming the ids that are not the caller's; the others are completed.
    CompletionRefused naming those whose flags make no stage (none is new, FAILED, bits above 14);
    the others are completed. ValueError when no row can hold the status; nothing is done.
    LockNotAvailable when another transaction keeps a row or a stream locked; none is completed.
    All verbs of this package raise it; `process_batch` instead settles what is not locked and
    names the rest as busy.
    """
    check_flags(status, field="status")
    reports = [Completion(id, status, token, seconds) for id in ids]
    return settle(reports, lambda tx: complete_in(tx, reports), using)


def complete_last(
    token: str,
    id: int,
    *,
    seconds: float,
    wait: Duration,
    stage: int = 0,
    result: KeptResult | None = None,
    message: Claimed | None = None,
    using: str | None = None,
) -> None:
    """
    Complete one message, or a `stage` of it, as the last statement of the caller's transaction.

    The caller releases the rest of its run. `wait` limits the wait for a locked row or stream; it
    is the lease: after that the message no longer belongs to the caller.
    Raises: LeaseLost, LockNotAvailable, CompletionRefused.
    """
    reports = [Completion(id, stage or Status.PUBLISHED, token, seconds, message, result)]
    limit = as_timedelta(wait, field="wait").total_seconds()

    def work(tx: Transaction) -> Outcomes:
        if not stage:
            return complete_in(tx, reports)
        streams.lock(tx, {id})
        return complete_stages_in(tx, reports, keep_rest=True)

    outcome = in_transaction(work, using=using, wait=limit, is_last=True).get(id)
    if outcome is None:
        raise LeaseLost([id])
    if isinstance(outcome, Refused):
        raise CompletionRefused({id: outcome.why})


def complete_in(tx: Transaction, completions: Sequence[Completion]) -> Outcomes:
    """Complete messages, or stages of them; completions with status 0 are released by name."""
    if not stages.unpublished(completions):
        return dict.fromkeys(_finish(tx, completions), _COMPLETED)
    streams.lock(tx, {item.id for item in completions})
    outcomes: Outcomes = {}
    others, staged = stages.split_stages(completions)
    finished = [item for item in others if item.status]
    if finished:
        outcomes = dict.fromkeys(_finish(tx, finished), _COMPLETED)
    by_name = [Release(item.id, 0, item.token) for item in others if not item.status]
    if by_name:
        outcomes |= release_in(tx, by_name, by_name={item.id for item in by_name})
    if staged:
        outcomes |= complete_stages_in(tx, staged)
    return outcomes


def complete_stages_in(
    tx: Transaction, completions: Sequence[Completion], *, keep_rest: bool = False
) -> Outcomes:
    """
    Complete stages, and release the rest of the runs that these messages were claimed in.

    The caller holds the locks of the streams and has settled everything else that it reports about
    them. A message that is PUBLISHED already is completed as a whole. `keep_rest`: the caller
    releases the rest of the runs.
    """
    stages.record_last_reports(tx, completions)
    rows = stages.add_flags(tx, completions)
    crash_points.reach("stage.completed")
    outcomes: Outcomes = {row.id: Staged(Status(row.status)) for row in rows}
    _store_events(tx, completions, outcomes)
    left = [item for item in completions if item.id not in outcomes]
    if left:
        outcomes |= _finish_or_refuse(tx, left)
    rest = [] if keep_rest else stages.release_rest(tx, rows, completions)
    for row in rest:
        outcomes.setdefault(row[0], Released())
    streams.wake(tx, streams.streams_of([*rows, *rest]))
    stages.log_completed(tx, rows)
    return outcomes


def _finish_or_refuse(tx: Transaction, completions: Sequence[Completion]) -> Outcomes:
    """Complete the messages that are PUBLISHED already; refuse the others and say why."""
    stored: dict[int, int] = dict(tx.run("read_stages", **lease_guard(completions)._asdict()))
    outcomes: Outcomes = {}
    published: list[Completion] = []
    for item in completions:
        if item.id not in stored:
            continue
        if problem := stages.why_no_stage(item):
            outcomes[item.id] = Refused(problem)
        elif stored[item.id] & _PUBLISHED:
            published.append(item)
        else:
            flags = f"status {int(item.status)} adds no stage to {stored[item.id]}"
            outcomes[item.id] = Refused(f"{flags}: name a flag that the message does not have yet")
    if published:
        outcomes |= dict.fromkeys(_finish(tx, published), _COMPLETED)
    return outcomes


def _finish(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    """Delete, count and announce completed messages; return the ids that were the caller's."""
    returned = [item for item in finished if item[5] is not None]
    result_ids: dict[int, int] = {}
    if not returned:
        gone = _finish_without_results(tx, finished)
    else:
        gone, result_ids = _finish_with_results(tx, finished, returned)
        _store_events(tx, returned, set(gone))
    results.announce_tasks(tx, finished, gone, result_ids)
    return gone


def _finish_with_results(
    tx: Transaction, finished: Sequence[Completion], returned: Sequence[Completion]
) -> tuple[Sequence[int], dict[int, int]]:
    """Finish messages of which some have returned a value; also return the ids of the results."""
    kept = [item for item in returned if item.result is not None and item.result.value is not None]
    if not kept:
        return _finish_without_results(tx, finished), {}
    # Before any row, and all at once: see `process_batch`.
    streams.lock(tx, [item.id for item in finished if _may_have_stream(item)])
    stored = {item.id for item in kept}
    others = [item for item in finished if item.id not in stored]
    gone = list(_finish_without_results(tx, others)) if others else []
    deleted = results.store_results(tx, kept)
    gone += _finish_deleted(tx, deleted, _seconds(kept))
    return gone, {row[0]: results.result_id(row) for row in deleted}


def _store_events(tx: Transaction, returned: Iterable[Completion], ours: Collection[int]) -> None:
    """Publish what handlers returned; not for messages that are no longer the caller's."""
    events = [
        item.result.event
        for item in returned
        if item.id in ours and item.result is not None and item.result.event is not None
    ]
    if events:
        store_events(tx, events)


def _may_have_stream(item: Completion) -> bool:
    return item.message is None or item.message.stream is not None


def _finish_without_results(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    if tx.is_sqlite or any(item.message is None for item in finished):
        return _finish_unknown(tx, finished)
    # The messages say which of them have streams: no statement has to find out.
    plain: list[Completion] = []
    streamed: list[Completion] = []
    for item in finished:
        is_plain = item[4] is not None and item[4].stream is None
        (plain if is_plain else streamed).append(item)
    gone: list[int] = []
    if streamed:
        # Before any row: a transaction that holds one of these locks may wait for a row.
        streams.lock(tx, [item.id for item in streamed])
    if plain:
        gone += _finish_plain(tx, plain)
    crash_points.reach("complete.deleted")
    if streamed:
        gone += _finish_streamed(tx, streamed)
    return gone


def _finish_plain(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    """Finish messages without a stream. The hot path on PostgreSQL."""
    ids, pairs = lease_guard(finished)
    times = times_by_key(finished)
    rows = tx.run(
        "complete_plain",
        ids=ids,
        pairs=pairs,
        queues=[key[0] for key in times],
        names=[key[1] for key in times],
        kinds=[key[2] for key in times],
        seconds=[sum(taken) for taken in times.values()],
        longest=[max(taken) for taken in times.values()],
        writer=writer(tx.connection),
        named=_has_listeners(),
    )
    if rows and rows[0][0] == "all":
        return ids
    gone = [row[1:5] for row in rows]
    seconds = _seconds(finished)
    if len(gone) < len(ids):
        tx.counts.add_completed(gone, seconds)
    _announce(tx, gone, seconds)
    return [row[0] for row in gone]


def _finish_streamed(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    """Finish messages of streams whose locks are held, and wake what waits behind them."""
    seconds = _seconds(finished)
    ids, pairs = lease_guard(finished)
    return _finish_deleted(tx, tx.run("complete_streamed", ids=ids, pairs=pairs), seconds)


def _finish_deleted(
    tx: Transaction, deleted: Sequence[Row], seconds: Mapping[int, float | None]
) -> Sequence[int]:
    """Count and announce deleted messages, and wake what waits behind them in their streams."""
    gone = [row[:4] for row in deleted]
    tx.counts.add_completed(gone, seconds)
    crash_points.reach("complete.unblocking")
    streams.wake(tx, streams.streams_of(deleted))
    _announce(tx, gone, seconds)
    return [row[0] for row in gone]


def _finish_unknown(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    """Finish messages of which it is not known whether they have a stream."""
    ids, pairs = lease_guard(finished)
    seconds = _seconds(finished)
    rows = tx.run(
        "complete",
        ids=ids,
        pairs=pairs,
        seconds=json.dumps(seconds),
        writer=writer(tx.connection),
        named=_has_listeners(),
    )
    crash_points.reach("complete.deleted")
    if rows and rows[0][0] == "all":
        return ids
    gone = [row[1:5] for row in rows if row[0] is None]
    locked = {row[1] for row in rows if row[0] is not None}
    if tx.is_sqlite:
        tx.counts.add_completed(gone, seconds)
    _announce(tx, gone, seconds)
    done = [row[0] for row in gone]
    if locked:
        done += _finish_streamed(tx, [item for item in finished if item.id in locked])
    return done


def _seconds(finished: Iterable[Completion]) -> dict[int, float | None]:
    return {item[0]: item[3] for item in finished}


def _has_listeners() -> bool:
    """True if the statement must name the messages it deleted, for receivers of the signal."""
    return signals.message_completed.has_listeners(Message)


def _announce(tx: Transaction, gone: Sequence[Row], seconds: Mapping[int, float | None]) -> None:
    def each() -> Iterator[dict[str, Any]]:
        queues = queue_names(tx, (row[1] for row in gone))
        for id, queue_id, name, kind in gone:
            yield {
                "message_id": id,
                "queue": queues[queue_id],
                "name": name,
                "kind": kind,
                "seconds": seconds.get(id),
            }

    signals.announce(
        tx.using, "message_completed", signals.message_completed, sender=Message, each=each
    )
