"""
Queues that hold nothing cost nothing: a claim reads what exists, not every queue times every level.

Bounds are on the pages that PostgreSQL reads, of all tables, and on the steps of SQLite's machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter import Outgoing, send, send_many, sql
from deadletter.lifecycle import ClaimRequest, claim, process_batch
from deadletter.models import Message, Queue
from deadletter.sql import prepared_statements
from deadletter.sql.planner import plan_by_index
from deadletter.testing import frozen_clock

from .conftest import NOW, run

pytestmark = [pytest.mark.slow, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def time():
    with frozen_clock(NOW) as clock:
        if connection.vendor == "postgresql":
            # As every transaction of the queue does; here they are all inside the test's own.
            plan_by_index(connection)
        yield clock


def make_queues(n: int) -> list[Queue]:
    made = Queue.objects.bulk_create([Queue(name=f"q{i:05}") for i in range(n)])
    run("ANALYZE")
    return made


def fill_each(queues: list[Queue], **columns: Any) -> None:
    Message.objects.bulk_create(
        [Message(queue=queue, name="m", created_at=NOW, **columns) for queue in queues]
    )
    run("ANALYZE")


@dataclass
class Cost:
    statements: int = 0
    #: Pages on PostgreSQL, hundreds of steps on SQLite.
    work: int = 0


@contextmanager
def costs() -> Iterator[Cost]:
    """Add up what every statement reads, those of the ORM as well."""
    cost = Cost()
    if connection.vendor == "sqlite":

        def count() -> int:
            cost.work += 1
            return 0

        def counted(execute: Any, text: str, *given: Any) -> Any:
            cost.statements += text.startswith(("SELECT", "WITH", "UPDATE"))
            return execute(text, *given)

        connection.connection.set_progress_handler(count, 100)
        try:
            with connection.execute_wrapper(counted):
                yield cost
        finally:
            connection.connection.set_progress_handler(None, 0)
        return
    inside = False

    def explained(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal inside
        # Inside the test's transaction a claim also sets the planner, and sets it back.
        if inside or "set_config" in text or not text.lstrip().startswith(("SELECT", "WITH")):
            return execute(text, params, many, context)
        inside = True
        try:
            with connection.cursor() as cursor:
                cursor.execute("SAVEPOINT look")
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", params)
                plan = cursor.fetchone()[0][0]["Plan"]
                cursor.execute("ROLLBACK TO SAVEPOINT look")
            cost.statements += 1
            cost.work += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            return execute(text, params, many, context)
        finally:
            inside = False

    with connection.execute_wrapper(explained):
        yield cost


def idle_cost(names: list[str] | None) -> Cost:
    assert claim(names).ids == []  # whatever is done once for a connection is done
    with costs() as cost:
        assert claim(names).ids == []
    return cost


@pytest.mark.parametrize("named", [False, True], ids=["all queues", "by name"])
def test_an_idle_claim_with_1_000_queues_costs_what_it_costs_with_one(named):
    names = ["default"] if named else None
    one = idle_cost(names)

    queues = make_queues(1_000)
    thousand = idle_cost([queue.name for queue in queues] if named else None)

    assert thousand.statements == one.statements == 1
    assert thousand.work <= max(2 * one.work, 10)


def test_an_idle_claim_beside_201_levels_of_the_future_probes_each_once():
    ids = send_many([Outgoing("m", priority=p, delay=60) for p in range(-100, 101)] * 5)
    run("ANALYZE")

    cost = idle_cost(["default"])

    assert Message.objects.filter(id__in=ids).count() == 1_005
    assert cost.statements == 1
    assert cost.work <= {"postgresql": 6 * 201, "sqlite": 201}[connection.vendor]


@pytest.mark.slow
def test_1_000_queues_that_hold_only_the_future_are_probed_once_and_then_not_at_all():
    fill_each(make_queues(1_000), available_at=NOW + timedelta(hours=1))

    cost = idle_cost(None)
    found = process_batch(worker="w", claim=ClaimRequest()).levels
    with costs() as again:
        batch = process_batch(worker="w", claim=ClaimRequest(levels=found, rediscover=False))

    assert cost.statements == 1
    assert cost.work <= {"postgresql": 10 * 1_000, "sqlite": 1_500}[connection.vendor]
    assert batch.ids == []
    assert (again.statements, again.work) == (0, 0)


@pytest.mark.slow
def test_the_future_of_other_queues_is_not_read_by_who_asks_for_one():
    one = idle_cost(["default"])
    fill_each(make_queues(1_000), available_at=NOW + timedelta(hours=1))

    cost = idle_cost(["default"])

    assert cost.work <= max(2 * one.work, 20)


def test_a_message_beside_1_000_idle_queues_costs_what_it_costs_alone():
    def cost_of_one() -> Cost:
        claim()
        message = send("m")
        with costs() as cost:
            assert claim().ids == [message.id]
        return cost

    alone = cost_of_one()
    make_queues(1_000)
    beside = cost_of_one()

    assert beside.statements == alone.statements
    assert beside.work <= 2 * alone.work + 20


@pytest.mark.slow
def test_1_000_queues_with_a_message_each_are_claimed_in_order():
    queues = make_queues(1_000)
    fill_each(queues, available_at=NOW)

    with costs() as cost:
        batch = claim(limit=300)

    assert [message.queue for message in batch] == [queue.name for queue in queues[:300]]
    assert cost.work <= {"postgresql": 60_000, "sqlite": 12_000}[connection.vendor]


@pytest.mark.postgresql_only(reason="SQLite keeps its statements by itself")
def test_the_statements_of_an_idle_claim_are_kept_planned():
    assert {"claim", "read_levels", "read_levels_of"} <= prepared_statements.NAMES.keys()


@pytest.mark.slow
def test_the_levels_are_found_by_the_claim_index():
    """Also where the planner takes a full table for an empty one."""
    run("ANALYZE")
    fill = [Outgoing("m", priority=n % 3, delay=60) for n in range(2_000)]
    send_many(fill)

    cost = idle_cost(None)

    assert cost.statements == 1
    assert cost.work <= 40
    texts = sql.statements(connection.vendor)
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    for name in ("read_levels", "read_levels_of"):
        with connection.cursor() as cursor:
            params = {"now": NOW, "within": timedelta(seconds=1), "queues": ["default"]}
            if connection.vendor == "sqlite":
                params = {key: sql._for_sqlite(value, connection) for key, value in params.items()}
            cursor.execute(f"{explain} {texts[name][0]}", params)
            plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
        assert "deadletter_claim" in plan
        assert "Seq Scan on deadletter_message" not in plan
        assert "SCAN deadletter_message\n" not in plan
