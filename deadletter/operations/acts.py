"""
Acts of people on many ids: done in pieces, each in a transaction of its own, under one audit entry.

An act is interrupted without harm: the pieces that were done are committed, and the same call does
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ..exceptions import LockNotAvailable
from ..lifecycle.transaction import Transaction, in_transaction
from ..lifecycle.values import ActResult
from ..models import AuditEntry, primary_alias
from ..text import short_repr
from . import audit

#: Ids per transaction: locks are short, memory is flat, and SQLite's limit on variables is far.
PIECE = 1_000
#: Refusals whose reasons a `Total` keeps; the rest is counted.
_REASONS = 100
#: Ids that a row can have: positive bigints.
POSSIBLE_IDS = range(1, 2**63)

#: Does one piece of an act: gets the transaction, the ids, and the number of ids before them.
Verb = Callable[[Transaction, list[int], int], ActResult]
#: Called after each piece with the number of ids that were looked at so far.
Progress = Callable[[int], None]


@dataclass
class Total:
    """How many records an act on everything that matches has changed."""

    done: int = 0
    refused: int = 0
    #: Why, for the first hundred refused ids.
    reasons: dict[int, str] = field(default_factory=dict)
    #: Records that another act retried or removed first.
    missing: int = 0
    #: The audit entry; 0 if nothing was done.
    entry_id: int = 0

    def add(self, piece: ActResult) -> int:
        """Add a piece; return how many ids were looked at so far."""
        self.done += len(piece.done)
        self.refused += len(piece.refused)
        self.missing += len(piece.missing)
        room = _REASONS - len(self.reasons)
        self.reasons |= dict(list(piece.refused.items())[:room])
        return self.done + self.refused + self.missing


def act_on_ids(
    new: audit.NewEntry, verb: Verb, ids: Sequence[int], *, using: str | None
) -> ActResult:
    """Do the verb to every id, a piece at a time, under one audit entry."""
    total = ActResult(missing=[id for id in ids if id not in POSSIBLE_IDS])
    entry: AuditEntry | None = None
    start = 0
    for piece in pieces([id for id in ids if id in POSSIBLE_IDS]):
        with after_pieces(len(total.done)):
            result, entry = in_transaction(
                lambda tx: act_in(
                    tx,
                    new,
                    verb,
                    piece,  # noqa: B023 - called before the loop goes on
                    start=start,  # noqa: B023
                    entry=entry,  # noqa: B023
                    missing=len(total.missing),
                ),
                using=primary_alias(using),
            )
        total.add(result)
        start += len(piece)
    return replace(total, entry_id=entry.pk if entry else 0)


def act_on_matches(
    new: audit.NewEntry,
    verb: Verb,
    select: Callable[[], Any],
    *,
    limit: int | None,
    progress: Progress | None,
    using: str,
) -> Total:
    """
    Do the verb to every row that `select()` finds, oldest first, under one audit entry.

    `select` is called for each piece. The rows it returns must have an upper bound: rows that
    appear while the act runs would keep it running.
    """
    total, entry, after, looked_at = Total(), None, 0, 0

    def piece(tx: Transaction) -> tuple[list[int], ActResult, AuditEntry | None]:
        size = PIECE if limit is None else min(PIECE, limit - looked_at)
        ids = list(select().filter(pk__gt=after).values_list("pk", flat=True)[:size])
        if not ids:
            return ids, ActResult(), entry
        return ids, *act_in(tx, new, verb, ids, start=looked_at, entry=entry)

    while limit is None or looked_at < limit:
        with after_pieces(total.done):
            ids, result, entry = in_transaction(piece, using=using)
        if not ids:
            break
        after, looked_at = ids[-1], total.add(result)
        if progress is not None:
            progress(looked_at)
    total.entry_id = entry.pk if entry else 0
    return total


def act_in(
    tx: Transaction,
    new: audit.NewEntry,
    verb: Verb,
    ids: list[int],
    *,
    start: int,
    entry: AuditEntry | None,
    missing: int = 0,
) -> tuple[ActResult, AuditEntry | None]:
    """
    Do one piece under the act's audit entry; return the entry too.

    The first piece that changes or refuses an id writes the entry: an act that touched nothing
    leaves none. `missing` ids were found missing before the entry was written.
    """
    result = tx.undo_unless(lambda: verb(tx, ids, start), lambda result: bool(result.done))
    if entry is not None:
        missing = 0
    elif result.done or result.refused:
        entry = audit.record(tx, new)
    else:
        return result, None
    audit.add(
        tx,
        entry,
        touched=result.done if result.records is None else result.records,
        done=len(result.done),
        missing=missing + len(result.missing),
        refused=len(result.refused),
    )
    return result, entry


@contextmanager
def after_pieces(done: int) -> Iterator[None]:
    """Add to LockNotAvailable how many ids earlier pieces have done."""
    try:
        yield
    except LockNotAvailable as error:
        if not done:
            raise
        raise LockNotAvailable(error.holders, waited=error.waited, done=done) from error


def pieces(ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ids in lists that fit one statement and one transaction."""
    for first in range(0, len(ids), PIECE):
        yield list(ids[first : first + PIECE])


def as_ids(ids: int | Iterable[int]) -> list[int]:
    """Return ids as a list without repetitions. Raises TypeError for anything but an int."""
    found: list[object] = [ids] if isinstance(ids, int) else list(dict.fromkeys(ids))
    for id in found:
        if not isinstance(id, int) or isinstance(id, bool):
            raise TypeError(f"an id is a whole number, not {short_repr(id)}")
    return cast(list[int], found)
