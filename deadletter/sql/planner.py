"""
The settings that keep PostgreSQL's planner on the indexes.

Every statement of the queue finds its rows by an index and in the order of that index. Right after
a drained queue was analysed the planner takes a million messages for one, thinks every plan equally
cheap, and reads them all. So the other plans are switched off until the transaction ends. SQLite
has such plans anyway, and nothing is set there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

#: For the queue's own statements. jit: some versions add a huge cost for a switched-off plan that
#: they must take all the same, and would compile it. plan_cache_mode: with one plan left, a
#: prepared statement is planned once, not for the numbers of each batch.
INDEX_ONLY = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
#: For the queries of pages and reports, which may sort. The plans that are off read far more than a
#: limit asks for when the rows are not where the planner expects them: 1,001 parked messages behind
#: a million others.
NO_SCANS = dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "jit"), "off")

_SET_INDEX_ONLY = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', true)" for name, value in INDEX_ONLY.items()
)
#: Of libpq: no transaction is open; a result has rows.
_IDLE, _TUPLES = 0, 2


def plan_by_index(connection: BaseDatabaseWrapper, wait: float = math.inf) -> None:
    """
    Set INDEX_ONLY until the transaction of a PostgreSQL connection ends.

    No statement of the transaction waits longer than `wait` seconds for a lock.
    """
    statement = _SET_INDEX_ONLY if wait == math.inf else _by_index_within(wait)
    if not _begin_with(connection.connection, statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)


@contextmanager
def by_index(using: str, settings: Mapping[str, str] = NO_SCANS) -> Iterator[None]:
    """
    Make every query of the block find its rows by an index, whatever the statistics say.

    The block is a transaction on PostgreSQL. Inside a caller's transaction the caller's settings
    come back at the end. On SQLite no transaction is opened, because it would take the write lock.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        yield
        return
    nested = connection.in_atomic_block
    with transaction.atomic(using=using):
        before = configure(connection, settings)
        yield
        if nested and before:
            configure(connection, before)


def configure(connection: BaseDatabaseWrapper, values: Mapping[str, str]) -> dict[str, str]:
    """Change settings until the transaction ends; return those that were different before."""
    old = ", ".join("current_setting(%s)" for _ in values)
    new = ", ".join("set_config(%s, %s, true)" for _ in values)
    pairs = [text for pair in values.items() for text in pair]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {old}, {new}", [*values, *pairs])
        row = cursor.fetchone()
    before = dict(zip(values, row, strict=False))
    return {name: value for name, value in before.items() if value != values[name]}


def lock_timeout(wait: float) -> dict[str, str]:
    """Return the setting that ends a wait for a lock after so many seconds."""
    # 0 would mean no limit.
    return {"lock_timeout": str(max(1, round(wait * 1000)))}


@cache
def _by_index_within(wait: float) -> str:
    (timeout,) = lock_timeout(wait).values()
    return f"{_SET_INDEX_ONLY}, set_config('lock_timeout', '{timeout}', true)"


def _begin_with(raw: Any, statement: str) -> bool:
    """
    Send BEGIN and a statement in one piece; return whether that was done.

    The driver sends BEGIN by itself before the first statement, which takes a round trip of its
    own. Where anything is unusual it is left to the driver, errors included.
    """
    session = getattr(raw, "pgconn", None)
    if session is None or session.transaction_status != _IDLE:
        return False
    if (raw.isolation_level, raw.read_only, raw.deferrable) != (None, None, None):
        return False
    with suppress(Exception):
        if session.exec_(f"BEGIN; {statement}".encode()).status == _TUPLES:
            return True
        session.exec_(b"ROLLBACK")  # so that the driver meets the error, and not its consequences
    return False
