"""Export of poison records as JSON Lines or CSV, redacted, a piece at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from ..lifecycle.transaction import in_transaction
from ..models import Act, Damaged, PoisonRecord, primary_alias
from ..redaction import redact, redact_history
from ..status import FailureReason
from . import audit
from .filters import PoisonFilter

#: Records read at a time; payloads make them large.
PIECE = 200
COLUMNS = (
    "id",
    "message_id",
    "queue",
    "name",
    "kind",
    "stream",
    "key",
    "priority",
    "status",
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
    "source_id",
    "origin",
    "instance",
    "execution_id",
    "activity_id",
    "payload",
    "damaged",
    "headers",
    "history",
)
#: Too large for a cell.
_NOT_IN_CSV = ("history",)
#: Columns that need the permission to see payloads: error texts repeat parts of payloads.
GUARDED = ("last_error", "payload", "damaged", "headers", "history")


#: The first characters of a formula; Japanese keyboards type the wide forms.
_FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001


def export_poison(
    wanted: PoisonFilter,
    *,
    format: str = "jsonl",
    payloads: bool = True,
    reveal: bool = False,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> Iterator[str]:
    """
    Return the lines of the export. Without `payloads` (no permission) GUARDED is left out.

    With `reveal` secrets are not redacted; `import_messages` refuses rows with redacted values.
    The audit entry is written before the first line, and counts the records that were read.
    """
    if format not in ("jsonl", "csv"):
        raise ValueError(f"format: expected jsonl or csv, got {format!r}")
    alias = primary_alias(using)
    fixed = wanted if wanted.up_to is not None else wanted.fixed(alias)
    new = audit.NewEntry(
        act=Act.EXPORT,
        by=by,
        why=why,
        selection=fixed.as_dict(),
        detail={"format": format, "payloads": payloads} | ({"reveal": True} if reveal else {}),
    )
    columns = [
        column
        for column in COLUMNS
        if (payloads or column not in GUARDED) and not (format == "csv" and column in _NOT_IN_CSV)
    ]
    return _lines(fixed, new, format, columns, reveal, alias)


def _lines(
    wanted: PoisonFilter,
    new: audit.NewEntry,
    format: str,
    columns: list[str],
    reveal: bool,
    alias: str,
) -> Iterator[str]:
    entry = in_transaction(lambda tx: audit.record(tx, new), using=alias)
    if format == "csv":
        yield _csv_line(columns)
    for piece in _pieces(wanted, alias, columns):
        # Counted first: a reader that disconnects has got no more than the entry says.
        count = len(piece)
        in_transaction(lambda tx: audit.add(tx, entry, done=count), using=alias)  # noqa: B023
        for record in piece:
            row = {column: _value(record, column, reveal) for column in columns}
            if format == "jsonl":
                yield json.dumps(row, ensure_ascii=False, default=str) + "\n"
            else:
                yield _csv_line([_cell(row[column]) for column in columns])


def _pieces(wanted: PoisonFilter, alias: str, columns: list[str]) -> Iterator[list[PoisonRecord]]:
    rows = wanted.records(alias).defer(None)
    # "damaged" is a property of the payload, which is a column whenever "damaged" is one.
    rows = rows.only("id", *(column for column in columns if column != "damaged"))
    after = 0
    while True:
        piece = list(rows.filter(pk__gt=after)[:PIECE])
        if not piece:
            return
        yield piece
        after = piece[-1].pk


def _value(record: PoisonRecord, column: str, reveal: bool) -> Any:
    if column == "damaged":
        return isinstance(record.payload, Damaged)
    value = getattr(record, column)
    if column in ("reason", "last_failure_reason"):
        return None if value is None else FailureReason.read(value).name
    if column == "history":
        return value if reveal else redact_history(value)
    if column in ("payload", "headers"):
        if not reveal:
            return redact(value)
        return value.text if isinstance(value, Damaged) else value
    return value.isoformat() if hasattr(value, "isoformat") else value


def _cell(value: Any) -> str:
    """Return the text of a cell. A spreadsheet would execute one that begins like a formula."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, int | float) or not text.lstrip().startswith(_FORMULAS):
        # Some programs skip a leading line break or tab, and execute what follows.
        return text if text[:1] not in ("\t", "\r", "\n") else f"'{text}"
    return f"'{text}"


def _csv_line(cells: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
