"""
Adoption: the dead of earlier releases become failure groups.

A fingerprint's deaths before the first one that was counted are added to its group. So a second
adoption adds nothing, and nobody has to remember what was adopted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import sql
from ..exceptions import LockNotAvailable
from ..models import ERROR_LIMIT, Message, PoisonRecord
from ..status import FailureReason
from . import group_states
from .groups import GroupSum, add_sums, lock_folding
from .transaction import SHORT_WAIT, Transaction, in_transaction

#: Fingerprints that one transaction looks at.
PIECE = 200


def adopt_groups(after: str = "", *, using: str | None = None) -> str | None:
    """
    Add uncounted deaths of the next fingerprints to their groups.

    Returns the last fingerprint, from which the next call goes on; None: that was all.
    """
    try:
        return in_transaction(lambda tx: _adopt(tx, after), using=using, wait=SHORT_WAIT)
    except LockNotAvailable:
        return after


def adopt_all_groups(*, using: str | None = None) -> None:
    """Add all uncounted deaths to their groups, in pieces."""
    after: str | None = ""
    while after is not None:
        before, after = after, adopt_groups(after, using=using)
        if before == after:
            return


class _Deaths(NamedTuple):
    """The columns of `read_uncounted_groups`."""

    fingerprint: str
    deaths: int
    failures: int
    first_at: Any
    last_at: Any


def _adopt(tx: Transaction, after: str) -> str | None:
    if not lock_folding(tx):
        return after
    rows = [_Deaths(*row) for row in tx.run("read_uncounted_groups", after=after, limit=PIECE)]
    if not rows:
        return None
    uncounted = [row for row in rows if row.deaths]
    last = rows[-1].fingerprint
    if uncounted:
        locked, busy = group_states.lock(tx, {row.fingerprint for row in uncounted})
        if busy:
            # A person is changing this group: the next call begins with it.
            uncounted = [row for row in uncounted if row.fingerprint < min(busy)]
            last = max([after, *(row.fingerprint for row in rows if row.fingerprint < min(busy))])
        sums = [_sum(tx, row) for row in uncounted]
        if sums:
            add_sums(tx, sums, locked)
    return last


def _sum(tx: Transaction, row: _Deaths) -> GroupSum:
    first_at = sql.as_datetime(row.first_at, tx.connection)
    last_at = sql.as_datetime(row.last_at, tx.connection)
    latest = _latest_record(tx, row.fingerprint) or _latest_copy(tx, row.fingerprint) or _NOTHING
    return GroupSum(
        fingerprint=row.fingerprint,
        **latest._asdict(),
        failures=row.failures,
        deaths=row.deaths,
        first_at=first_at,
        last_at=last_at,
        first_died_at=first_at,
        last_died_at=last_at,
    )


class _Latest(NamedTuple):
    name: str
    queue: str
    exception: str
    frame: str
    reason: int
    error: str


_NOTHING = _Latest("", "", "", "", int(FailureReason.UNKNOWN), "")


def _latest_record(tx: Transaction, group: str) -> _Latest | None:
    records = PoisonRecord.objects.using(tx.using).filter(fingerprint=group)
    row = (
        records.order_by("-poisoned_at", "-pk")
        .values_list(
            "name", "queue", "exception", "frame", "last_failure_reason", "reason", "last_error"
        )
        .first()
    )
    if row is None:
        return None
    name, queue, exception, frame, last_reason, reason, error = row
    text = (error or "")[:ERROR_LIMIT]
    return _Latest(name, queue, exception, frame, _number(last_reason or reason), text)


def _latest_copy(tx: Transaction, group: str) -> _Latest | None:
    """Return what describes a group whose messages are in dead queues only."""
    copies = Message.objects.using(tx.using).filter(fingerprint=group)
    row = copies.order_by("-died_at", "-pk").values_list("name", "death", "error").first()
    if row is None:
        return None
    name, death, error = row
    death = death if isinstance(death, dict) else {}
    return _Latest(
        name,
        str(death.get("queue") or "")[:200],
        str(death.get("exception") or "")[:200],
        str(death.get("frame") or "")[:300],
        _number(death.get("failure_reason") or death.get("reason")),
        str(death.get("error") or error or "")[:ERROR_LIMIT],
    )


def _number(reason: Any) -> int:
    return int(FailureReason.read(reason))
