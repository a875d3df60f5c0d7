"""A worker reads the schedules that are due, and the runs of those: not the 20,000 others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter.alerts import decide
from deadletter.models import Queue, Schedule, ScheduleRun
from deadletter.schedules import fire_due, seconds_until_due
from deadletter.testing import frozen_clock

from .conftest import NOW, forget_statistics, run

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

MANY, RUNS = 20_000, 40_000
TABLES = ("deadletter_schedule", "deadletter_schedule_run", "deadletter_message")


@pytest.fixture(params=["never analysed", "analysed"])
def crowd(request, db: None) -> None:
    """Schedules of which two are due, and as many runs of each of two."""
    forget_statistics()
    Queue.objects.get_or_create(name="default")
    later = NOW + timedelta(days=1)
    hour = timedelta(hours=1)
    rows = [
        Schedule(
            name=f"s{n}",
            target="m",
            interval=hour,
            created_at=NOW - hour,
            next_at=NOW if n < 2 else later,
            due_at=NOW if n < 2 else later,
            failing_since=NOW if n == 2 else None,
        )
        for n in range(MANY)
    ]
    Schedule.objects.bulk_create(rows, batch_size=2_000)
    first, other = Schedule.objects.filter(name__in=["s0", "s5"])
    ScheduleRun.objects.bulk_create(
        [
            ScheduleRun(
                schedule=other if n >= 100 else first,
                moment=NOW - n * hour,
                fired_at=NOW,
                outcome="sent",
                message_id=n + 10**9,
            )
            for n in range(1, RUNS)
        ],
        batch_size=5_000,
    )
    if request.param == "analysed":
        run("ANALYZE")


@pytest.fixture
def scans(crowd: None) -> Iterator[list[str]]:
    """Explain every SELECT of the ORM; collect those that scan a table from end to end."""
    found: list[str] = []

    def look(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        if text.startswith("SELECT") and any(f'"{table}"' in text for table in TABLES):
            is_sqlite = connection.vendor == "sqlite"
            with connection.cursor() as cursor:
                explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
                cursor.execute(explain + text, params)
                plan = [str(row[-1]) for row in cursor.fetchall()]
            for line in plan:
                scan = "SCAN deadletter_" if is_sqlite else "Seq Scan on deadletter_"
                if scan in line and "USING" not in line:
                    found.append(f"{line}: {text}")
        return execute(text, params, many, context)

    with frozen_clock(NOW), connection.execute_wrapper(look):
        yield found


def test_firing_reads_what_is_due(scans):
    assert seconds_until_due() == 0
    done = fire_due()

    assert (done.schedules, done.sent) == (2, 2)
    assert scans == []


def test_nothing_is_due_costs_one_probe(scans):
    Schedule.objects.filter(due_at=NOW).update(due_at=None)

    assert seconds_until_due() == timedelta(days=1).total_seconds()
    assert scans == []


def test_alerts_read_the_schedules_that_fail_and_are_late(scans, settings):
    rules = {"schedule_failed": True, "schedule_overdue": {"after": 60}}
    settings.DEADLETTER = {"ALERTS": {"rules": rules, "channels": {}}}
    Schedule.objects.filter(due_at=NOW).update(due_at=NOW - timedelta(minutes=2))

    assert decide().raised == ["schedule_failed:s2", "schedule_overdue:"]
    assert [text for text in scans if "deadletter_schedule" in text] == []
