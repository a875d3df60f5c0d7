"""How is an act on many ids done? In pieces, each a transaction, under one audit entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from django.db import router

from ..error_details import shown
from ..exceptions import LockNotAvailable
from ..lifecycle.act_results import ActResult
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import AuditEntry, PoisonRecord
from . import audit

#: Ids per transaction: locks are short, memory is flat, and SQLite's limit on variables is far.
PIECE = 1_000
#: What fits a bigint; anything else is nobody's id.
_LARGEST = 2**63 - 1

#: Gets a transaction, ids, and how many went before them; returns also the poison it touched.
Verb = Callable[[Transaction, list[int], int], tuple[ActResult, Sequence[PoisonRecord] | None]]


def carry_out(
    opening: audit.Opening, verb: Verb, ids: Sequence[int], *, using: str | None
) -> tuple[ActResult, int]:
    """Do the verb to every id; return what happened to which, and the audit entry (0: none)."""
    total = ActResult(missing=[id for id in ids if not 0 < id <= _LARGEST])
    possible = [id for id in ids if 0 < id <= _LARGEST]
    entry: AuditEntry | None = None
    for first in range(0, len(possible), PIECE):
        piece = possible[first : first + PIECE]
        with after_pieces(len(total.done)):
            verdicts, entry = in_transaction(
                lambda tx: step(
                    tx,
                    opening,
                    verb,
                    piece,  # noqa: B023 - called before the loop goes on
                    start=first,  # noqa: B023
                    entry=entry,  # noqa: B023
                    missing=len(total.missing),
                ),
                using=alias_of(using),
            )
        total.done.extend(verdicts.done)
        total.missing.extend(verdicts.missing)
        total.refused.update(verdicts.refused)
    return total, entry.pk if entry else 0


@contextmanager
def after_pieces(done: int) -> Iterator[None]:
    """Let a piece that finds something locked say how many were done before it."""
    try:
        yield
    except LockNotAvailable as error:
        if not done:
            raise
        raise LockNotAvailable(error.holders, waited=error.waited, done=done) from error


def step(
    tx: Transaction,
    opening: audit.Opening,
    verb: Verb,
    ids: list[int],
    *,
    start: int,
    entry: AuditEntry | None,
    missing: int = 0,
) -> tuple[ActResult, AuditEntry | None]:
    """
    Do one piece under the act's entry, which is written when the first thing is done or refused.

    An act that touched nothing leaves no entry: there is nothing to prove. `missing` were found
    missing before there was one.
    """
    verdicts, records = tx.undo_unless(
        lambda: verb(tx, ids, start), lambda result: bool(result[0].done)
    )
    if entry is not None:
        missing = 0
    elif verdicts.done or verdicts.refused:
        entry = audit.record(tx, opening)
    else:
        return verdicts, None
    audit.name(tx, entry, verdicts.done if records is None else records)
    if opening.payload is not None and records:
        # One record: an edit of several has an entry for each.
        before: str | None = getattr(records[0], "stored_payload", None)
        audit.keep_edit(tx, entry, before=before, after=opening.payload)
    audit.count(
        tx,
        entry,
        done=len(verdicts.done),
        missing=missing + len(verdicts.missing),
        refused=len(verdicts.refused),
    )
    return verdicts, entry


def several(ids: int | Iterable[int]) -> list[int]:
    """Return ids as a list without repetitions. Raises TypeError for what is no id."""
    found: list[object] = [ids] if isinstance(ids, int) else list(dict.fromkeys(ids))
    for id in found:
        if not isinstance(id, int) or isinstance(id, bool):
            raise TypeError(f"an id is a whole number, not {shown(id)}")
    return cast(list[int], found)


def alias_of(using: str | None) -> str:
    # Decisions are made from the primary: a replica may show what is already gone.
    return using or router.db_for_write(PoisonRecord)
