"""Health is judged by who lives, what waits and what died: by a few index reads, within a time."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections

from deadletter import operations, send
from deadletter.models import Breaker, Message, PoisonRecord, Queue, WorkerProcess
from deadletter.operations import deadline
from deadletter.operations.deadline import within
from tests.processes import wait_until
from tests.silence import silent_database

from .records import dead, many_dead

pytestmark = pytest.mark.django_db


@pytest.fixture
def worker(clock) -> Any:
    """Describe a live worker: `worker("w1", ["mail"], seen=40)` was seen 40 seconds ago."""

    def live(name: str = "w1", queues: tuple[str, ...] = ("default",), *, seen: float = 0) -> None:
        WorkerProcess.objects.create(
            name=name,
            host="h1",
            pid=1,
            version="1",
            queues=list(queues),
            concurrency=8,
            started_at=clock.now,
            seen_at=clock.now - timedelta(seconds=seen),
        )

    return live


def test_with_a_worker_and_nothing_to_do_all_is_well(worker) -> None:
    worker("w1")

    found = operations.health()

    assert found.ok
    assert (found.workers, found.queues, found.poison) == (["w1"], [], 0)


def test_open_breakers_and_halted_streams_are_warnings_unless_it_is_strict(worker, clock) -> None:
    worker("w1")
    for name, until in (("mail", 60), ("probed", -1)):
        Breaker.objects.create(
            name=name, failures=9, error="refused", opened_by="w1",
            opened_at=clock.now - timedelta(seconds=70), until=clock.now + timedelta(seconds=until),
        )  # fmt: skip
    operations.hold_breaker("bill")
    for number, stream in enumerate(["a", "a", "b", None]):
        record = dead("mail")
        PoisonRecord.objects.filter(pk=record.pk).update(
            stream=stream, halts=stream is not None, message_id=10_000 + number
        )
    warnings = [
        "circuit breaker open, its handler keeps failing: mail",
        "messages held by a person: bill",
        "2 stream(s) halted by poison records; see `manage.py deadletter streams`",
    ]

    found, strict = operations.health(), operations.health(strict=True)

    assert (found.ok, found.problems, found.warnings) == (True, [], warnings)
    assert [(one.name, one.state, one.open_for) for one in found.breakers] == [
        ("bill", "held", 0.0), ("mail", "open", 70.0),
    ]  # fmt: skip
    assert found.halted_streams == 2
    assert (strict.ok, strict.problems, strict.warnings) == (False, warnings, warnings)
    assert operations.health(worker="w1").warnings == []


def test_without_a_worker_it_is_not(clock) -> None:
    assert operations.health().problems == [
        "no worker was seen in the last 30 s; is `manage.py run_worker` running?"
    ]


def test_without_work_no_worker_may_be_needed(clock) -> None:
    assert operations.health(min_workers=0).ok

    send("mail")

    assert operations.health(min_workers=0).problems == [
        "queue default has messages due and no live worker serves it"
    ]


def test_a_worker_that_was_not_seen_lately_does_not_count(worker) -> None:
    worker("old", seen=31)
    worker("new", seen=30)

    assert operations.health().workers == ["new"]
    assert operations.health(max_age=31).workers == ["new", "old"]


def test_fewer_workers_than_wanted_are_a_problem(worker) -> None:
    worker("w1")
    worker("w2")

    assert operations.health(min_workers=2).ok
    assert operations.health(min_workers=3).problems == [
        "2 worker(s) seen in the last 30 s, fewer than 3"
    ]


def test_a_queue_with_work_needs_a_worker_of_its_own(worker) -> None:
    Queue.objects.create(name="mail")
    worker("w1", ("default",))
    send("mail", queue="mail")
    send("mail", queue="default")

    found = operations.health()

    assert found.problems == ["queue mail has messages due and no live worker serves it"]
    assert [(q.name, q.workers) for q in found.queues] == [("default", 1), ("mail", 0)]


def test_what_is_paused_dead_or_not_due_needs_nobody(worker) -> None:
    Queue.objects.create(name="paused", paused=True)
    Queue.objects.create(name="dead")
    Queue.objects.create(
        name="mail", on_poison="dead_queue", dead_queue=Queue.objects.get(name="dead")
    )
    worker("w1", ())
    send("mail", queue="paused")
    send("mail", queue="dead")
    send("mail", queue="mail", delay=60)

    assert operations.health(max_wait=1).ok


@pytest.mark.parametrize("priority", [0, 9])
def test_a_message_that_waits_too_long_is_a_problem(worker, clock, priority: int) -> None:
    worker("w1")
    send("old", priority=priority)
    clock.advance(61)
    WorkerProcess.objects.update(seen_at=clock.now)
    send("new", priority=5)

    assert operations.health(max_wait=61).ok
    found = operations.health(max_wait=60)

    assert found.problems == ["queue default: a message has been due for 61 s (more than 60)"]
    assert found.queues[0].waited == 61


def test_too_many_deaths_in_the_window_are_a_problem(worker, clock) -> None:
    dead()
    clock.advance(3_600)
    worker("w1")
    dead()
    dead()

    # The window ends an hour ago, exactly: the first has just left it.
    assert operations.health().poison == 2
    assert operations.health(max_poison=2).ok
    assert operations.health(max_poison=1).problems == [
        "more than 1 dead letters of the last 3600 s are there; see `manage.py deadletter list`"
    ]
    assert operations.health(max_poison=2, window=3_601).problems


@pytest.mark.slow
def test_deaths_are_counted_no_further_than_the_limit(worker, clock) -> None:
    many_dead(1_200, poisoned_at=clock.now)
    worker("w1")

    assert operations.health(max_poison=10).poison == 11
    assert operations.health().poison == 1_001
    with pytest.raises(ValueError, match="max_poison"):
        operations.health(max_poison=1_000_000)


def test_one_worker_is_judged_by_its_own_life_only(worker, clock) -> None:
    worker("w1/1", ())
    dead("bad")
    send("mail")

    assert operations.health(worker="w1", max_wait=1, max_poison=0).ok
    assert operations.health(host="h1").ok
    assert operations.health(worker="w2").problems == [
        "no worker called w2 was seen in the last 30 s; is `manage.py run_worker` running?"
    ]
    assert not operations.health(worker="w1/11").ok


def test_the_number_of_statements_does_not_depend_on_the_number_of_queues(
    worker, django_assert_num_queries
) -> None:
    worker("w1")
    for number in range(20):
        Queue.objects.create(name=f"q{number}")
        send("mail", queue=f"q{number}")

    with django_assert_num_queries(5):
        assert len(operations.health(max_wait=60).queues) == 20


def test_every_table_that_may_be_large_is_read_by_an_index(worker) -> None:
    """With the crowd of tests/plans this costs what it costs without."""
    worker("w1")
    for _ in range(3):
        send("mail")
    many_dead(10)
    statements: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL enable_seqscan = off")
            explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
            cursor.execute(f"{explain} {sql}", params)
            statements.extend(str(row[-1]) for row in cursor.fetchall())
        return execute(sql, params, many, context)

    wrapped = False

    def once(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal wrapped
        if wrapped or not sql.startswith(("SELECT", "WITH")):
            return execute(sql, params, many, context)
        wrapped = True
        try:
            return note(execute, sql, params, many, context)
        finally:
            wrapped = False

    with connection.execute_wrapper(once):
        operations.health(max_poison=5)

    plan = "\n".join(statements)
    assert plan.count("deadletter_claim") >= 2
    # By time, or by another index that begins with what is asked for.
    assert "poisoned_at >" in plan or "poisoned_at>" in plan
    plan = plan.replace("SCAN deadletter_poison USING INDEX deadletter_halted", "")  # a partial one
    for table in ("deadletter_message", "deadletter_poison"):
        assert f"SCAN {table}" not in plan
        assert f"Seq Scan on {table}" not in plan


def test_a_database_that_refuses_is_a_problem_and_no_error() -> None:
    with silent_database() as alias:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        connections.settings[alias]["PORT"] = str(port)
        found = operations.health(using=alias)

    assert not found.reachable
    [problem] = found.problems
    assert problem.startswith("the database 'silent' cannot be reached: ")


@pytest.mark.django_db(transaction=True)
def test_a_database_without_the_tables_is_not_taken_for_one_that_is_away() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE deadletter_worker RENAME TO elsewhere")
        try:
            found = operations.health(timeout=60)
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO deadletter_worker")

    [problem] = found.problems
    assert problem.startswith("the database 'default' refused (is it migrated?): ")


@pytest.mark.django_db(transaction=True)
def test_a_database_that_says_nothing_is_away_after_the_time_given() -> None:
    with silent_database() as alias:
        found = operations.health(using=alias, timeout=0.2)  # it never answers

    assert found.problems == ["the database 'silent' did not answer within 0.2 s"]
    assert not found.reachable


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_probes_of_a_silent_database_do_not_pile_up() -> None:
    def asking() -> int:
        return sum(thread.name == "deadletter-asks" for thread in threading.enumerate())

    with silent_database() as alias:
        for _ in range(8):
            assert not operations.health(using=alias, timeout=0.05).ok
        assert asking() == 4
    wait_until(lambda: not asking())

    # The places are free again.
    assert operations.health(min_workers=0, timeout=60).ok


@pytest.mark.django_db(transaction=True)
def test_within_a_time_the_same_is_found_on_a_connection_of_its_own() -> None:
    send("mail")

    found = operations.health(min_workers=0, timeout=60)

    assert found.problems == ["queue default has messages due and no live worker serves it"]
    assert found.reachable


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql_only(reason="SQLite has no server that could go on")
def test_the_server_does_not_go_on_for_ever_either() -> None:
    seen: list[str] = []

    def ask() -> None:
        with deadline_of(1.5), connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            seen.extend(cursor.fetchone())

    from deadletter.operations.health_checks import _limited

    def deadline_of(seconds: float) -> Any:
        return _limited("default", seconds)

    within(60, ask)
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        seen.extend(cursor.fetchone())

    assert seen == ["1500ms", "0"]


@pytest.mark.django_db(transaction=True)
def test_what_the_question_raises_is_raised_here_and_its_place_is_free() -> None:
    def ask() -> None:
        raise LookupError("no")

    for _ in range(6):
        with pytest.raises(LookupError, match="no"):
            within(60, ask)

    assert deadline._PLACES._value == 4  # type: ignore[attr-defined]


def test_inside_a_transaction_its_own_rows_are_seen(worker) -> None:
    worker("w1")
    send("mail")

    found = operations.health(timeout=60)

    assert [q.name for q in found.queues] == ["default"]
    assert (Message.objects.count(), PoisonRecord.objects.count()) == (1, 0)
