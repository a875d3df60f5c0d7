"""
Fold: add the changes that settles inserted to their failure groups.

The housekeeper does it about once a second, one process at a time. Changes are deleted in the
transaction that adds them: none is lost or counted twice, wherever a process dies.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

from .. import crash_points, sql
from ..durations import LATEST
from ..exceptions import LockNotAvailable
from ..message_tags import KEYS, Tag
from ..models import GroupChange, primary_alias
from ..status import FailureReason
from . import group_states
from .transaction import SHORT_WAIT, Transaction, in_transaction

#: Changes that one transaction adds.
PIECE = 5_000
#: Values of one key that a group keeps; the failures of all others are counted in the value "".
TAG_VALUES = 100
#: The two numbers of the advisory lock of the process that folds.
_LOCK_SPACE, _LOCK_KEY = 0x64656164, 1
#: Deaths for these reasons are failures that were not counted before: nothing ran and raised.
_WITHOUT_ATTEMPT = (FailureReason.EXPIRED, FailureReason.UNREGISTERED)


def fold_groups(*, using: str | None = None) -> int:
    """
    Add the oldest changes to their groups; return how many, at most PIECE.

    0: there are none, or another process adds them now.
    """
    try:
        return in_transaction(_fold, using=using, wait=SHORT_WAIT)
    except LockNotAvailable:
        return 0


def fold_all_groups(*, using: str | None = None) -> int:
    """Add all changes to their groups, in pieces; return how many."""
    total = 0
    while count := fold_groups(using=using):
        total += count
    return total


def has_changes(*, using: str | None = None) -> bool:
    """Return whether a change is not yet added to its group: one index probe."""
    return GroupChange.objects.using(primary_alias(using)).order_by("pk").exists()


def lock_folding(tx: Transaction) -> bool:
    """Become the only transaction that adds to groups; False: another one is. Never waits."""
    if tx.is_sqlite:
        return True
    return bool(tx.run("lock_folding", space=_LOCK_SPACE, key=_LOCK_KEY)[0][0])


def _fold(tx: Transaction) -> int:
    if not lock_folding(tx):
        return 0
    rows = [_read_change(tx, row) for row in tx.run("read_group_changes", limit=PIECE)]
    if not rows:
        return 0
    locked, busy = group_states.lock(tx, {row.fingerprint for row in rows})
    changes = [row for row in rows if row.fingerprint not in busy]
    if not changes:
        return 0
    tx.run("delete_group_changes", ids=[change.id for change in changes])
    crash_points.reach("groups.folding")
    sums = [
        GroupSum.of(fingerprint, list(some), is_new=fingerprint not in locked)
        for fingerprint, some in groupby(sorted(changes, key=_by_group), key=_fingerprint)
    ]
    add_sums(tx, sums, locked)
    _add_hours(tx, changes)
    _add_tags(tx, changes)
    group_states.apply_rules(tx, locked, {item.fingerprint: item.failed for item in sums})
    return len(changes)


class Change(NamedTuple):
    """A row of the table of changes."""

    id: int
    fingerprint: str
    name: str
    queue: str
    exception: str
    frame: str
    reason: int
    error: str
    release: str
    failures: int
    deaths: int
    tags: list[tuple[str, str, int]]
    at: datetime

    @property
    def is_failure(self) -> bool:
        """False for deaths of messages whose failures were counted when they happened."""
        return self.failures > 0 or self.reason in _WITHOUT_ATTEMPT


def _read_change(tx: Transaction, row: sql.Row) -> Change:
    """Return a change; a row that was damaged by hand must not stop the fold of the others."""
    id, *texts, reason, error, release, failures, deaths, tags, at = row
    fingerprint, name, queue, exception, frame = map(str, texts)
    return Change(
        id,
        fingerprint,
        name,
        queue,
        exception,
        frame,
        int(FailureReason.read(reason)),
        str(error),
        str(release),
        _number(failures),
        _number(deaths),
        _read_tags(tags),
        sql.as_datetime(at, tx.connection) or LATEST,
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _read_tags(text: Any) -> list[tuple[str, str, int]]:
    try:
        rows = json.loads(text)
        return [(str(key), str(value), int(times)) for key, value, times in rows]
    except (TypeError, ValueError, RecursionError):
        return []


def _by_group(change: Change) -> tuple[str, datetime, int]:
    return change.fingerprint, change.at, change.id


def _fingerprint(change: Change) -> str:
    return change.fingerprint


@dataclass
class GroupSum:
    """What is added to one group."""

    fingerprint: str
    name: str
    queue: str
    exception: str
    frame: str
    reason: int
    error: str
    failures: int
    deaths: int
    #: Of its failures; None: there are only deaths of messages that failed before.
    first_at: datetime | None
    last_at: datetime | None
    first_died_at: datetime | None
    last_died_at: datetime | None
    first_release: str = ""
    last_release: str = ""
    #: When it failed, and in which release.
    failed: list[tuple[datetime, str]] = field(default_factory=list)

    @classmethod
    def of(cls, fingerprint: str, changes: Sequence[Change], *, is_new: bool) -> GroupSum:
        """Add up the changes of one group, given in the order of their times."""
        failures = [change for change in changes if change.is_failure]
        deaths = [change for change in changes if change.deaths]
        # A group has a first and a last failure even if all that is known of it is a death.
        timed = failures or (list(changes) if is_new else [])
        latest = timed[-1] if timed else changes[-1]
        releases = [change.release for change in failures if change.release]
        return cls(
            fingerprint=fingerprint,
            name=latest.name,
            queue=latest.queue,
            exception=latest.exception,
            frame=latest.frame,
            reason=latest.reason,
            error=latest.error,
            failures=sum(change.failures for change in changes),
            deaths=sum(change.deaths for change in changes),
            first_at=timed[0].at if timed else None,
            last_at=timed[-1].at if timed else None,
            first_died_at=deaths[0].at if deaths else None,
            last_died_at=deaths[-1].at if deaths else None,
            first_release=releases[0] if releases else "",
            last_release=releases[-1] if releases else "",
            failed=[(change.at, change.release) for change in failures],
        )

    def columns(self, tx: Transaction) -> dict[str, Any]:
        found = {key: value for key, value in vars(self).items() if key != "failed"}
        for key in ("first_at", "last_at", "first_died_at", "last_died_at"):
            found[key] = written_time(tx, found[key])
        return found


def written_time(tx: Transaction, moment: datetime | None) -> str | None:
    """Return a time as the database writes it, for rows that are given as JSON."""
    if moment is None:
        return None
    if tx.is_sqlite:
        return str(tx.connection.ops.adapt_datetimefield_value(moment))
    return sql.iso(moment)


def add_sums(tx: Transaction, sums: Iterable[GroupSum], known: Collection[str]) -> None:
    """Add sums to groups, and create those that are not among the `known`, in one order."""
    ordered = sorted(sums, key=lambda item: item.fingerprint)
    new = [item.columns(tx) for item in ordered if item.fingerprint not in known]
    if new:
        tx.run("insert_groups", rows=json.dumps(new))
    tx.run("update_groups", rows=json.dumps([item.columns(tx) for item in ordered]))


def _add_hours(tx: Transaction, changes: Iterable[Change]) -> None:
    hours: dict[tuple[str, datetime, str], list[int]] = {}
    for change in changes:
        hour = change.at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        row = hours.setdefault((change.fingerprint, hour, change.release), [0, 0])
        row[0] += change.failures
        row[1] += change.deaths
    rows = [
        {
            "fingerprint": fingerprint,
            "at": written_time(tx, hour),
            "release": release,
            "failures": failures,
            "deaths": deaths,
        }
        for (fingerprint, hour, release), (failures, deaths) in sorted(hours.items())
    ]
    tx.run("add_to_group_hours", rows=json.dumps(rows))


class _TagSum(NamedTuple):
    times: int
    last_at: datetime


def _add_tags(tx: Transaction, changes: Iterable[Change]) -> None:
    sums: dict[tuple[str, str, str], _TagSum] = {}
    for change in changes:
        for key, value, times in change.tags:
            _sum_tag(sums, (change.fingerprint, key, value), _TagSum(times, change.at))
    if not sums:
        return
    kept: dict[tuple[str, str, str], _TagSum] = {}
    bounds = _TagBounds(tx, sums)
    for (fingerprint, key, value), item in sorted(sums.items()):
        place = bounds.place(fingerprint, (key, value))
        if place is not None:
            _sum_tag(kept, (fingerprint, *place), item)
    rows = [
        {
            "fingerprint": fingerprint,
            "key": key,
            "value": value,
            "failures": item.times,
            "last_at": written_time(tx, item.last_at),
        }
        for (fingerprint, key, value), item in sorted(kept.items())
    ]
    tx.run("add_to_group_tags", rows=json.dumps(rows))


def _sum_tag(
    sums: dict[tuple[str, str, str], _TagSum], key: tuple[str, str, str], item: _TagSum
) -> None:
    before = sums.get(key)
    if before is not None:
        item = _TagSum(before.times + item.times, max(before.last_at, item.last_at))
    sums[key] = item


class _TagBounds:
    """How many keys and values the groups have, so that their number stays bounded."""

    def __init__(self, tx: Transaction, wanted: Mapping[tuple[str, str, str], object]) -> None:
        rows = [
            {"fingerprint": fingerprint, "key": key, "value": value}
            for fingerprint, key, value in sorted(wanted)
        ]
        fingerprints = sorted({fingerprint for fingerprint, _key, _value in wanted})
        self._stored: set[tuple[str, str, str]] = set()
        #: By group and key: the number of values.
        self._values: dict[str, dict[str, int]] = {}
        for fingerprint, key, value, count in tx.run(
            "find_group_tags", rows=json.dumps(rows), fingerprints=fingerprints
        ):
            if value is None:
                self._values.setdefault(fingerprint, {})[key] = count
            else:
                self._stored.add((fingerprint, key, value))

    def place(self, fingerprint: str, tag: Tag) -> Tag | None:
        """Return where a tag is counted; None: its key is one too many."""
        key, value = tag
        if (fingerprint, key, value) in self._stored:
            return tag
        keys = self._values.setdefault(fingerprint, {})
        if key not in keys and len(keys) >= KEYS:
            return None
        count = keys.setdefault(key, 0)
        if value == "" or count >= TAG_VALUES:
            return key, ""
        keys[key] = count + 1
        return tag
