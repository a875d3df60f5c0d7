"""Planner settings for reads of large tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from ..lifecycle.transaction import configure

#: Plans of PostgreSQL that read far more than a limit asks for when the rows are not where the
#: planner expects them: 1,001 parked messages behind a million others.
_OTHER_PLANS = ("enable_seqscan", "enable_bitmapscan", "jit")


@contextmanager
def by_index(using: str) -> Iterator[None]:
    """
    Make every query of the block find its rows by an index, whatever the statistics say.

    The settings are local to a transaction on PostgreSQL; a caller's transaction gets its own back.
    SQLite has such plans anyway, and would take its write lock for a transaction.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        yield
        return
    nested = connection.in_atomic_block
    with transaction.atomic(using=using):
        before = configure(connection, dict.fromkeys(_OTHER_PLANS, "off"))
        yield
        if nested and before:
            configure(connection, before)
