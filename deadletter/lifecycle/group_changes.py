"""
Failures and deaths of one transaction, by failure group.

A transaction collects them in memory and inserts them once, before its commit. It locks no row of
a group: the housekeeper adds them up, see groups.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from .. import sql
from ..fingerprints import cause_of, fingerprint
from ..message_tags import Tag
from ..models import ERROR_LIMIT
from ..status import FailureReason
from ..text import storable_text

#: Values of tags in one row; what is beyond them counts in the value "" of its key.
_TAGS = 1_000


class GroupKey(NamedTuple):
    """What is counted in one row. A queue is given by its id or, where it may be gone, by name."""

    fingerprint: str
    queue: int | str
    release: str


class GroupCause(NamedTuple):
    """What the failures of a group have in common, and the text of the latest."""

    name: str
    exception: str
    frame: str
    reason: FailureReason
    error: str


def cause_and_group(
    name: str,
    reason: FailureReason,
    exception: str,
    frame: str,
    *,
    error: str | None,
    custom: str = "",
) -> tuple[GroupCause, str]:
    """Return the cause of a failure and the fingerprint of its group; `custom` is its own."""
    cause = cause_of(reason, exception)
    group = custom or fingerprint(name, cause, frame)
    stored = storable_text(cause)[:200], storable_text(frame)[:300]
    return GroupCause(name, *stored, reason, error or ""), group


@dataclass(slots=True)
class _Row:
    cause: GroupCause
    failures: int = 0
    deaths: int = 0
    tags: dict[Tag, int] = field(default_factory=dict)


class GroupChanges:
    """What one transaction has collected so far."""

    def __init__(self) -> None:
        self._rows: dict[GroupKey, _Row] = {}

    def add_failure(self, key: GroupKey, cause: GroupCause, tags: Iterable[Tag] = ()) -> None:
        row = self._row(key, cause)
        row.failures += 1
        for tag in tags:
            _count_tag(row.tags, tag, 1)

    def add_death(self, key: GroupKey, cause: GroupCause) -> None:
        self._row(key, cause).deaths += 1

    def _row(self, key: GroupKey, cause: GroupCause) -> _Row:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(cause)
        else:
            row.cause = cause
        return row

    def absorb(self, other: GroupChanges) -> None:
        """Add what a savepoint of the transaction has collected."""
        for key, row in other._rows.items():
            mine = self._row(key, row.cause)
            mine.failures += row.failures
            mine.deaths += row.deaths
            for tag, times in row.tags.items():
                _count_tag(mine.tags, tag, times)

    def write(
        self, connection: BaseDatabaseWrapper, now: datetime | None, *, keep: bool = False
    ) -> None:
        """Insert the changes, and start again with none."""
        if not self._rows:
            return
        rows = [_as_columns(key, row) for key, row in self._rows.items()]
        params = {"now": now, "rows": json.dumps(rows)}
        sql.run(connection, "insert_group_changes", params, keep=keep)
        self._rows.clear()


def _count_tag(tags: dict[Tag, int], tag: Tag, times: int) -> None:
    if tag not in tags and len(tags) >= _TAGS:
        tag = (tag[0], "")
    tags[tag] = tags.get(tag, 0) + times


def _as_columns(key: GroupKey, row: _Row) -> dict[str, Any]:
    cause = row.cause
    return {
        "fingerprint": key.fingerprint,
        "queue_id" if isinstance(key.queue, int) else "queue": key.queue,
        "release": key.release,
        "name": cause.name,
        "exception": cause.exception,
        "frame": cause.frame,
        "reason": int(cause.reason),
        "error": cause.error[:ERROR_LIMIT],
        "failures": row.failures,
        "deaths": row.deaths,
        "tags": [[*tag, times] for tag, times in row.tags.items()],
    }
