"""
A decision reads a bounded number of rows, however many there are.

Counted by PostgreSQL itself, or on SQLite in steps of its machine, ten for a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter import alerts
from deadletter.alerts import conditions, new_groups
from deadletter.models import AlertState, Queue
from deadletter.sql.planner import plan_by_index
from deadletter.testing import frozen_clock
from tests.plans.conftest import NOW, POISON, SERIES, adapted, fill, run

pytestmark = pytest.mark.slow

#: Of each kind: poison, messages that are due, and messages that are not.
MANY = 100_000
#: What counts stop at in these tests, so that the crowd is far above it.
COUNTED = 1_000
#: Rates and depth are counted that far; the rest is probes.
ROWS = 6 * COUNTED

RULES = {
    "new_group": True,
    "poison_rate": [{"above": 100, "within": 86_400}, {"above": 100, "queue": "q"}],
    "poison_depth": {"above": 1_000},
    "oldest_age": {"after": 60},
    "halted_stream": True,
    "worker_lost": True,
    "breaker_opened": True,
    "unserved_queue": True,
}


@pytest.fixture(params=["analysed", "never analysed"])
def crowd(request: Any, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poison in fifty groups, all of the last hour; a backlog that is due, and one that is not."""
    monkeypatch.setattr(new_groups, "COUNTED", COUNTED)
    monkeypatch.setattr(conditions, "COUNTED", COUNTED)
    queue, backlog = (Queue.objects.create(name=name) for name in ("q", "backlog"))
    fill(queue, at=NOW + timedelta(days=1), n=MANY)
    fill(backlog, at=NOW - timedelta(days=1), priority="n % 10".replace("%", "%%"), n=MANY)
    text = POISON.format(
        series=SERIES[connection.vendor],
        false="false" if connection.vendor == "postgresql" else "0",
    )
    with connection.cursor() as cursor:
        cursor.execute(text, {"n": MANY, "now": adapted(NOW)})
    if request.param == "analysed":
        run("ANALYZE")
    if connection.vendor == "postgresql":
        plan_by_index(connection)  # as every transaction of ours; here it is the test's


@contextmanager
def reading() -> Iterator[list[int]]:
    """Count the rows that are read of the large tables; -1 for a scan of one."""
    found: list[int] = []
    if connection.vendor == "postgresql":
        before = _statistics()
        yield found
        after = _statistics()
        found.append(sum(new - old for new, old in zip(after, before, strict=True)))
        return
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection.connection.set_progress_handler(count, 100)
    try:
        yield found
    finally:
        connection.connection.set_progress_handler(None, 0)
    found.append(steps // 10)


def _statistics() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE relname IN ('deadletter_message', 'deadletter_poison') ORDER BY relname"
        )
        return [value or 0 for row in cursor.fetchall() for value in row]


def test_a_decision_beside_a_crowd_reads_a_bounded_number_of_rows(crowd, rules):
    rules(**RULES)
    with frozen_clock(NOW) as clock:
        AlertState.objects.create(started_at=NOW - timedelta(days=2))
        clock.advance(20)

        with reading() as first:
            decision = alerts.decide()
        clock.advance(20)
        with reading() as second:
            again = alerts.decide()

    assert len(decision.raised) == 50 + 5
    assert again.raised == []
    # The first one also counts the twenty groups it tells about.
    assert first[0] < ROWS + 20 * 2 * COUNTED, f"read {first[0]} rows"
    assert second[0] < ROWS, f"read {second[0]} rows"


def test_a_decision_when_nothing_is_wrong_reads_next_to_nothing(crowd, rules):
    rules(
        **RULES
        | {
            "poison_rate": {"above": 100, "within": 5},
            "poison_depth": False,
            "oldest_age": {"after": 10**7},
            "unserved_queue": False,
        }
    )
    with frozen_clock(NOW) as clock:
        clock.advance(60)
        alerts.decide()
        clock.advance(20)
        with reading() as rows:
            decision = alerts.decide()

    assert decision.raised == []
    assert rows[0] < 3_000, f"read {rows[0]} rows"
