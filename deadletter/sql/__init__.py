"""
The named SQL statements: `run(connection, "claim", …)` executes the one for the database vendor.

A statement starts at a line "-- name --" in `postgresql/*.sql`, `sqlite/*.sql` (the same file
names, one for each verb) or `shared.sql` (identical in both). The lines before the first name and
all comments are dropped. A statement opens with its promise; `sqlite/` gives reasons only where
they differ from those in `postgresql/`.

Conventions of both:

- Parameters are named. `%(now)s` is the time of the transaction; in PostgreSQL it becomes
  COALESCE(given, now()), so that it is the server's time unless a test froze it. `%(sent)s` is the
  time of the statement instead, for durations that count from the send.
- Lock order: the advisory locks of streams (by key), then rows (by id). A claim waits for neither.

Conventions of PostgreSQL, each because the planner was seen to do otherwise:

- A stream is read as queue_id = … AND stream >= … AND stream <= …, in the order of an index of
  streams, and its ends with LIMIT 1 instead of EXISTS. With stream = … the order by id is also that
  of the primary key, and the planner read the whole table for a stream that is most of it.
  A row comparison (queue_id, stream) <= (…) is no substitute: before PostgreSQL 18 it ends a scan
  only where queue_id changes, and each stream of a claim read all streams behind it. As the start
  of a scan, > (…), it is exact in all versions.
- Messages named by the caller are joined to the values for them and named once more as "= ANY":
  right after a drained queue was analysed the planner takes a million rows for one, and read them
  all in the order of their ids for a merge.
- available_at is compared as a COALESCE for the same reason, except in the claim: a plain
  comparison offers the claim index, and every due message or every lease was read from it.

Conventions of SQLite:

- One transaction writes at a time (BEGIN IMMEDIATE), so nothing is locked.
- Arrays come as JSON and are read with json_each. Arrays that belong together are matched by
  position: a join of two json_each compares every pair. Streams come one at a time
  (queue_id, stream).
- `halts` is tested twice, halts AND halts = 1: SQLite uses a partial index only for the exact words
  of its condition, and Django 5.2 writes one form, Django 6.1 the other.
- The times that a claim returns are read as text (|| ''): the driver would parse them, and a value
  that is no time would break the batch.
- Durations are microseconds; django_format_dtdelta adds them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from ..durations import EARLIEST, LATEST
from . import prepared_statements

Row = tuple[Any, ...]

_HEADER = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_MICROSECOND = timedelta(microseconds=1)


def run(
    connection: BaseDatabaseWrapper, name: str, params: Mapping[str, Any], *, keep: bool = False
) -> list[Row]:
    """
    Execute a named statement and return its rows. Several parts run in order; rows are joined.

    `keep`: the caller repeats its transaction when an error `prepared.is_stale`, so a statement
    that the server has prepared may be used.
    """
    if connection.vendor == "sqlite":
        params = {key: _for_sqlite(value, connection) for key, value in params.items()}
    else:
        params = {key: _for_postgresql(value) for key, value in params.items()}
    rows: list[Row] = []
    with connection.cursor() as cursor:
        for text in statements(connection.vendor)[name]:
            if keep and name in prepared_statements.NAMES and connection.vendor == "postgresql":
                text = prepared_statements.ready(connection, cursor, name, text)
            cursor.execute(text, params)
            if cursor.description is not None:
                rows += cursor.fetchall()
    return rows


@cache
def statements(vendor: str) -> Mapping[str, tuple[str, ...]]:
    """
    Return every statement of a vendor, comments dropped, split into its parts.

    Raises: ValueError when two statements have the same name.
    """
    folder = resources.files(__package__)
    files = [folder / "shared.sql", *(folder / vendor).iterdir()]
    found: dict[str, tuple[str, ...]] = {}
    for file in files:
        if not file.name.endswith(".sql"):
            continue
        pieces = _HEADER.split(file.read_text(encoding="utf-8"))[1:]
        for name, body in zip(pieces[::2], pieces[1::2], strict=True):
            if name in found:
                raise ValueError(f"{file.name} has a second statement {name!r} for {vendor}")
            found[name] = _parts(body, vendor)
    return found


def _parts(body: str, vendor: str) -> tuple[str, ...]:
    body = _COMMENT.sub("", body)
    if vendor == "postgresql":
        # The server's now() is constant in a transaction and costs no round trip; see clock.py.
        body = body.replace("%(now)s", "COALESCE(%(now)s::timestamptz, now())")
        # In a transaction that is open for a minute now() is a minute ago.
        sent = "COALESCE(%(now)s::timestamptz, statement_timestamp())"
        body = body.replace("%(sent)s", sent)
    return tuple(part.strip() for part in body.split(";") if part.strip())


def as_datetime(value: Any, connection: BaseDatabaseWrapper) -> datetime | None:
    """Return a timestamp of a result row as an aware datetime: SQLite gives text or a naive one."""
    if isinstance(value, str):
        value = read_moment(value)
    if not isinstance(value, datetime | None):  # SQLite stores any type in any column
        value = LATEST
    if value is None or value.tzinfo is not None:
        return value  # type: ignore[no-any-return]
    return value.replace(tzinfo=connection.timezone)  # type: ignore[no-any-return]


def read_moment(text: str) -> datetime:
    """Parse a time as a database wrote it; one outside Python's range becomes the nearest."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        before = text.startswith("-") or text.endswith("BC")
        return EARLIEST if before else LATEST


def as_timedelta(value: Any) -> timedelta | None:
    """Return a duration of a result row as a timedelta: SQLite gives microseconds."""
    return timedelta(microseconds=value) if isinstance(value, int) else value


def microseconds(value: timedelta) -> int:
    return value // _MICROSECOND


def _for_sqlite(value: Any, connection: BaseDatabaseWrapper) -> Any:
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    if isinstance(value, timedelta):
        return microseconds(value)
    if isinstance(value, list):  # read with json_each
        return json.dumps(value)
    return value


def _for_postgresql(value: Any) -> Any:
    """
    Format a list of numbers or tokens as PostgreSQL does: '{1,2,3}'.

    The driver would adapt each item by itself, which took a tenth of a batch's time.
    """
    if not isinstance(value, list) or not value:
        return value
    if isinstance(value[0], int | float) and None not in value:
        return "{" + ",".join(map(str, value)) + "}"
    if not isinstance(value[0], str):
        return value
    try:
        text = ",".join(value)
    except TypeError:
        return value  # some items are None
    # Only items that need no quotes and do not read NULL; the driver adapts everything else.
    is_bare = "".join(value).replace("-", "").isalnum() and all(value) and text.isascii()
    return "{" + text + "}" if is_bare and "null" not in text.lower() else value


def iso(value: datetime) -> str:
    """Format a time for a history entry, as PostgreSQL formats it."""
    return value.astimezone(UTC).isoformat()
