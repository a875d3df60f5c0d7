"""Failure groups as the engine leaves them, for tests of what people do with them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from deadletter.models import (
    ApplicationRelease,
    FailureGroup,
    GroupHour,
    GroupTag,
    MessageTag,
    PoisonRecord,
    WorkerProcess,
)
from deadletter.status import FailureReason


def group(fingerprint: str, clock: Any, *, age: float = 3_600, **fields: Any) -> FailureGroup:
    """A group whose last failure is now and whose first was `age` seconds ago."""
    now: datetime = fields.pop("now", clock.now)
    given: dict[str, Any] = {
        "name": "orders.ship",
        "queue": "default",
        "exception": "shop.errors.Full",
        "frame": "shop/orders.py:ship",
        "reason": FailureReason.HANDLER_EXCEPTION,
        "error": "the warehouse is full",
        "failures": 4,
        "deaths": 1,
        "first_failed_at": now - timedelta(seconds=age),
        "last_failed_at": now,
        "first_died_at": now,
        "last_died_at": now,
        "state_at": now - timedelta(seconds=age),
    }
    return FailureGroup.objects.create(fingerprint=fingerprint, **given | fields)


def hour(fingerprint: str, at: datetime, release: str = "", *, failures: int = 1, deaths: int = 0):
    start = at.replace(minute=0, second=0, microsecond=0)
    return GroupHour.objects.create(
        fingerprint=fingerprint, at=start, release=release, failures=failures, deaths=deaths
    )


def record(fingerprint: str, clock: Any, message_id: int, **fields: Any) -> PoisonRecord:
    given: dict[str, Any] = {
        "queue": "default",
        "name": "orders.ship",
        "payload": {},
        "attempts": 3,
        "reason": FailureReason.POISON_MESSAGE,
        "verdict": "3 attempts",
        "exception": "shop.errors.Full",
        "original_created_at": clock.now,
        "poisoned_at": clock.now,
        "poisoned_by": "w1",
    }
    return PoisonRecord.objects.create(
        fingerprint=fingerprint, message_id=message_id, **given | fields
    )


def tag(fingerprint: str, clock: Any, key: str, value: str, failures: int = 1) -> GroupTag:
    return GroupTag.objects.create(
        fingerprint=fingerprint, key=key, value=value, failures=failures, last_at=clock.now
    )


def message_tag(message_id: int, clock: Any, key: str, value: str) -> MessageTag:
    return MessageTag.objects.create(message_id=message_id, key=key, value=value, at=clock.now)


def release(name: str, clock: Any, *, age: float = 0) -> ApplicationRelease:
    first = clock.now - timedelta(seconds=age)
    return ApplicationRelease.objects.create(name=name, first_seen_at=first, last_seen_at=clock.now)


def worker(name: str, clock: Any, **fields: Any) -> WorkerProcess:
    given: dict[str, Any] = {
        "host": "h",
        "pid": 1,
        "version": "1",
        "concurrency": 1,
        "queues": ["*"],
        "handlers": [["message", "orders.ship"]],
        "started_at": clock.now,
        "seen_at": clock.now,
    }
    return WorkerProcess.objects.create(name=name, **given | fields)
