"""The releases of the application that workers ran, and when."""

from __future__ import annotations

from datetime import datetime

from ..models import ApplicationRelease


def note_release(name: str, now: datetime, *, using: str) -> None:
    """Record that a worker runs a release now; the first one that does creates its row."""
    rows = ApplicationRelease.objects.using(using)
    if not rows.filter(name=name).update(last_seen_at=now):
        rows.bulk_create(
            [ApplicationRelease(name=name, first_seen_at=now, last_seen_at=now)],
            ignore_conflicts=True,
        )
