"""
Stages: a message with several pieces of work, each reported by itself.

A completion without PUBLISHED records its flags and makes the message due again, with all its
attempts. Each completion must add a flag, so the bits bound the number of stages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import crash_points
from ..logs import event
from ..sql import Row
from ..status import STAGE_BITS, Status, check_flags, check_stage
from .settles import lease_guard
from .transaction import Stream, Transaction
from .values import Completion, Failure, Progress

_FAILED = int(Status.FAILED)
PUBLISHED = Status.PUBLISHED
_PUBLISHED = int(PUBLISHED)


class StagedRow(NamedTuple):
    """A message whose stage was recorded."""

    id: int
    status: int
    queue_id: int
    stream: str | None


def unpublished(completions: Iterable[Completion]) -> list[Completion]:
    """
    Return the completions whose status is not exactly PUBLISHED; usually there are none.

    This is the hot path: `is` takes a third of the time of a comparison, and is usually enough.
    """
    return [item for item in completions if item[1] is not PUBLISHED and item[1] != PUBLISHED]


def check_reports(completions: Iterable[Completion], failures: Iterable[Failure]) -> None:
    """Refuse flags that no row can hold, before anything is stored. Raises: ValueError."""
    for completion in unpublished(completions):
        check_flags(completion.status, field=f"status of message {completion.id}")
    for failure in failures:
        if failure.completed:
            # A caller that passes on the status of the message may pass FAILED with it.
            flags = failure.completed & ~int(Status.FAILED)
            check_stage(flags, field=f"completed of message {failure.id}")


def split_stages(
    completions: Sequence[Completion],
) -> tuple[Sequence[Completion], Sequence[Completion]]:
    """Return the completions that end or release their message, and those that end a stage."""
    others: list[Completion] = []
    stages: list[Completion] = []
    for item in completions:
        flags = int(item.status)
        is_other = not flags or (flags & _PUBLISHED and not flags & ~STAGE_BITS)
        (others if is_other else stages).append(item)
    return others, stages


def why_no_stage(completion: Completion) -> str:
    """Return why the flags are not a valid stage, or ""."""
    flags = int(completion.status)
    if flags & _FAILED:
        return f"status {flags} names FAILED, which only a failure sets"
    if flags & ~STAGE_BITS:
        return f"status {flags} has bits above 14"
    return ""


def record_progress(tx: Transaction, progress: Sequence[Progress]) -> list[int]:
    """
    Write the stages and reports of attempts that continue; return the ids. Skips locked rows.

    A message is written as a whole or not at all.
    """
    by_flags: dict[int, list[Progress]] = {}
    for item in progress:
        if item.flags:
            by_flags.setdefault(item.flags, []).append(item)
    recorded: set[int] = set()
    for flags, some in by_flags.items():
        rows = tx.run("record_stages", **lease_guard(some)._asdict(), flags=flags)
        recorded.update(row[0] for row in rows)
        crash_points.reach("stage.recorded")
    # Not those whose flags were skipped: their rows may be free by now.
    reports = {
        item.id: item
        for item in progress
        if item.report is not None and (not item.flags or item.id in recorded)
    }
    if reports:
        guard = lease_guard(list(reports.values()))._asdict()
        values = json.dumps({id: item.report for id, item in reports.items()})
        rows = tx.run("record_progress", **guard, reports=values)
        recorded.update(row[0] for row in rows)
        crash_points.reach("stage.recorded")
    return sorted(recorded)


def record_last_reports(tx: Transaction, ended: Iterable[Completion | Failure]) -> None:
    """
    Write what attempts that end here reported last, unless it is on their rows already.

    Before the statement that ends them, which clears their leases. The caller holds the locks of
    the streams.
    """
    last = [
        Progress(item.id, 0, message.token, message.progress)
        for item in ended
        if (message := item.message) is not None
        and message.progress is not message.written_progress
    ]
    if last:
        record_progress(tx, last)


def add_flags(tx: Transaction, completions: Iterable[Completion]) -> list[StagedRow]:
    """Record stages that are possible and new; return the rows that were changed."""
    # One statement for each combination of flags; almost always there is just one.
    by_flags: dict[int, list[Completion]] = {}
    for item in completions:
        if not why_no_stage(item):
            by_flags.setdefault(int(item.status), []).append(item)
    rows: list[Row] = []
    for flags, some in by_flags.items():
        rows += tx.run(
            "complete_stage",
            **lease_guard(some)._asdict(),
            flags=flags,
            failed=_FAILED,
            published=_PUBLISHED,
        )
    return [StagedRow(*row) for row in rows]


def release_rest(
    tx: Transaction, staged: Iterable[StagedRow], completions: Iterable[Completion]
) -> list[Row]:
    """Release the messages that were claimed in the same runs behind a completed stage."""
    tokens = {item.id: item.token for item in completions}
    first: dict[tuple[Stream, str | None], int] = {}
    for row in staged:
        if row.stream is not None:
            run = (row.queue_id, row.stream), tokens[row.id]
            first[run] = min(row.id, first.get(run, row.id))
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


def log_completed(tx: Transaction, rows: Sequence[StagedRow]) -> None:
    """Log completed stages after the commit."""

    def log() -> None:
        for row in rows:
            event(
                logging.DEBUG,
                "stage_completed",
                "a stage of message {message_id} is finished: status {status}",
                message_id=row.id,
                status=row.status,
                stream=row.stream,
            )

    if rows:
        tx.after_commit(log)
