"""Rows of the counters, as a worker would have written them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from deadletter.models import NO_REASON, Count, Span

START = datetime(2026, 3, 1, tzinfo=UTC)


def counted(name: str = "job", *, minute: int = 0, reason: int = NO_REASON, **values: Any) -> Count:
    fields = {"queue": "default", "kind": "message", "writer": "", "span": Span.MINUTE, **values}
    return Count.objects.create(
        at=START + timedelta(minutes=minute), name=name, reason=reason, **fields
    )
