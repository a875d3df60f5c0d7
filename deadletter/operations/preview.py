"""What would an act touch? The confirmation shows it, and then exactly that is touched."""

from __future__ import annotations

from dataclasses import dataclass

from ..models import PoisonRecord
from .acting import alias_of
from .filters import PoisonFilter

#: Records shown as an example.
SAMPLE = 5


@dataclass(frozen=True, kw_only=True)
class Preview:
    """`wanted` is the filter as of now: what dies later does not match it."""

    wanted: PoisonFilter
    count: int
    #: The first of them, without their payloads.
    sample: list[PoisonRecord]
    #: How many of them halt a stream, which would go on.
    halting: int


def preview(wanted: PoisonFilter, *, limit: int | None = None, using: str | None = None) -> Preview:
    """Count what matches (with `limit`, the first so many) and show the first of it."""
    alias = alias_of(using)
    fixed = wanted if wanted.up_to is not None else wanted.fixed(alias)
    rows = fixed.records(alias)
    halting = rows.halting().order_by().values("pk")
    return Preview(
        wanted=fixed,
        count=rows.order_by().values("pk")[:limit].count(),
        sample=list(rows[: SAMPLE if limit is None else min(limit, SAMPLE)]),
        halting=min(halting[:limit].count(), limit or 2**63),
    )
