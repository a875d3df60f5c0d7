"""How does poison leave the system? As JSON Lines or CSV, redacted, a piece at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from ..models import Damaged, PoisonRecord
from ..status import FailureReason
from .filters import PoisonFilter
from .poison import alias_of
from .redact import redact

#: Records read at a time; payloads make them large.
PIECE = 200
COLUMNS = (
    "id",
    "message_id",
    "queue",
    "name",
    "kind",
    "stream",
    "attempts",
    "max_attempts",
    "reason",
    "last_failure_reason",
    "exception",
    "last_error",
    "poison_count",
    "fingerprint",
    "original_created_at",
    "poisoned_at",
    "poisoned_by",
    "payload",
)


def export_poison(
    wanted: PoisonFilter,
    *,
    format: str = "jsonl",
    payloads: bool = True,
    using: str | None = None,
) -> Iterator[str]:
    """Yield lines. Without `payloads` (no permission to see them) they are left out."""
    if format not in ("jsonl", "csv"):
        raise ValueError(f"format: expected jsonl or csv, got {format!r}")
    columns = COLUMNS if payloads else COLUMNS[:-1]
    if format == "csv":
        yield _csv_line(list(columns))
    for record in _records(wanted, alias_of(using), payloads):
        row = {column: _value(record, column) for column in columns}
        if format == "jsonl":
            yield json.dumps(row, ensure_ascii=False, default=str) + "\n"
        else:
            yield _csv_line([_cell(row[column]) for column in columns])


def _records(wanted: PoisonFilter, alias: str, payloads: bool) -> Iterator[PoisonRecord]:
    rows = wanted.records(alias)
    if payloads:
        rows = rows.defer(None).defer("headers", "history")
    after = 0
    while True:
        piece = list(rows.filter(pk__gt=after)[:PIECE])
        if not piece:
            return
        yield from piece
        after = piece[-1].pk


def _value(record: PoisonRecord, column: str) -> Any:
    value = getattr(record, column)
    if column in ("reason", "last_failure_reason"):
        return None if value is None else FailureReason.read(value).name
    if column == "payload":
        return value.text if isinstance(value, Damaged) else redact(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _cell(value: Any) -> str:
    """A spreadsheet would execute a cell that begins like a formula: keep it text."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"'{text}" if text[:1] in "=+-@\t\r\n" and not isinstance(value, int | float) else text


def _csv_line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
