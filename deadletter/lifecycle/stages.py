"""
Stages: a message that has several pieces of work, each reported by itself.

A completion without PUBLISHED records its flags and makes the message due again, with all its
attempts. Each must add a flag, so the bits bound the number of stages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from .. import crash_points
from ..logs import event
from ..sql import Row
from ..status import STAGE_BITS, Status
from . import streams
from .completions import finish
from .held import held
from .transaction import Stream, Transaction
from .values import Completed, Completion, Outcome, Progress, Refused, Released, Staged

_FAILED = int(Status.FAILED)
PUBLISHED = Status.PUBLISHED
_PUBLISHED = int(PUBLISHED)


def unpublished(completions: Iterable[Completion]) -> list[Completion]:
    """
    Return the completions that do not simply end their messages. The hot path: mostly none.

    Almost all have the very flag, and `is` takes a third of the time of a comparison.
    """
    return [item for item in completions if item[1] is not PUBLISHED and item[1] != PUBLISHED]


def by_end(
    completions: Sequence[Completion],
) -> tuple[Sequence[Completion], Sequence[Completion]]:
    """Part completions that end a message, or give it back, from those that may end a stage."""
    others: list[Completion] = []
    stages: list[Completion] = []
    for item in completions:
        flags = int(item.status)
        is_other = not flags or (flags & _PUBLISHED and not flags & ~STAGE_BITS)
        (others if is_other else stages).append(item)
    return others, stages


def record_stages(tx: Transaction, progress: Iterable[Progress]) -> list[int]:
    """Add flags to messages whose attempts go on; return the ids. Waits for no row."""
    by_flags: dict[int, list[Progress]] = {}
    for item in progress:
        by_flags.setdefault(item.flags, []).append(item)
    recorded: list[int] = []
    for flags, some in by_flags.items():
        rows = tx.run("record_stages", **held(some)._asdict(), flags=flags)
        recorded += [row[0] for row in rows]
        crash_points.reach("stage.recorded")
    return recorded


def complete_stages(
    tx: Transaction, completions: Sequence[Completion], *, keep_rest: bool = False
) -> dict[int, Outcome]:
    """
    Finish stages, and give back what is claimed in the same runs behind them.

    The caller holds the streams' locks, and has settled everything else that it reports of these
    streams. A message that is PUBLISHED already is finished as a whole. Nothing is returned of ids
    that are not the caller's. `keep_rest`: the caller gives back the rest of the runs himself.
    """
    rows = _add_flags(tx, [item for item in completions if not _problem(item)])
    crash_points.reach("stage.completed")
    outcomes: dict[int, Outcome] = {row[0]: Staged(Status(row[1])) for row in rows}
    left = [item for item in completions if item.id not in outcomes]
    if left:
        outcomes |= _complete_others(tx, left)
    tokens = {item.id: item.token for item in completions}
    streamed = [] if keep_rest else [row for row in rows if row[-1] is not None]
    rest = _release_rest(tx, [(*row, tokens[row[0]]) for row in streamed])
    for row in rest:
        outcomes.setdefault(row[0], Released())
    streams.wake(tx, streams.touched([*rows, *rest]))
    _tell(tx, rows)
    return outcomes


def _problem(completion: Completion) -> str:
    """Say why flags can be those of no stage, whatever the row has; empty: they can."""
    flags = int(completion.status)
    if flags & _FAILED:
        return f"status {flags} names FAILED, which only a failure sets"
    if flags & ~STAGE_BITS:
        return f"status {flags} has bits above 14"
    return ""


def _add_flags(tx: Transaction, completions: Iterable[Completion]) -> list[Row]:
    """Record stages, by flags: almost always the same of all."""
    by_flags: dict[int, list[Completion]] = {}
    for item in completions:
        by_flags.setdefault(int(item.status), []).append(item)
    rows: list[Row] = []
    for flags, some in by_flags.items():
        rows += tx.run(
            "complete_stage",
            **held(some)._asdict(),
            flags=flags,
            failed=_FAILED,
            published=_PUBLISHED,
        )
    return rows


def _complete_others(tx: Transaction, completions: Sequence[Completion]) -> dict[int, Outcome]:
    """Finish those that are PUBLISHED already, and say why the others are refused."""
    stored: dict[int, int] = dict(tx.run("read_stages", **held(completions)._asdict()))
    outcomes: dict[int, Outcome] = {}
    published: list[Completion] = []
    for item in completions:
        if item.id not in stored:
            continue
        if problem := _problem(item):
            outcomes[item.id] = Refused(problem)
        elif stored[item.id] & _PUBLISHED:
            published.append(item)
        else:
            flags = f"status {int(item.status)} adds no stage to {stored[item.id]}"
            outcomes[item.id] = Refused(f"{flags}: name a flag that the message does not have yet")
    if published:
        outcomes |= dict.fromkeys(finish(tx, published), Completed())
    return outcomes


def _release_rest(tx: Transaction, staged: Iterable[Row]) -> list[Row]:
    """Give back what is claimed behind (…, queue_id, stream, token) of the same runs."""
    first: dict[tuple[Stream, str], int] = {}
    for id, _status, queue_id, stream, token in staged:
        run = (queue_id, stream), token
        first[run] = min(id, first.get(run, id))
    if not first:
        return []
    if tx.is_sqlite:
        rows: list[Row] = []
        for ((queue_id, stream), token), after in first.items():
            one = {"queue_id": queue_id, "stream": stream, "token": token, "after": after}
            rows += tx.run("release_rest", **one)
        return rows
    return tx.run(
        "release_rest",
        queue_ids=[queue_id for (queue_id, _), _ in first],
        streams=[stream for (_, stream), _ in first],
        tokens=[token for _, token in first],
        after=list(first.values()),
    )


def _tell(tx: Transaction, rows: Sequence[Row]) -> None:
    """Log finished stages after the commit."""

    def log() -> None:
        for id, status, _queue_id, stream in rows:
            event(
                logging.DEBUG,
                "stage_completed",
                "a stage of message {message_id} is finished: status {status}",
                message_id=id,
                status=status,
                stream=stream,
            )

    if rows:
        tx.after_commit(log)
