"""
Results: what a message leaves behind when its row is deleted.

A task, and a handler with `keep_result`, leave a row in the table of results: written by the
transaction that deletes the message, so that a result and its message never exist together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from .. import crash_points, sql
from ..conf import get_settings
from ..models import Kind, ResultOutcome
from ..sql import Row
from .settles import lease_guard
from .transaction import Transaction
from .values import Completion, KeptResult

#: Characters of results that one statement stores: PostgreSQL's jsonb ends at 256 MB, and a worker
#: whose report is refused for its size would repeat it for ever.
PIECE_SIZE = 8_000_000

_TASK = Kind.TASK.value
_NOT_KEPT = timedelta(0)


def on_tasks_completed(completed: Sequence[tuple[int, Completion]], using: str) -> None:
    """
    Called after the commit with completed tasks and the ids of their results.

    Replaced by the app, which knows tasks.
    """


#: Called with nothing; True if somebody wants to hear of completed tasks. Replaced as well.
wants_completed_tasks: Callable[[], bool] = bool


def store_results(tx: Transaction, finished: Sequence[Completion]) -> list[Row]:
    """
    Delete finished messages and store their results; return the rows that were deleted.

    The caller holds the locks of their streams. Rows are (id, queue_id, name, kind, source_id,
    origin, queue_id, stream).
    """
    deleted: list[Row] = []
    for some in _pieces(finished):
        rows = json.dumps({item.id: _row(item) for item in some})
        deleted += tx.run("complete_with_results", **lease_guard(some)._asdict(), rows=rows)
        crash_points.reach("results.stored")
    return deleted


def _pieces(finished: Sequence[Completion]) -> Iterator[list[Completion]]:
    """Split completions by the size of their results, in the order of ids: rows are locked so."""
    piece: list[Completion] = []
    size = 0
    for item in sorted(finished, key=lambda item: item.id):
        length = 0 if item.result is None else len(item.result.value or "")
        if piece and size + length > PIECE_SIZE:
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += length
    if piece:
        yield piece


def _row(item: Completion) -> dict[str, Any]:
    kept = item.result or KeptResult("null", None)
    return {
        "value": kept.value,
        "seconds": item.seconds or 0.0,
        "kept": None if kept.kept is None else sql.microseconds(kept.kept),
        "progress": _unwritten_progress(item, kept),
    }


def _unwritten_progress(item: Completion, kept: KeptResult) -> Mapping[str, Any] | None:
    """Return the last report, unless the row has it already, with its time."""
    written = None if item.message is None else item.message.written_progress
    return None if kept.progress is written else kept.progress


def result_id(row: Row) -> int:
    """Return the id of the result of a deleted message: the id that it was sent with."""
    id: int = row[0]
    source_id, origin = row[4], row[5]
    return id if source_id is None or origin is not None else int(source_id)


def announce_tasks(
    tx: Transaction,
    finished: Sequence[Completion],
    gone: Sequence[int],
    result_ids: Mapping[int, int],
) -> None:
    """Tell the application after the commit which of these tasks are completed."""
    if not wants_completed_tasks():
        return
    known = set(gone)
    tasks = [
        (result_ids.get(item.id, item.id), item)
        for item in finished
        if item.message is not None and item.message.kind == _TASK and item.id in known
    ]
    if tasks:
        tx.after_commit(lambda: on_tasks_completed(tasks, tx.using))


def keep_results_of_messages(
    tx: Transaction, ids: Sequence[int], *, outcome: ResultOutcome
) -> None:
    """Store the results of tasks whose messages are about to be deleted unsuccessfully."""
    kept = get_settings().results_kept
    if ids and kept != _NOT_KEPT:
        tx.run("keep_results_of_messages", ids=list(ids), outcome=outcome.value, kept=kept)


def keep_results_of_poison(tx: Transaction, poison_ids: Sequence[int]) -> None:
    """Store the results of dead tasks whose poison records are about to be deleted."""
    kept = get_settings().results_kept
    if poison_ids and kept != _NOT_KEPT:
        tx.run("keep_results_of_poison", ids=list(poison_ids), kept=kept)


def delete_old_results(tx: Transaction, *, limit: int) -> int:
    """Delete some results that are past their time; return how many."""
    return len(tx.run("delete_old_results", limit=limit))
