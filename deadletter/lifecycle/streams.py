"""
Which messages of a stream may run now, and who wakes those that wait?

Order is id order. At most one worker holds messages of a stream. What cannot run is parked
(`available_at` NULL), out of the claim's sight; whoever unblocks the stream makes the first parked
message due again. Parking and waking happen only under the stream's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from .. import crash_points
from ..models import StreamPolicy
from ..sql import Row
from .limits import Judged, Limits
from .transaction import Stream, Transaction
from .values import Completion, Failure

#: Messages behind a blocked candidate that are parked along with it.
REACH = 1_000


@dataclass(frozen=True)
class Member:
    """A message of a stream, as far as the choice of a run needs it."""

    id: int
    waiting: bool = False
    released: bool = False
    exhausted: bool = False
    expired: bool = False
    #: Its last lease ran out unreported.
    lost: bool = False
    #: Its attempts or its fence cannot be counted any further; exhausted as well.
    overflow: bool = False


@dataclass
class Choice:
    """What a claim does with one stream."""

    run: list[int] = field(default_factory=list)
    exhausted: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    blocked: bool = False


def choose_run(
    members: Sequence[Member], *, policy: str, halted_at: int | None, room: int
) -> Choice:
    """
    Take the first messages that may run, in order.

    strict, halt: up to the first one that waits. release: passing those that wait. A message
    released by name passes what waits and what died. What has used up its attempts or its time is
    not run; under halt it stops the stream like any other death.
    """
    choice = Choice()
    for member in members:
        if len(choice.run) >= room:
            break
        behind_halt = halted_at is not None and member.id > halted_at
        if (choice.blocked or behind_halt) and not member.released:
            choice.blocked = True
            continue
        if member.waiting:
            choice.blocked = choice.blocked or policy != StreamPolicy.RELEASE
            continue
        if member.exhausted or member.expired:
            (choice.exhausted if member.exhausted else choice.expired).append(member.id)
            choice.blocked = choice.blocked or policy == StreamPolicy.HALT
            continue
        choice.run.append(member.id)
    return choice


def read(
    tx: Transaction,
    streams: Iterable[Stream],
    *,
    cap: int,
    exclude: Collection[int],
    limits: Limits,
) -> tuple[dict[Stream, tuple[str, int | None, list[Member]]], Judged]:
    """
    Read the heads of streams whose lock is held: policy, halt, members. A busy one is absent.

    Returns also what became of those that may have reached a limit.
    """
    found: dict[Stream, tuple[str, int | None, list[Member]]] = {}
    rows = tx.run_for(streams, "read_streams", cap=cap)
    judged = limits.judge(_suspects(rows, limits))
    for row in rows:
        queue_id, stream, policy, halted_at, id, waiting, released, _suspect, expired = row[:9]
        _name, _attempts, lost, _kind, overflow = row[9:]
        # What failed in this very call is not claimed again by it: it waits, whatever its delay.
        member = Member(
            id,
            bool(waiting) or id in exclude,
            bool(released),
            bool(id in judged.deaths or overflow),
            bool(expired),
            bool(lost),
            bool(overflow),
        )
        found.setdefault((queue_id, stream), (policy, halted_at, []))[2].append(member)
    return found, judged


def _suspects(rows: Iterable[Row], limits: Limits) -> list[int]:
    """Return the messages that may have reached a limit and do not wait."""
    found = []
    for row in rows:
        id, waiting, suspect, name, attempts, lost, kind = (
            row[place] for place in (4, 5, 7, 9, 10, 11, 12)
        )
        if not waiting and (suspect or lost or limits.may_be_reached(name, kind, attempts)):
            found.append(id)
    return found


def park(
    tx: Transaction, candidates: dict[Stream, list[int]], *, exclude: Collection[int]
) -> list[int]:
    """Take candidates of blocked streams, and what is due right behind them, out of sight."""
    candidates = {stream: ids for stream, ids in candidates.items() if ids}
    rows: list[Row] = []
    if tx.is_sqlite:
        for (queue_id, stream), ids in candidates.items():
            rows += tx.run(
                "park",
                ids=ids,
                queue_id=queue_id,
                stream=stream,
                after=max(ids),
                reach=REACH,
                exclude=sorted(exclude),
            )
    elif candidates:
        rows = tx.run(
            "park",
            ids=[id for ids in candidates.values() for id in ids],
            queue_ids=[queue_id for queue_id, _ in candidates],
            streams=[stream for _, stream in candidates],
            after=[max(ids) for ids in candidates.values()],
            reach=REACH,
            exclude=sorted(exclude),
        )
    return [row[0] for row in rows]


def lock(tx: Transaction, ids: Collection[int]) -> None:
    """Wait for the streams of these messages, all at once and in order, before changing any."""
    if ids:
        tx.run("lock_streams", ids=sorted(ids))


def concerned(reports: Iterable[Completion | Failure]) -> list[int]:
    """Return the ids that may have a stream: all but those whose message says they have none."""
    return [item.id for item in reports if item.message is None or item.message.stream is not None]


def wake(tx: Transaction, streams: Iterable[Stream]) -> list[int]:
    """Make the first parked message of each stream due if nothing in front holds it back."""
    woken = [row[0] for row in tx.run_for(streams, "wake")]
    if woken:
        crash_points.reach("stream.woken")
    return woken


def touched(rows: Iterable[Row]) -> set[Stream]:
    """Return the streams of rows that end in queue_id, stream."""
    return {(row[-2], row[-1]) for row in rows if row[-1] is not None}
