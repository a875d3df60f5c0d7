"""How does poison leave the system? As JSON Lines or CSV, redacted, a piece at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from ..lifecycle.transaction import in_transaction
from ..models import Act, PoisonRecord
from ..status import FailureReason
from . import audit
from .acting import alias_of
from .filters import PoisonFilter
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
    "headers",
)
#: Columns that need the permission to see payloads: texts of errors repeat what payloads hold.
GUARDED = ("last_error", "payload", "headers")


#: How a formula begins; the wide forms are what Japanese keyboards type.
_FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001


def export_poison(
    wanted: PoisonFilter,
    *,
    format: str = "jsonl",
    payloads: bool = True,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> Iterator[str]:
    """
    Return the lines. Without `payloads` (no permission to see them) GUARDED is left out.

    The audit entry is written before the first line leaves, and counts what has left.
    """
    if format not in ("jsonl", "csv"):
        raise ValueError(f"format: expected jsonl or csv, got {format!r}")
    alias = alias_of(using)
    fixed = wanted if wanted.up_to is not None else wanted.fixed(alias)
    opening = audit.Opening(
        act=Act.EXPORT,
        by=by,
        why=why,
        selection=fixed.as_dict(),
        detail={"format": format, "payloads": payloads},
    )
    return _lines(fixed, opening, format, payloads, alias)


def _lines(
    wanted: PoisonFilter, opening: audit.Opening, format: str, payloads: bool, alias: str
) -> Iterator[str]:
    entry = in_transaction(lambda tx: audit.record(tx, opening), using=alias)
    columns = [column for column in COLUMNS if payloads or column not in GUARDED]
    if format == "csv":
        yield _csv_line(columns)
    for piece in _pieces(wanted, alias, payloads):
        # Counted before it leaves: a reader who hangs up has got no more than the entry says.
        count = len(piece)
        in_transaction(lambda tx: audit.count(tx, entry, done=count), using=alias)  # noqa: B023
        for record in piece:
            row = {column: _value(record, column) for column in columns}
            if format == "jsonl":
                yield json.dumps(row, ensure_ascii=False, default=str) + "\n"
            else:
                yield _csv_line([_cell(row[column]) for column in columns])


def _pieces(wanted: PoisonFilter, alias: str, payloads: bool) -> Iterator[list[PoisonRecord]]:
    rows = wanted.records(alias)
    if payloads:
        rows = rows.defer(None).defer("history")
    after = 0
    while True:
        piece = list(rows.filter(pk__gt=after)[:PIECE])
        if not piece:
            return
        yield piece
        after = piece[-1].pk


def _value(record: PoisonRecord, column: str) -> Any:
    value = getattr(record, column)
    if column in ("reason", "last_failure_reason"):
        return None if value is None else FailureReason.read(value).name
    if column in ("payload", "headers"):
        return redact(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _cell(value: Any) -> str:
    """A spreadsheet would execute a cell that begins like a formula: keep it text."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, int | float) or not text.lstrip().startswith(_FORMULAS):
        # A line break or a tab at the front is skipped by some programs, with what follows it.
        return text if text[:1] not in ("\t", "\r", "\n") else f"'{text}"
    return f"'{text}"


def _csv_line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
