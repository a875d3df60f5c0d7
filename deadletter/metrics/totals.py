"""Totals since the beginning: sums over the rows of the counters, exact over all processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Min, Sum

from ..models import Count, Kind
from ..status import FailureReason
from .process_counters import OTHER

#: Pairs of queue and name with series of their own; all others are added up under OTHER.
SERIES = 500

_COLUMNS = ("sent", "completed", "failed", "poisoned", "retried", "removed", "deferred")
#: queue, name, kind, reason
_Key = tuple[str, str, str, int]
_Sums = tuple[int, ...]


@dataclass
class Totals:
    """Counts by their labels."""

    sent: dict[tuple[str, str], int] = field(default_factory=dict)
    completed: dict[tuple[str, str], int] = field(default_factory=dict)
    failed: dict[tuple[str, str, str], int] = field(default_factory=dict)
    poisoned: dict[str, int] = field(default_factory=dict)
    retried: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, int] = field(default_factory=dict)


class MonotonicTotals:
    """
    Reads totals that never decrease while this process lives.

    Two things would make them decrease: old rows are deleted, and a name could move from a series
    of its own to OTHER or back. The counts of deleted rows are added back, and a series once given
    to a name stays with it.
    """

    def __init__(self, series: int = SERIES) -> None:
        self._series = series
        self._named: set[tuple[str, str]] = set()
        self._seen: dict[_Key, _Sums] = {}
        self._deleted: dict[_Key, _Sums] = {}

    def read(self, using: str) -> Totals:
        sums, first = _read(using)
        # The oldest first, then by name: a process that starts anew chooses the same names.
        for pair in sorted(first, key=lambda pair: (first[pair], pair)):
            if len(self._named) < self._series:
                self._named.add(pair)
        return _label(self._with_deleted(sums), self._named)

    def _with_deleted(self, sums: dict[_Key, _Sums]) -> dict[_Key, _Sums]:
        nothing = (0,) * len(_COLUMNS)
        lasting = {}
        for key in {**self._seen, **sums}:
            now, before = sums.get(key, nothing), self._seen.get(key, nothing)
            gone = self._deleted.get(key, nothing)
            if any(n < b for n, b in zip(now, before, strict=True)):
                lost = (max(b - n, 0) for n, b in zip(now, before, strict=True))
                gone = self._deleted[key] = tuple(map(sum, zip(gone, lost, strict=True)))
            lasting[key] = tuple(map(sum, zip(now, gone, strict=True)))
            self._seen[key] = now
        return lasting


def _read(using: str) -> tuple[dict[_Key, _Sums], dict[tuple[str, str], datetime]]:
    """Add up in one statement: rows being folded are seen before or after, never twice."""
    rows = Count.objects.using(using).order_by().values_list("queue", "name", "kind", "reason")
    sums: dict[_Key, _Sums] = {}
    first: dict[tuple[str, str], datetime] = {}
    summed = {f"all_{column}": Sum(column) for column in _COLUMNS}
    for row in rows.annotate(**summed, first=Min("at")):
        queue, name = row[:2]
        sums[row[:4]] = tuple(int(n) for n in row[4:-1])
        first[queue, name] = min(row[-1], first.get((queue, name), row[-1]))
    return sums, first


def _label(sums: Mapping[_Key, _Sums], named: set[tuple[str, str]]) -> Totals:
    found = Totals()
    by_type = (found.poisoned, found.retried, found.removed, found.deferred)
    for values in by_type:
        # 0 from the start, so that the first death is an increase.
        values.update(dict.fromkeys(Kind.values, 0))
    for (queue, name, kind, reason), counts in sums.items():
        sent, completed, failed, *of_type = counts
        pair = (queue, name) if (queue, name) in named else (OTHER, OTHER)
        _add([(found.sent, sent), (found.completed, completed)], pair)
        if failed:
            _add([(found.failed, failed)], (*pair, FailureReason.read(reason).name))
        label = kind if kind in Kind.values else OTHER
        _add(zip(by_type, of_type, strict=True), label)
    return found


def _add(sums: Iterable[tuple[dict[Any, int], int]], key: Any) -> None:
    for values, n in sums:
        values[key] = values.get(key, 0) + n
