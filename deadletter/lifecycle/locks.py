"""
Work without waiting: find out what other transactions have locked, and do the rest.

Locks are taken in the usual order (streams, then rows), but each is only tried. What is not
available is returned as busy; the caller tries it again later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar

from ..exceptions import LockNotAvailable
from .settles import LeaseGuard
from .transaction import Stream, Transaction

T = TypeVar("T")
R = TypeVar("R")

#: Seconds after which the search for the blocked items ends; the rest counts as busy.
BUDGET = 0.25


@dataclass(frozen=True)
class LockAttempt:
    """Which of the messages are locked by this transaction, and which by others."""

    free: set[int] = field(default_factory=set)
    #: Still under the caller's token, but another transaction has locked them or their stream.
    busy: set[int] = field(default_factory=set)
    #: The streams of the messages that have one.
    streams: dict[int, Stream] = field(default_factory=dict)

    def groups(self) -> list[list[int]]:
        """Return what is free: all of a stream together, each other message by itself."""
        found: dict[Stream | int, list[int]] = {}
        for id in sorted(self.free):
            found.setdefault(self.streams.get(id, id), []).append(id)
        return list(found.values())


def try_lock(tx: Transaction, guard: LeaseGuard, *, alive: bool) -> LockAttempt:
    """
    Lock messages and their streams, as far as they are available at once.

    A message that is busy makes all reported messages of its stream busy: their reports stay
    together. `alive`: only messages whose lease still runs; the others are neither free nor busy.
    """
    tried = tx.run("try_lock_streams", ids=guard.ids)
    streams = {id: (queue_id, stream) for id, queue_id, stream, _ in tried}
    refused = {(queue_id, stream) for _, queue_id, stream, got in tried if not got}
    # A new statement, so that its snapshot is taken under the locks of the streams.
    wanted = [
        (id, pair)
        for id, pair in zip(guard.ids, guard.pairs, strict=True)
        if streams.get(id) not in refused
    ]
    ids, pairs = [id for id, _ in wanted], [pair for _, pair in wanted]
    rows = {row[0] for row in tx.run("try_lock_messages", ids=ids, pairs=pairs)} if ids else set()
    mine = {id for id, live in tx.run("read_leases", **guard._asdict()) if live or not alive}
    busy = mine - rows
    refused |= {streams[id] for id in busy if id in streams}
    busy |= {id for id in mine if streams.get(id) in refused}
    return LockAttempt(mine - busy, busy, streams)


@dataclass(frozen=True)
class PartialWork(Generic[T, R]):
    """The result of each part that could be done, and the items that were blocked."""

    results: list[R] = field(default_factory=list)
    busy: list[T] = field(default_factory=list)


def for_each_unlocked(
    tx: Transaction, items: Sequence[T], work: Callable[[Transaction, Sequence[T]], R]
) -> PartialWork[T, R]:
    """
    Do the work on all items that no other transaction blocks.

    On all at once if possible; else in halves: one blocked item of five hundred is found in nine
    steps.
    """
    done: PartialWork[T, R] = PartialWork()
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


def try_lock_streams_of(tx: Transaction, ids: Collection[int]) -> list[int]:
    """Try to lock the streams of messages; return the messages whose stream is locked by others."""
    if tx.is_sqlite or not ids:
        return []
    rows = tx.run("try_lock_streams", ids=sorted(ids))
    return [id for id, _queue_id, _stream, got in rows if not got]


def try_lock_streams(tx: Transaction, streams: Iterable[Stream]) -> set[Stream]:
    """Try to lock streams; return those that are locked by this transaction now."""
    wanted = set(streams)
    if tx.is_sqlite:
        return wanted
    return {(row[0], row[1]) for row in tx.run_for(wanted, "try_lock_named_streams")}
