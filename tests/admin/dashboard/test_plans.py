"""The dashboard reads a bounded number of rows, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter import clock as database_clock
from deadletter import operations
from deadletter.models import Queue, Schedule

pytestmark = pytest.mark.slow

#: Of each kind: due, scheduled, failed, parked, dead.
MANY = 60_000
#: Rows one statement of a page may read. On the dashboard one statement counts seven times up to
#: 1,001; where more wait, 10,001 of them are told apart, of a queue in a list and on its page.
PAGES = {
    "": 20_000,
    "queue/": 12_000,
    "queue/{queue}/change/": 12_000,
    "message/?attempts=10-": 12_000,
    # The newest 5,001 messages and the oldest.
    "message/?name=m": 12_000,
    "message/?name=rare": 12_000,
    # Filters without an index search the newest 5,000, of a name too, however rare it is.
    "result/": 12_000,
    "result/?name=common": 12_000,
    "result/?name=rare": 12_000,
    "result/?outcome=removed": 12_000,
    "result/?outcome=successful&queue=default&name=rare": 12_000,
    "result/?q=rare": 12_000,
    # What a breaker holds is counted among the oldest 10,001 messages.
    "breaker/": 12_000,
    "schedule/": 12_000,
    "schedule/calendar/": 12_000,
    "schedule/{schedule}/change/": 12_000,
}
#: Steps of SQLite's machine for a whole page: some tens a row.
STEPS = 6_000_000

SERIES = {
    "postgresql": "generate_series(1, %(n)s) AS g(n)",
    "sqlite": "(WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < %(n)s)"
    " SELECT n FROM g) AS g",
}
MESSAGES = """
    INSERT INTO deadletter_message (queue_id, name, kind, payload, stream, priority, status,
           attempts, fence, available_at, history, poison_count, created_at)
    SELECT %(queue)s, 'm', 'message', 'null', {stream}, n %% 3, %(status)s, n %% 4, 0, %(at)s,
           '[]', 0, %(now)s
      FROM {series}
"""
POISON = """
    INSERT INTO deadletter_poison (message_id, queue, name, kind, payload, stream, priority, status,
           attempts, fence, reason, verdict, history, fingerprint, halts, poison_count,
           original_created_at, poisoned_at, poisoned_by)
    SELECT 1000000000 + n, 'default', 'm', 'message', 'null', 'dead' || n, 0, 1, 5, 5, 7, '', '[]',
           'f' || (n %% 50), {halts}, 1, %(at)s, %(at)s, 'w'
      FROM {series}
"""


RESULTS = """
    INSERT INTO deadletter_task_result (message_id, queue, name, kind, outcome, payload, priority,
           created_at, finished_at)
    SELECT n, 'default', CASE n %% 5 WHEN 0 THEN 'rare' ELSE 'common' END, 'task',
           CASE n WHEN 1 THEN 'removed' ELSE 'successful' END, '{{}}', 0, %(at)s,
           {finished}
      FROM {series}
"""
SCHEDULES = """
    INSERT INTO deadletter_schedule (name, kind, target, queue, cron, interval, time_zone, jitter,
           overlap, missed, grace, paused, declaration, created_at, next_at, due_at, run_count,
           last_outcome, last_error)
    SELECT 's' || n, 'message', 'm', '', '0 3 * * *', NULL, 'UTC', %(none)s, 'skip', 'once',
           %(none)s, {paused}, '', %(now)s, %(at)s, %(at)s, 0, '', ''
      FROM {series}
"""
#: Each ended at a time of its own: results of one transaction have the same time, and are few.
FINISHED = {
    "postgresql": "%(at)s - n * interval '1 second'",
    "sqlite": "datetime(%(at)s, '-' || n || ' seconds')",
}


@pytest.fixture
def crowd(db: None) -> None:
    now = database_clock.now("default")
    queue = Queue.objects.get(name="default")
    series = SERIES[connection.vendor]
    for at, status, stream in (
        (now - timedelta(hours=1), 1, "NULL"),
        (now + timedelta(days=1), 1, "NULL"),
        (now + timedelta(days=1), 32769, "NULL"),
        (None, 1, "'s' || (n %% 1000)"),
    ):
        values = {"queue": queue.pk, "at": at, "status": status, "now": now, "n": MANY}
        run(MESSAGES.format(series=series, stream=stream), **values)
    run(POISON.format(series=series, halts="n %% 10 = 0"), at=now - timedelta(minutes=5), n=MANY)
    run(RESULTS.format(series=series, finished=FINISHED[connection.vendor]), at=now, n=MANY)
    none, paused = ("0 seconds", "false") if connection.vendor == "postgresql" else (0, 0)
    ahead = now + timedelta(hours=3)
    text = SCHEDULES.format(series=series, paused=paused)
    run(text, at=ahead, now=now, none=none, n=MANY)
    operations.hold_breaker("m", by="ada")
    run("ANALYZE")


def run(text: str, **values: Any) -> None:
    adapt = connection.ops.adapt_datetimefield_value
    given = {
        key: adapt(value) if hasattr(value, "tzinfo") and connection.vendor == "sqlite" else value
        for key, value in values.items()
    }
    with connection.cursor() as cursor:
        cursor.execute(text, given or None)


@pytest.mark.postgresql_only(reason="SQLite does not tell how many rows a statement read")
@pytest.mark.parametrize("page", PAGES)
def test_no_statement_reads_a_crowd(admin_client, crowd, page: str) -> None:
    reads: dict[str, int] = {}

    def explained(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        """Ask for the plan at the moment the page asks, with whatever it told the planner."""
        streamed = getattr(context["cursor"].cursor, "name", "")  # choices of a form, few
        if "deadletter_" in text and text.startswith(("SELECT", "WITH")) and not streamed:
            explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {text}"
            execute(explain, params, many, context)
            reads[text[:300]] = rows_read(context["cursor"].fetchone()[0][0]["Plan"])
        return execute(text, params, many, context)

    with connection.execute_wrapper(explained):
        assert admin_client.get(address(page)).status_code == 200

    assert reads
    assert {text: n for text, n in reads.items() if n > PAGES[page]} == {}


@pytest.mark.sqlite_only(reason="PostgreSQL counts rows")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_takes_a_bounded_number_of_steps(admin_client, crowd, page: str) -> None:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection.connection.set_progress_handler(count, 100)
    try:
        assert admin_client.get(address(page)).status_code == 200
    finally:
        connection.connection.set_progress_handler(None, 0)

    assert 0 < steps < STEPS


def address(page: str) -> str:
    queue, schedule = Queue.objects.get(name="default"), Schedule.objects.get(name="s1")
    return "/admin/deadletter/" + page.format(queue=queue.pk, schedule=schedule.pk)


def rows_read(plan: dict[str, Any]) -> int:
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in walk(plan)
        if "Scan" in node["Node Type"] and "Relation Name" in node
    )


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)
