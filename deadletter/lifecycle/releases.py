"""Release: give messages back that were not processed, and refund their attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta

from .. import crash_points, sql
from ..durations import as_timedelta
from ..exceptions import LockNotAvailable
from . import streams
from .locks import for_each_unlocked, try_lock
from .settles import Outcomes, Tokens, lease_guard, lease_guard_for, settle
from .transaction import SHORT_WAIT, TRY_WAIT, Transaction, in_transaction
from .values import Release, Released


def release(
    token: str, ids: Iterable[int], *, by_name: bool = False, using: str | None = None
) -> Outcomes:
    """
    Give messages back unprocessed and refund the attempt.

    By name: each may pass a waiting or poisoned predecessor of its stream, never a leased one.
    Raises: LeaseLost naming the ids that are not the caller's; the others are given back.
    """
    reports = [Release(id, 0, token) for id in ids]

    def work(tx: Transaction) -> Outcomes:
        streams.lock(tx, {item.id for item in reports})
        return release_in(tx, reports, by_name={item.id for item in reports} if by_name else ())

    return settle(reports, work, using)


def release_in(
    tx: Transaction, releases: Sequence[Release], *, by_name: Collection[int] = ()
) -> Outcomes:
    """
    Give messages back and refund the attempt. The caller holds the locks of their streams.

    `by_name` are the ids that may pass waiting and poisoned predecessors.
    """
    # One statement for each combination of delay and way; almost always there is just one.
    groups: dict[tuple[bool, timedelta], list[Release]] = {}
    for item in releases:
        key = item.id in by_name, as_timedelta(item.delay, field="delay")
        groups.setdefault(key, []).append(item)
    rows: list[sql.Row] = []
    for (is_by_name, delay), some in groups.items():
        rows += tx.run(
            "release",
            **lease_guard(some)._asdict(),
            by_name=is_by_name,
            delay=sql.microseconds(delay),
        )
    crash_points.reach("release.given_back")
    streams.wake(tx, streams.streams_of(rows))
    return {row[0]: Released() for row in rows}


def refund(token: str, ids: Iterable[int], *, using: str | None = None) -> list[int]:
    """
    Refund the attempts of messages whose lease ran out before they were started.

    Returns the ids of messages that were not claimed again since. `release` is for leases that
    still run; here the lease is over, the message is due again already, and only the attempt is
    given back.
    """
    tokens = dict.fromkeys(ids, token)
    return in_transaction(lambda tx: refund_in(tx, tokens), using=using)


def refund_in(tx: Transaction, tokens: Tokens) -> list[int]:
    """Refund the attempts of messages that were never started and are due again."""
    if not tokens:
        return []
    streams.lock(tx, tokens.keys())
    return [row[0] for row in tx.run("refund", **lease_guard_for(tokens)._asdict())]


def give_back(tokens: Tokens, *, using: str | None = None) -> tuple[int, dict[int, str]]:
    """
    Give back messages that were never started, whether their leases are over or not.

    Release and refund have opposite guards on the same `now`: exactly one of them refunds the
    attempt, unless the message was claimed again since. Returns how many messages were given back,
    and the tokens of those that another transaction has locked.
    """

    def work(tx: Transaction, ids: Collection[int]) -> int:
        mine = {id: tokens[id] for id in ids}
        streams.lock(tx, mine)
        released = release_in(tx, [Release(id, 0, token) for id, token in mine.items()])
        return len(released) + len(refund_in(tx, mine))

    def work_on_unlocked(tx: Transaction) -> tuple[int, dict[int, str]]:
        locked = try_lock(tx, lease_guard_for(tokens), alive=False)
        done = for_each_unlocked(tx, sorted(locked.free), work)
        return sum(done.results), {id: tokens[id] for id in {*locked.busy, *done.busy}}

    try:
        return in_transaction(lambda tx: work(tx, tokens), using=using, wait=SHORT_WAIT), {}
    except LockNotAvailable:
        pass
    try:
        return in_transaction(work_on_unlocked, using=using, wait=TRY_WAIT)
    except LockNotAvailable:
        return 0, dict(tokens)
