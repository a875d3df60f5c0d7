"""How does a look at large tables stay cheap? It stops at a limit, and goes by an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.models import IntegerField, QuerySet, Subquery

from ..lifecycle.transaction import configure

#: Ways of PostgreSQL's planner that read far more than a limit asks for, when what is looked for
#: is not where it expects it: 1,001 parked messages behind a million others.
_OTHER_WAYS = ("enable_seqscan", "enable_bitmapscan", "jit")


class CountUpTo(Subquery):
    """
    The number of rows of a correlated subquery, at most `limit` + 1 of them.

    `where` narrows what is counted, not what is looked at: `CountUpTo(rows.values("doing"), 1000,
    doing=2)` looks at 1,001 rows and counts those that do 2.
    """

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted%(where)s)"
    output_field = IntegerField()

    def __init__(self, rows: QuerySet[Any, Any], limit: int, **where: int) -> None:
        tests = " AND ".join(f'counted."{name}" = {int(value)}' for name, value in where.items())
        super().__init__(
            rows.order_by()[: limit + 1],
            output_field=IntegerField(),
            where=f" WHERE {tests}" if tests else "",
        )


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
