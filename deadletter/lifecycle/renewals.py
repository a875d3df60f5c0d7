"""Renew: extend the leases of messages that are still being handled."""

from __future__ import annotations

from collections.abc import Iterable

from .. import crash_points
from ..durations import Duration, as_timedelta
from ..exceptions import LeaseLost
from .settles import Tokens, lease_guard_for
from .transaction import Transaction, in_transaction


def renew(
    token: str, ids: Iterable[int], *, lease: Duration | None = None, using: str | None = None
) -> None:
    """
    Extend leases, counted from now. `lease` defaults to the queue's.

    Raises: LeaseLost naming the ids whose lease is over or not the caller's; the other leases are
    extended.
    """
    tokens = dict.fromkeys(ids, token)
    lost = in_transaction(lambda tx: renew_in(tx, tokens, lease=lease), using=using)
    if lost:
        raise LeaseLost(lost)


def renew_in(tx: Transaction, tokens: Tokens, *, lease: Duration | None) -> list[int]:
    """Extend leases; return the ids that were not the caller's."""
    if not tokens:
        return []
    until = None if lease is None else as_timedelta(lease, field="lease")
    rows = tx.run("renew", **lease_guard_for(tokens)._asdict(), lease=until)
    crash_points.reach("renew.extended")
    return sorted(tokens.keys() - {row[0] for row in rows})


def renew_unlocked_in(
    tx: Transaction, tokens: Tokens, *, lease: Duration | None
) -> tuple[list[int], list[int]]:
    """
    Extend leases without waiting for locked rows.

    Returns the ids whose lease is lost, and the ids that another transaction has locked.
    """
    if tx.is_sqlite or not tokens:
        return renew_in(tx, tokens, lease=lease), []
    until = None if lease is None else as_timedelta(lease, field="lease")
    guard = lease_guard_for(tokens)._asdict()
    rows = tx.run("renew_unlocked", **guard, lease=until)
    crash_points.reach("renew.extended")
    missing = tokens.keys() - {row[0] for row in rows}
    if not missing:
        return [], []
    busy = {id for id, live in tx.run("read_leases", **guard) if live and id in missing}
    return sorted(missing - busy), sorted(busy)
