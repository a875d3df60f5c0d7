"""States of failure groups that change by themselves: resolved ones come back, mutes end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Sum

from .. import sql
from ..durations import LATEST
from ..models import ApplicationRelease, FailureGroup, GroupEvent, GroupState
from .transaction import Transaction

#: Mutes that are ended in one transaction.
_PIECE = 500
#: What acted, in the events of groups.
_BY = "worker"

#: When a group failed, and in which release.
FailedIn = tuple[datetime, str]


class LockedGroup(NamedTuple):
    """The columns of `lock_groups`."""

    fingerprint: str
    state: str
    state_at: Any
    failures: int
    muted_until_failures: int | None
    resolved_in: str
    merged_into: str


def lock(tx: Transaction, fingerprints: Collection[str]) -> tuple[dict[str, LockedGroup], set[str]]:
    """
    Lock groups, and those they are merged into, without waiting.

    Returns the locked ones, and the fingerprints of groups that a person is changing now.
    """
    locked = _lock(tx, fingerprints)
    busy = _busy(tx, set(fingerprints) - locked.keys())
    mains = {group.merged_into for group in locked.values() if group.merged_into}
    if unlocked := mains - locked.keys():
        more = _lock(tx, unlocked)
        busy_mains = _busy(tx, unlocked - more.keys())
        busy |= {key for key, group in locked.items() if group.merged_into in busy_mains}
        locked |= more
    return locked, busy


def _lock(tx: Transaction, fingerprints: Collection[str]) -> dict[str, LockedGroup]:
    rows = tx.run("lock_groups", fingerprints=sorted(fingerprints))
    return {row[0]: LockedGroup(*row) for row in rows}


def _busy(tx: Transaction, missing: Collection[str]) -> set[str]:
    """Return which groups exist, of those that could not be locked."""
    if tx.is_sqlite or not missing:
        return set()
    return {row[0] for row in tx.run("find_groups", fingerprints=sorted(missing))}


def apply_rules(
    tx: Transaction, locked: Mapping[str, LockedGroup], failed: Mapping[str, Sequence[FailedIn]]
) -> None:
    """Change the states of groups to which failures were just added. Their rows are locked."""
    by_main: dict[str, list[FailedIn]] = {}
    for fingerprint, failures in failed.items():
        group = locked.get(fingerprint)
        if group is not None and failures:
            main = group.merged_into if group.merged_into in locked else fingerprint
            by_main.setdefault(main, []).extend(failures)
    mains = {fingerprint: locked[fingerprint] for fingerprint in sorted(by_main)}
    resolved = [group for group in mains.values() if group.state == GroupState.RESOLVED]
    starts = _starts_of_releases(tx, resolved, by_main)
    for group in resolved:
        _regress(tx, group, sorted(by_main[group.fingerprint]), starts)
    grown = [
        group.fingerprint
        for group in mains.values()
        if group.state == GroupState.MUTED
        and group.muted_until_failures is not None
        and _failures_of(tx, group.fingerprint) >= group.muted_until_failures
    ]
    _unmute(tx, grown)


def _starts_of_releases(
    tx: Transaction, resolved: Iterable[LockedGroup], failed: Mapping[str, Sequence[FailedIn]]
) -> dict[str, datetime]:
    """Return when the releases that decide on regressions were first seen."""
    names = {
        name
        for group in resolved
        if group.resolved_in
        for name in (group.resolved_in, *(item[1] for item in failed[group.fingerprint]))
        if name
    }
    if not names:
        return {}
    rows = ApplicationRelease.objects.using(tx.using).filter(name__in=sorted(names))
    return dict(rows.order_by("name").values_list("name", "first_seen_at"))


def _regress(
    tx: Transaction,
    group: LockedGroup,
    failed: Iterable[FailedIn],
    starts: Mapping[str, datetime],
) -> None:
    """Mark a resolved group as regressed by the first failure that the repair should prevent."""
    resolved_at = sql.as_datetime(group.state_at, tx.connection) or LATEST
    for at, release in failed:
        if at > resolved_at and not _is_before(release, group.resolved_in, starts):
            break
    else:
        return
    FailureGroup.objects.using(tx.using).filter(fingerprint=group.fingerprint).update(
        state=GroupState.REGRESSED, state_at=at, state_by="", resolved_in=""
    )
    detail = {"release": release}
    if group.resolved_in:
        detail["resolved_in"] = group.resolved_in
    GroupEvent.objects.using(tx.using).create(
        fingerprint=group.fingerprint,
        at=at,
        by=_BY,
        kind=GroupEvent.Kind.REGRESSED,
        detail=detail,
    )


def _is_before(release: str, repaired: str, starts: Mapping[str, datetime]) -> bool:
    """
    Return whether a release is known to be older than the one that contains the repair.

    One that no worker has run yet is newer than those that some have.
    """
    if not repaired or not release or release == repaired or release not in starts:
        return False
    return repaired not in starts or starts[release] < starts[repaired]


def _failures_of(tx: Transaction, main: str) -> int:
    """Return the failures of a group and of those merged into it."""
    rows = FailureGroup.objects.using(tx.using)
    own = rows.filter(fingerprint=main).values_list("failures", flat=True).first() or 0
    return own + (rows.filter(merged_into=main).aggregate(sum=Sum("failures"))["sum"] or 0)


def end_mutes(tx: Transaction) -> int:
    """End some mutes whose time is over; return how many."""
    rows = FailureGroup.objects.using(tx.using).filter(
        state=GroupState.MUTED, muted_until__lte=tx.time()
    )
    over = list(
        rows.select_for_update(skip_locked=True)
        .order_by("fingerprint")
        .values_list("fingerprint", flat=True)[:_PIECE]
    )
    _unmute(tx, over)
    return len(over)


def _unmute(tx: Transaction, fingerprints: Iterable[str]) -> None:
    """End mutes: a group is what it was before, acknowledged or new. Their rows are locked."""
    now = tx.time()
    for fingerprint in fingerprints:
        state = _state_before_mute(tx, fingerprint)
        FailureGroup.objects.using(tx.using).filter(fingerprint=fingerprint).update(
            state=state, state_at=now, state_by="", muted_until=None, muted_until_failures=None
        )
        GroupEvent.objects.using(tx.using).create(
            fingerprint=fingerprint,
            at=now,
            by=_BY,
            kind=GroupEvent.Kind.UNMUTED,
            detail={"state": state.value},
        )


def _state_before_mute(tx: Transaction, fingerprint: str) -> GroupState:
    events = GroupEvent.objects.using(tx.using).filter(
        fingerprint=fingerprint, kind=GroupEvent.Kind.STATE
    )
    # A few, from the newest on: people seldom change a muted group.
    for detail in events.order_by("-id").values_list("detail", flat=True)[:20]:
        if isinstance(detail, dict) and detail.get("state") == GroupState.MUTED:
            was = detail.get("was")
            return GroupState.ACKNOWLEDGED if was == GroupState.ACKNOWLEDGED else GroupState.NEW
    return GroupState.NEW
