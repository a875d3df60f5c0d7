"""Counts of large tables that stop at a limit."""

from __future__ import annotations

from typing import Any

from django.db.models import IntegerField, QuerySet, Subquery

from ..sql.planner import by_index as by_index


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
