"""
Counters of sent, completed, failed and poisoned messages, per minute.

A transaction adds up what it did in memory and writes it once, before its commit.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from .. import sql
from ..conf import get_settings
from ..forks import at_fork
from ..models import NO_REASON
from .values import Completion

_process = secrets.token_hex(4)


def _new_process() -> None:
    global _process
    _process = secrets.token_hex(4)


at_fork(after_in_child=_new_process)


def writer(connection: BaseDatabaseWrapper) -> str | None:
    """
    Return the name under which this connection writes counters; None when nothing is counted.

    A connection has one transaction at a time, so a row that only it writes is never waited for.
    A name per thread would not do: a thread may have two connections to one database, by two
    aliases, and would wait for itself.
    """
    return f"{_process}-{id(connection):x}" if get_settings().counts else None


class CounterKey(NamedTuple):
    """What is counted in one row. A queue is given by its id or, where it may be gone, by name."""

    queue: int | str
    name: str
    kind: str
    reason: int = NO_REASON


def times_by_key(finished: Iterable[Completion]) -> dict[tuple[str, str, str], list[float]]:
    """Return the seconds of completions that have their message, by queue, name and kind."""
    times: dict[tuple[str, str, str], list[float]] = {}
    for _id, _status, _token, seconds, message, _result in finished:
        if seconds is not None and message is not None:
            key = (message.queue, message.name, message.kind)
            if key in times:
                times[key].append(seconds)
            else:
                times[key] = [seconds]
    return times


class Counts:
    """What one transaction has counted so far."""

    def __init__(self) -> None:
        self._rows: dict[CounterKey, dict[str, float]] = {}

    def add(
        self, key: CounterKey, what: str, *, times: int = 1, seconds: float | None = None
    ) -> None:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = {}
        row[what] = row.get(what, 0) + times
        if seconds:
            row["seconds"] = row.get("seconds", 0.0) + seconds
            if seconds > row.get("longest", 0.0):
                row["longest"] = seconds

    def add_completed(
        self, rows: Iterable[tuple[int, int, str, str]], seconds: Mapping[int, float | None]
    ) -> None:
        """Count completed messages, given as (id, queue id, name, kind). The hot path."""
        many: dict[tuple[int, str, str], list[int]] = {}
        for id, queue_id, name, kind in rows:
            many.setdefault((queue_id, name, kind), []).append(id)
        for key, ids in many.items():
            row = self._rows.setdefault(CounterKey(*key), {})
            row["completed"] = row.get("completed", 0) + len(ids)
            times = [taken for id in ids if (taken := seconds[id]) is not None]
            if times:
                row["seconds"] = row.get("seconds", 0.0) + sum(times)
                row["longest"] = max(row.get("longest", 0.0), *times)

    def absorb(self, other: Counts) -> None:
        """Add what a savepoint of the transaction has counted."""
        for key, sums in other._rows.items():
            row = self._rows.setdefault(key, {})
            for what, value in sums.items():
                is_peak = what == "longest"
                row[what] = max(row.get(what, 0), value) if is_peak else row.get(what, 0) + value

    def write(self, connection: BaseDatabaseWrapper, now: datetime | None) -> None:
        """Add the counts to the rows of the current minute, and start again at zero."""
        by = writer(connection)
        if self._rows and by is not None:
            rows = [
                {
                    "queue_id" if isinstance(queue, int) else "queue": queue,
                    "name": name,
                    "kind": kind,
                    "reason": reason,
                    **sums,
                }
                for (queue, name, kind, reason), sums in self._rows.items()
            ]
            sql.run(connection, "count", {"now": now, "writer": by, "rows": json.dumps(rows)})
        self._rows.clear()
