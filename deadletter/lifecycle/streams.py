"""
Streams: which messages may run now, and the parking and waking of those that wait.

Order is id order. At most one worker holds messages of a stream. A message that cannot run is
parked (`available_at` NULL), which hides it from claims; the transaction that unblocks the stream
makes the first parked message due again. Parking and waking happen only under the stream's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from .. import crash_points
from ..models import StreamPolicy
from ..sql import Row
from .limits import LimitJudgement, Limits
from .transaction import Stream, Transaction

#: Messages behind a blocked candidate that are parked along with it.
REACH = 1_000


@dataclass(frozen=True)
class StreamMember:
    """A message of a stream, as far as the choice of a run needs it."""

    id: int
    waiting: bool = False
    released: bool = False
    exhausted: bool = False
    expired: bool = False
    #: Its last lease ran out unreported.
    lost: bool = False
    #: Its attempts or its fence cannot be counted any further; `exhausted` is set as well.
    overflow: bool = False


@dataclass
class StreamHead:
    """The first messages of a stream, and what decides which of them may run."""

    policy: str
    #: The id of the message whose poison record halts the stream.
    halted_at: int | None
    members: list[StreamMember] = field(default_factory=list)


@dataclass
class RunChoice:
    """What a claim does with one stream."""

    run: list[int] = field(default_factory=list)
    exhausted: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    blocked: bool = False


def choose_run(
    members: Sequence[StreamMember], *, policy: str, halted_at: int | None, room: int
) -> RunChoice:
    """
    Choose the first messages that may run, in order.

    strict, halt: up to the first message that waits. release: passing messages that wait. A message
    released by name passes messages that wait and messages that died. A message at its limit or
    past its expiry is not run; under halt it stops the stream like any other death.
    """
    choice = RunChoice()
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


def read_heads(
    tx: Transaction,
    streams: Iterable[Stream],
    *,
    cap: int,
    exclude: Collection[int],
    limits: Limits,
) -> tuple[dict[Stream, StreamHead], LimitJudgement]:
    """
    Read the heads of streams whose lock is held. A stream with a live lease is absent.

    `exclude` are messages that failed in this very call: they wait, whatever their delay.
    Returns also the judgement on members that may have reached a limit.
    """
    rows = tx.run_for(streams, "read_streams", cap=cap)
    # Rows are unpacked, not named tuples: that takes half the time, and there may be thousands.
    suspects = [
        id
        for _, _, _, _, id, waiting, _, suspect, _, name, attempts, lost, kind, _ in rows
        if not waiting and (suspect or lost or limits.may_be_reached(name, kind, attempts))
    ]
    judgement = limits.judge(suspects)
    heads: dict[Stream, StreamHead] = {}
    for (
        queue_id,
        stream,
        policy,
        halted_at,
        id,
        waiting,
        released,
        _suspect,
        expired,
        _name,
        _attempts,
        lost,
        _kind,
        overflow,
    ) in rows:
        member = StreamMember(
            id,
            bool(waiting) or id in exclude,
            bool(released),
            bool(id in judgement.deaths or overflow),
            bool(expired),
            bool(lost),
            bool(overflow),
        )
        head = heads.get((queue_id, stream))
        if head is None:
            head = heads[queue_id, stream] = StreamHead(policy, halted_at)
        head.members.append(member)
    return heads, judgement


def park(
    tx: Transaction, candidates: dict[Stream, list[int]], *, exclude: Collection[int]
) -> list[int]:
    """Park candidates of blocked streams, and what is due right behind them; return the ids."""
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
    """Lock the streams of these messages, all at once and in order, before changing any."""
    if ids:
        tx.run("lock_streams", ids=sorted(ids))


def wake(tx: Transaction, streams: Iterable[Stream]) -> list[int]:
    """Make the first parked message of each stream due, unless a message in front blocks it."""
    woken = [row[0] for row in tx.run_for(streams, "wake")]
    if woken:
        crash_points.reach("stream.woken")
    return woken


def streams_of(rows: Iterable[Row]) -> set[Stream]:
    """Return the streams of rows that end in queue_id, stream."""
    return {(row[-2], row[-1]) for row in rows if row[-1] is not None}
