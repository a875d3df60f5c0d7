"""
Work that waits for nobody: find out what others have locked, and do the rest.

Locks are taken in the order of everybody (streams, then rows), but each is only tried. What cannot
be had is returned as busy; the caller comes back for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar

from ..exceptions import LockNotAvailable
from .held import Held
from .transaction import Stream, Transaction

T = TypeVar("T")
R = TypeVar("R")

#: Seconds after which the search for what is in the way ends; the rest counts as busy.
BUDGET = 0.25


@dataclass(frozen=True)
class Locked:
    """Which of the messages asked for are locked by this transaction, and which by others."""

    free: set[int] = field(default_factory=set)
    #: Still under the caller's token, but they or something of their stream is locked by others.
    busy: set[int] = field(default_factory=set)
    #: The streams of those that have one.
    streams: dict[int, Stream] = field(default_factory=dict)

    def groups(self) -> list[list[int]]:
        """Return what is free: all of a stream together, each other message by itself."""
        found: dict[Stream | int, list[int]] = {}
        for id in sorted(self.free):
            found.setdefault(self.streams.get(id, id), []).append(id)
        return list(found.values())


def try_lock(tx: Transaction, held: Held, *, alive: bool) -> Locked:
    """
    Lock messages and their streams, as far as that can be had at once.

    A message that is busy makes all reported messages of its stream busy: their reports stay
    together. `alive`: only those whose lease is not over; the others are neither free nor busy.
    """
    tried = tx.run("try_lock_streams", ids=held.ids)
    streams = {id: (queue_id, stream) for id, queue_id, stream, _ in tried}
    refused = {(queue_id, stream) for _, queue_id, stream, got in tried if not got}
    # A new statement, so that its snapshot is taken under the locks of the streams.
    wanted = [
        (id, pair)
        for id, pair in zip(held.ids, held.pairs, strict=True)
        if streams.get(id) not in refused
    ]
    ids, pairs = [id for id, _ in wanted], [pair for _, pair in wanted]
    rows = {row[0] for row in tx.run("try_lock_messages", ids=ids, pairs=pairs)} if ids else set()
    mine = {id for id, live in tx.run("read_leases", **held._asdict()) if live or not alive}
    busy = mine - rows
    refused |= {streams[id] for id in busy if id in streams}
    busy |= {id for id in mine if streams.get(id) in refused}
    return Locked(mine - busy, busy, streams)


@dataclass(frozen=True)
class Done(Generic[T, R]):
    """What each part that could be done returned, and the items of those that could not."""

    results: list[R] = field(default_factory=list)
    busy: list[T] = field(default_factory=list)


def each_free(
    tx: Transaction, items: Sequence[T], work: Callable[[Transaction, Sequence[T]], R]
) -> Done[T, R]:
    """
    Do the work on all items, or on as many as nobody is in the way of.

    All at once where that goes; else in halves, so that one item in the way of five hundred is
    found in nine steps.
    """
    done: Done[T, R] = Done()
    end = monotonic() + BUDGET
    pieces = [list(items)] if items else []
    while pieces:
        piece = pieces.pop()
        if monotonic() > end and done.busy:
            done.busy.extend(piece)
            continue
        try:
            done.results.append(tx.attempt(lambda part: work(part, piece)))  # noqa: B023
        except LockNotAvailable:
            middle = len(piece) // 2
            if middle:
                pieces += [piece[middle:], piece[:middle]]
            else:
                done.busy.extend(piece)
    return done


def try_streams(tx: Transaction, ids: Collection[int]) -> list[int]:
    """Lock the streams of messages as far as they can be had; return the messages in others."""
    if tx.is_sqlite or not ids:
        return []
    return [row[0] for row in tx.run("try_lock_streams", ids=sorted(ids)) if not row[3]]


def try_named(tx: Transaction, streams: Iterable[Stream]) -> set[Stream]:
    """Lock streams as far as they can be had; return those."""
    wanted = set(streams)
    if tx.is_sqlite:
        return wanted
    return {(row[0], row[1]) for row in tx.run_for(wanted, "try_lock_named_streams")}
