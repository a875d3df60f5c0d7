"""What happens to messages that are done? Rows go, counters know, waiting streams wake."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from .. import crash_points
from . import streams
from .counters import times_by_subject, writer
from .held import held
from .noting import announce_completed, completions_are_heard
from .transaction import Transaction
from .values import Completion


def finish(tx: Transaction, finished: Sequence[Completion]) -> Iterable[int]:
    """Delete finished messages, count and announce them; return the ids that were the caller's."""
    if tx.is_sqlite or any(item.message is None for item in finished):
        return _finish_any(tx, finished)
    # Who has the messages knows which of them have streams: that saves a look at all of them.
    plain, streamed = _by_stream(finished)
    gone: list[int] = []
    if streamed:
        # Before any row: whoever holds one of the locks may be waiting for a row.
        streams.lock(tx, [item.id for item in streamed])
    if plain:
        gone += _finish_plain(tx, plain)
    crash_points.reach("complete.deleted")
    if streamed:
        gone += _finish_streamed(tx, streamed)
    return gone


def _by_stream(finished: Iterable[Completion]) -> tuple[list[Completion], list[Completion]]:
    """Part messages without a stream from those with one."""
    plain: list[Completion] = []
    streamed: list[Completion] = []
    for item in finished:
        is_plain = item[4] is not None and item[4].stream is None
        (plain if is_plain else streamed).append(item)
    return plain, streamed


def _finish_plain(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    """Finish messages without a stream. The hot path on PostgreSQL."""
    ids, pairs = held(finished)
    times = times_by_subject(finished)
    rows = tx.run(
        "complete_plain",
        ids=ids,
        pairs=pairs,
        queues=[subject[0] for subject in times],
        names=[subject[1] for subject in times],
        kinds=[subject[2] for subject in times],
        seconds=[sum(taken) for taken in times.values()],
        longest=[max(taken) for taken in times.values()],
        writer=writer(tx.connection),
        named=completions_are_heard(),
    )
    if rows and rows[0][0] == "all":
        return ids
    gone = [row[1:5] for row in rows]
    seconds = _seconds(finished)
    if len(gone) < len(ids):
        tx.counts.add_completed(gone, seconds)
    announce_completed(tx, gone, seconds)
    return [row[0] for row in gone]


def _finish_streamed(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    """Finish messages of streams whose locks are held, and wake what waits behind them."""
    seconds = _seconds(finished)
    ids, pairs = held(finished)
    deleted = tx.run("complete_streamed", ids=ids, pairs=pairs)
    gone = [row[:4] for row in deleted]
    tx.counts.add_completed(gone, seconds)
    crash_points.reach("complete.unblocking")
    streams.wake(tx, streams.touched(deleted))
    announce_completed(tx, gone, seconds)
    return [row[0] for row in gone]


def _finish_any(tx: Transaction, finished: Sequence[Completion]) -> Sequence[int]:
    """Finish messages of which nobody has said whether they have a stream."""
    ids, pairs = held(finished)
    seconds = _seconds(finished)
    rows = tx.run(
        "complete",
        ids=ids,
        pairs=pairs,
        seconds=json.dumps(seconds),
        writer=writer(tx.connection),
        named=completions_are_heard(),
    )
    crash_points.reach("complete.deleted")
    if rows and rows[0][0] == "all":
        return ids
    gone = [row[1:5] for row in rows if row[0] is None]
    locked = {row[1] for row in rows if row[0] is not None}
    if tx.is_sqlite:
        tx.counts.add_completed(gone, seconds)
    announce_completed(tx, gone, seconds)
    done = [row[0] for row in gone]
    if locked:
        done += _finish_streamed(tx, [item for item in finished if item.id in locked])
    return done


def _seconds(finished: Iterable[Completion]) -> dict[int, float | None]:
    return {item[0]: item[3] for item in finished}
