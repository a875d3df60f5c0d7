"""Planner settings for reads of large tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from ..lifecycle.transaction import configure

#: Ways of PostgreSQL's planner that read far more than a limit asks for, when what is looked for
#: is not where it expects it: 1,001 parked messages behind a million others.
_OTHER_WAYS = ("enable_seqscan", "enable_bitmapscan", "jit")


@contextmanager
def by_index(using: str) -> Iterator[None]:
    """
    Let every statement inside find its rows by an index, whatever the statistics say.

    Local to a transaction on PostgreSQL; a caller's own goes on as it was. SQLite, which would take
    its write lock for a transaction, has such plans anyway.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        yield
        return
    nested = connection.in_atomic_block
    with transaction.atomic(using=using):
        before = configure(connection, dict.fromkeys(_OTHER_WAYS, "off"))
        yield
        if nested and before:
            configure(connection, before)
