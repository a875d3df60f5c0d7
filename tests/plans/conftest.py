"""Large tables, filled once a module, and a way to see what every statement reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection, transaction

from deadletter import sql
from deadletter.models import Queue
from deadletter.sql import prepared_statements

#: Of each kind: scheduled, poison, and (in its own queue) due; and parked in one stream.
MANY, PARKED = 100_000, 300_000
TABLES = ("deadletter_message", "deadletter_poison", "deadletter_task_result")
NOW = datetime(2030, 1, 1, tzinfo=UTC)

#: What the planner was told before the crowd came. A queue is empty most of the time, so what it
#: knows is pages that hold next to nothing: it may take the whole table for one row.
STATISTICS = {
    "never analysed": None,
    "analysed": None,
    "analysed when drained": 0,
    "analysed when nearly drained": 10,
}

#: Streams of two messages each, and of three that are held by their first.
STREAMS, HELD = 20_000, 100
SHAPES = ("many streams", "one long stream")
#: The same for a table of streams.
STREAM_STATISTICS = (
    "never analysed",
    "analysed",
    "analysed when drained",
    "analysed when all were leased",
)

SERIES = {
    "postgresql": "generate_series(1, %(n)s) AS g(n)",
    "sqlite": "(WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < %(n)s)"
    " SELECT n FROM g) AS g",
}
MESSAGES = """
    INSERT INTO deadletter_message (queue_id, name, kind, payload, stream, priority, status,
           attempts, fence, available_at, history, poison_count, created_at, failure_reason)
    SELECT %(queue)s, 'm', 'message', 'null', {stream}, {priority}, 1, 0, 0, %(at)s, '[]', 0,
           %(now)s, NULL
      FROM {series}
"""
POISON = """
    INSERT INTO deadletter_poison (message_id, queue, name, kind, payload, stream, priority, status,
           attempts, fence, reason, verdict, history, fingerprint, halts, poison_count,
           original_created_at, poisoned_at, poisoned_by)
    SELECT 1000000000 + n, 'q', 'm', 'message', 'null', 'dead' || (n %% 1000), 0, 1, 5, 5, 7, '',
           '[]', 'f' || (n %% 50), {false}, 1, %(now)s, %(now)s, 'w'
      FROM {series}
"""


def fill(
    queue: Queue,
    *,
    at: Any,
    stream: str | None = None,
    streams: int = 0,
    priority: str = "0",
    n: int = MANY,
) -> None:
    """Insert n messages: of no stream, of one, or in turn of as many as `streams` says."""
    # Numbered with six digits, so that the order of the streams is the order of their names.
    one_of_them = "%(stream)s || (100000 + n %% %(streams)s)"
    text = MESSAGES.format(
        series=SERIES[connection.vendor],
        priority=priority,
        stream=one_of_them if streams else "%(stream)s",
    )
    values = {"queue": queue.pk, "stream": stream, "at": at, "now": NOW, "n": n, "streams": streams}
    with connection.cursor() as cursor:
        cursor.execute(text, {key: adapted(value) for key, value in values.items()})


def adapted(value: Any) -> Any:
    is_time = isinstance(value, datetime) and connection.vendor == "sqlite"
    return connection.ops.adapt_datetimefield_value(value) if is_time else value


def forget_statistics() -> None:
    """Let SQLite know nothing: what was analysed, also in a test's transaction, stays in memory."""
    if connection.vendor != "sqlite":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'")
        if cursor.fetchone():
            cursor.execute("DELETE FROM sqlite_stat1")
        cursor.execute("ANALYZE sqlite_schema")


@pytest.fixture(scope="module", params=STATISTICS)
def crowd(request, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """
    Everything a claim must not read: scheduled at better priorities, parked behind one failed
    message, poison; and a second queue with a backlog that is due.
    """
    if connection.vendor == "sqlite" and request.param == "analysed when nearly drained":
        pytest.skip("sqlite: nobody analyses it but its owner, see the runbook")
    with django_db_blocker.unblock():
        forget_statistics()
        queue = Queue.objects.create(name="q", max_attempts=5)
        backlog = Queue.objects.create(name="backlog")
        if connection.vendor == "postgresql":
            run("ALTER TABLE deadletter_message SET (autovacuum_enabled = off)")
            run("ALTER TABLE deadletter_poison SET (autovacuum_enabled = off)")
            run("TRUNCATE deadletter_message, deadletter_poison RESTART IDENTITY")
        left = STATISTICS[request.param]
        if left is not None:
            fill(queue, at=NOW, n=5_000)
            run(f"DELETE FROM deadletter_message WHERE id > {left}")
            run("ANALYZE")
            run("DELETE FROM deadletter_message")
        with transaction.atomic():
            fill(queue, at=NOW + timedelta(days=1), priority="n % 5".replace("%", "%%"))
            fill(queue, at=NOW + timedelta(hours=1), stream="long", n=1)
            fill(queue, at=None, stream="long", n=PARKED)
            fill(backlog, at=NOW - timedelta(days=1))
            text = POISON.format(
                series=SERIES[connection.vendor],
                false="false" if connection.vendor == "postgresql" else "0",
            )
            with connection.cursor() as cursor:
                cursor.execute(text, {"n": MANY, "now": adapted(NOW)})
        if request.param == "analysed":
            run("ANALYZE")
        yield
        if connection.vendor == "postgresql":
            run("TRUNCATE deadletter_message, deadletter_poison RESTART IDENTITY")
            run("ALTER TABLE deadletter_message RESET (autovacuum_enabled)")
            run("ALTER TABLE deadletter_poison RESET (autovacuum_enabled)")
        else:
            run("DELETE FROM deadletter_message")
            run("DELETE FROM deadletter_poison")
            run("DELETE FROM sqlite_sequence WHERE name LIKE 'deadletter_%'")
        queue.delete()
        backlog.delete()
        forget_statistics()


@pytest.fixture(scope="module", params=product(STREAM_STATISTICS, SHAPES), ids=", ".join)
def streams(request, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """
    Nothing but streams, in one queue: many of two messages, and some held by one that waits; or
    one that is 99 % of the table, and some others. Gives the shape.
    """
    statistics, shape = request.param
    if connection.vendor == "sqlite" and statistics not in ("never analysed", "analysed"):
        pytest.skip("sqlite: nobody analyses it but its owner, see the runbook")
    with django_db_blocker.unblock():
        forget_statistics()
        queue = Queue.objects.create(name="q", max_attempts=5)
        if connection.vendor == "postgresql":
            run("ALTER TABLE deadletter_message SET (autovacuum_enabled = off)")
            run("TRUNCATE deadletter_message RESTART IDENTITY")
        if statistics == "analysed when drained":
            fill(queue, at=NOW, n=5_000)
            run("DELETE FROM deadletter_message")
            run("ANALYZE")
        elif statistics == "analysed when all were leased":
            fill(queue, at=NOW + timedelta(minutes=1), n=2_000, stream="big")
            run("UPDATE deadletter_message SET lease_token = 'x', worker = 'w'")
            run("ANALYZE")
            run("DELETE FROM deadletter_message")
        hour = timedelta(hours=1)
        with transaction.atomic():
            if shape == "many streams":
                fill(queue, at=NOW - hour, stream="s", streams=STREAMS, n=2 * STREAMS)
                fill(queue, at=NOW + hour, stream="held", streams=HELD, n=HELD)
                fill(queue, at=None, stream="held", streams=HELD, n=2 * HELD)
            else:
                fill(queue, at=NOW - hour, stream="big", n=2 * STREAMS)
                fill(queue, at=NOW - 2 * hour, stream="s", streams=HELD, n=2 * HELD)
        if statistics == "analysed":
            run("ANALYZE")
        yield shape
        if connection.vendor == "postgresql":
            run("TRUNCATE deadletter_message RESTART IDENTITY")
            run("ALTER TABLE deadletter_message RESET (autovacuum_enabled)")
        else:
            run("DELETE FROM deadletter_message")
            run("DELETE FROM sqlite_sequence WHERE name LIKE 'deadletter_%'")
        queue.delete()


def run(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


@dataclass
class Seen:
    """What the executions of one statement read of the large tables, the worst of each."""

    rows: int = 0
    buffers: int = 0
    #: Pairs of rows that a join looked at and that did not fit.
    mismatched: int = 0
    indexes: set[str] = field(default_factory=set)
    scans: list[str] = field(default_factory=list)


@pytest.fixture
def seen(crowd: None, db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Seen]]:
    """Explain every statement that runs from here on, inside the test's transaction."""
    with watched(monkeypatch) as found:
        yield found


@pytest.fixture
def seen_in_streams(
    streams: str, db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Seen]]:
    """The same in a table of streams, and with what the ORM reads of messages on PostgreSQL."""
    with watched(monkeypatch) as found, connection.execute_wrapper(look_at_orm(found)):
        yield found


def look_at_orm(found: dict[str, Seen]) -> Callable[..., Any]:
    def look(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        is_read = text.startswith("SELECT") and f'FROM "{TABLES[0]}"' in text
        if is_read and connection.vendor == "postgresql":
            look_at(text, params, found["a query of the ORM"])
        return execute(text, params, many, context)

    return look


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Seen]]:
    found: dict[str, Seen] = defaultdict(Seen)
    look = {"postgresql": look_postgresql, "sqlite": look_sqlite}[connection.vendor]
    execute: Callable[..., Any] = sql.run

    def explained(connection: Any, name: str, params: Any, **options: Any) -> Any:
        if connection.vendor == "postgresql":
            look(name, params, found[name])
            return execute(connection, name, params, **options)
        return look(name, params, found[name], execute)

    monkeypatch.setattr(sql, "run", explained)
    yield found


def look_postgresql(name: str, params: Any, into: Seen) -> None:
    for text in sql.statements("postgresql")[name]:
        look_at(text, params, into)
        if name in prepared_statements.NAMES:
            # Planned once, for whatever numbers come: as workers run it.
            statement = prepared_statements.prepared_statement(name, text)
            run(statement.prepare)
            look_at(statement.execute, params, into)
            run(f"DEALLOCATE {statement.name}")


def look_at(text: str, params: Any, into: Seen) -> None:
    point = connection.savepoint()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {text}", params)
        plan = cursor.fetchone()[0][0]["Plan"]
    connection.savepoint_rollback(point)
    into.buffers = max(into.buffers, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    nodes = list(walk(plan))
    read = mismatched = 0
    for node in nodes:
        mismatched += round(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"])
        if "Index Name" in node:
            into.indexes.add(node["Index Name"])
        if node.get("Relation Name") in TABLES and "Scan" in node["Node Type"]:
            each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            each += node.get("Rows Removed by Index Recheck", 0)
            read += round(each * node["Actual Loops"])
            if node["Node Type"] == "Seq Scan":
                into.scans.append(node["Relation Name"])
    into.rows = max(into.rows, read)
    into.mismatched = max(into.mismatched, mismatched)


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)


def look_sqlite(name: str, params: Any, into: Seen, execute: Callable[..., Any]) -> Any:
    """
    Read the plan, then count steps of SQLite's machine while it runs: a row costs some tens.
    """
    given = {key: sql._for_sqlite(value, connection) for key, value in params.items()}
    for text in sql.statements("sqlite")[name]:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {text}", given)
            for *_, detail in cursor.fetchall():
                # In the order of an index, a limit may end it; how far it went, the steps say.
                if detail in [f"SCAN {table}" for table in TABLES]:
                    into.scans.append(detail)
                if " INDEX " in detail:
                    into.indexes.add(detail.split(" INDEX ")[1].split(" ")[0])
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection.connection.set_progress_handler(count, 100)
    try:
        return execute(connection, name, params)
    finally:
        connection.connection.set_progress_handler(None, 0)
        into.rows = max(into.rows, steps // 10)


#: Rows a statement about 100 messages may read, and pages of 8 kB.
ROWS, PAGES = 4_000, 8_000
#: Pairs of rows of which it may find that they do not belong together: not each with each.
PAIRS = 300


def assert_bounded(seen: dict[str, Seen], *names: str, rows: int = ROWS) -> None:
    for name in names:
        assert name in seen, f"{name} did not run: {sorted(seen)}"
    wrong = []
    for name, what in seen.items():
        if what.scans:
            wrong.append(f"{name} scans {what.scans}")
        if what.rows > rows:
            wrong.append(f"{name} reads {what.rows} rows with {sorted(what.indexes)}")
        if what.mismatched > PAIRS:
            wrong.append(f"{name} compares {what.mismatched} pairs of rows in vain")
        if what.buffers > PAGES:
            wrong.append(f"{name} reads {what.buffers} pages")
    assert wrong == []
