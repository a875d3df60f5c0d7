"""What is old enough to be forgotten?"""

from __future__ import annotations

from datetime import timedelta

from .. import clock
from ..durations import Duration, as_timedelta
from ..models import Act
from .acting import alias_of
from .bulk import Progress, Total, remove_matching
from .filters import PoisonFilter


def purge(
    older_than: Duration,
    *,
    queue: str | None = None,
    by: str | None = None,
    why: str = "",
    limit: int | None = None,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """Remove poison that died longer ago than this, for good; streams it halted go on."""
    return purge_matching(
        old(older_than, queue=queue, using=using),
        by=by,
        why=why,
        limit=limit,
        progress=progress,
        using=using,
    )


def purge_matching(
    wanted: PoisonFilter,
    *,
    by: str | None = None,
    why: str = "",
    limit: int | None = None,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """Do what `purge` does to a filter that `old` made and somebody has looked at since."""
    return remove_matching(
        wanted, by=by, why=why, limit=limit, progress=progress, act=Act.PURGE, using=using
    )


def old(
    older_than: Duration, *, queue: str | None = None, using: str | None = None
) -> PoisonFilter:
    """Return the filter of what `purge` would remove."""
    age: timedelta = as_timedelta(older_than, field="older_than")
    return PoisonFilter(queue=queue, until=clock.now(alias_of(using)) - age)
