"""What happened? Added up in memory, written once, in the transaction it happened in."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

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
    Name this connection of this process; None when nothing is counted.

    It has one transaction at a time, so a row that only it writes is never waited for. A thread may
    have several, by two aliases of one database, and would wait for itself.
    """
    return f"{_process}-{id(connection):x}" if get_settings().counts else None


class Subject(NamedTuple):
    """What is counted together. A queue is given by its id or, where it may be gone, by name."""

    queue: int | str
    name: str
    kind: str
    reason: int = NO_REASON


def times_by_subject(finished: Iterable[Completion]) -> dict[tuple[str, str, str], list[float]]:
    """Return how long each of these took, by queue, name and kind. Their messages are known."""
    times: dict[tuple[str, str, str], list[float]] = {}
    for _id, _status, _token, seconds, message in finished:
        if seconds is not None and message is not None:
            subject = (message.queue, message.name, message.kind)
            if subject in times:
                times[subject].append(seconds)
            else:
                times[subject] = [seconds]
    return times


class Counts:
    """What one transaction did so far."""

    def __init__(self) -> None:
        self._rows: dict[Subject, dict[str, float]] = {}

    def add(
        self, subject: Subject, what: str, *, times: int = 1, seconds: float | None = None
    ) -> None:
        row = self._rows.get(subject)
        if row is None:
            row = self._rows[subject] = {}
        row[what] = row.get(what, 0) + times
        if seconds:
            row["seconds"] = row.get("seconds", 0.0) + seconds
            if seconds > row.get("longest", 0.0):
                row["longest"] = seconds

    def add_completed(
        self, rows: Iterable[tuple[int, int, str, str]], seconds: Mapping[int, float | None]
    ) -> None:
        """Count finished messages, given as (id, queue id, name, kind). The hot path."""
        many: dict[tuple[int, str, str], list[int]] = {}
        for id, queue_id, name, kind in rows:
            many.setdefault((queue_id, name, kind), []).append(id)
        for subject, ids in many.items():
            row = self._rows.setdefault(Subject(*subject), {})
            row["completed"] = row.get("completed", 0) + len(ids)
            times = [taken for id in ids if (taken := seconds[id]) is not None]
            if times:
                row["seconds"] = row.get("seconds", 0.0) + sum(times)
                row["longest"] = max(row.get("longest", 0.0), *times)

    def absorb(self, other: Counts) -> None:
        """Add what a part of the transaction did."""
        for subject, sums in other._rows.items():
            row = self._rows.setdefault(subject, {})
            for what, value in sums.items():
                is_peak = what == "longest"
                row[what] = max(row.get(what, 0), value) if is_peak else row.get(what, 0) + value

    def write(self, connection: BaseDatabaseWrapper, now: datetime | None) -> None:
        """Add this to the rows of the minute, and forget it."""
        by = writer(connection)
        if self._rows and by is not None:
            rows = json.dumps([_row(*item) for item in self._rows.items()])
            sql.run(connection, "count", {"now": now, "writer": by, "rows": rows})
        self._rows.clear()


def _row(subject: Subject, sums: Mapping[str, float]) -> dict[str, Any]:
    queue, name, kind, reason = subject
    key = "queue_id" if isinstance(queue, int) else "queue"
    return {key: queue, "name": name, "kind": kind, "reason": reason, **sums}
