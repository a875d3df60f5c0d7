from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from deadletter import operations
from deadletter.models import Schedule
from deadletter.schedules import fire_due
from tests.worker.conftest import server, site  # noqa: F401 - fixtures

#: A Monday.
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(clock) -> None:
    clock.set(NOON)


@pytest.fixture
def make(clock) -> Callable[..., Schedule]:
    """Create a schedule that sends "report", each hour unless the options say otherwise."""

    def create(name: str = "hourly", **options: Any) -> Schedule:
        given = {"message": "report", "time_zone": "UTC", **options}
        if not {"cron", "interval", "at"} & given.keys():
            given["cron"] = "0 * * * *"
        if "task" in given:
            del given["message"]
        return operations.create_schedule(name, **given)

    return create


@pytest.fixture
def fire_at(clock) -> Callable[[datetime], int]:
    """Set the clock and fire what is due; return the number of messages."""

    def fire(at: datetime) -> int:
        clock.set(at)
        return fire_due().sent

    return fire
