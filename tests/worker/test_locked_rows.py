"""Another transaction holds a row or a stream: a real worker lets only that wait."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any

import pytest
from django.db import connection, transaction

from deadletter import operations, send
from deadletter.models import Message, Queue
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from tests.processes import Workers, wait_until

pytestmark = [
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]

#: Seconds; every wait ends at its event, long before.
LONG = 90.0
UNRELATED = 20

Holder = Callable[[Callable[[], Any]], AbstractContextManager[None]]


@contextmanager
def holding(act: Callable[[], Any]) -> Iterator[None]:
    """Keep a transaction open in which `act` was done, on a connection of its own."""
    done, end = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def hold() -> None:
        try:
            with transaction.atomic():
                act()
                done.set()
                end.wait(LONG)
        except BaseException as error:  # noqa: BLE001 - raised by the test
            problems.append(error)
        finally:
            done.set()
            connection.close()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert done.wait(LONG)
    try:
        assert not problems, problems
        yield
    finally:
        end.set()
        thread.join(LONG)
    assert not problems, problems


def locked_row(id: int) -> Callable[[], Any]:
    return lambda: Message.objects.select_for_update().get(pk=id)


def locked_stream(stream: str) -> Callable[[], Any]:
    def lock() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, id)) FROM deadletter_queue"
                " WHERE name = 'default'",
                [stream],
            )

    return lock


def starts(workers: Workers) -> Counter[int]:
    return Counter(line["id"] for line in workers.journal("start"))


def wait_gone(workers: Workers, ids: list[int]) -> None:
    """Wait until messages are completed, while the lock is held."""
    wait_until(
        lambda: not Message.objects.filter(pk__in=ids).exists(),
        patience=LONG,
        why=lambda: workers.report(f"left: {Message.objects.filter(pk__in=ids).count()}"),
    )


def wait_renewed(id: int) -> None:
    before = Message.objects.get(pk=id).available_at
    wait_until(lambda: Message.objects.get(pk=id).available_at > before, patience=LONG)


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_a_locked_row_holds_up_nobody_else(workers, processes):
    held = send("sample.work", {"gate": "held"})
    neighbours = [send("sample.work", {"gate": "held"}).id for _ in range(3)]
    worker = workers.start("--lease", 60, "--concurrency", 8, "--processes", processes)
    workers.wait_for("start", count=4)

    with holding(locked_row(held.id)):
        workers.open("held")
        wait_gone(workers, neighbours)
        unrelated = [send("sample.work").id for _ in range(UNRELATED)]
        wait_gone(workers, unrelated)
        assert Message.objects.filter(pk=held.id).exists()
    wait_gone(workers, [held.id])

    assert worker.stop() == 0
    assert set(starts(workers).values()) == {1}
    assert len(starts(workers)) == 4 + UNRELATED
    assert worker.lines("database_away") == []


@pytest.mark.process
def test_a_locked_stream_holds_up_its_own_messages_only(workers):
    first = send("sample.work", {"gate": "held"}, stream="s")
    second = send("sample.work", {}, stream="s")
    other = send("sample.work", {"gate": "held"}, stream="other")
    worker = workers.start("--lease", 3, "--concurrency", 8)
    workers.wait_for("start", count=2)

    with holding(locked_stream("s")):
        workers.open("held")
        wait_gone(workers, [other.id])
        unrelated = [send("sample.work", stream=f"u{n}").id for n in range(UNRELATED)]
        wait_gone(workers, unrelated)
        # Its row is free, so its lease is renewed for as long as the stream is held.
        wait_renewed(first.id)
    wait_gone(workers, [first.id, second.id])

    assert worker.stop() == 0
    assert set(starts(workers).values()) == {1}


@pytest.mark.process
def test_a_locked_parked_row_holds_up_the_stream_it_is_in(workers):
    first = send("sample.work", {"gate": "held"}, stream="s")
    worker = workers.start("--lease", 60, "--concurrency", 8)
    workers.wait_for("start", count=1)
    parked = send("sample.work", {}, stream="s")
    wait_until(lambda: Message.objects.get(pk=parked.id).available_at is None, patience=LONG)
    other = send("sample.work", {"gate": "held"}, stream="other")
    workers.wait_for("start", count=2)

    with holding(locked_row(parked.id)):
        workers.open("held")
        wait_gone(workers, [other.id])
        wait_gone(workers, [send("sample.work").id for _ in range(UNRELATED)])
        assert Message.objects.filter(pk__in=[first.id, parked.id]).count() == 2
    wait_gone(workers, [first.id, parked.id])

    assert worker.stop() == 0
    assert set(starts(workers).values()) == {1}


@pytest.mark.process
@pytest.mark.parametrize("verb", ["refused", "done"])
def test_an_operators_verb_in_an_open_transaction_holds_up_nobody_else(workers, verb):
    first = send("sample.work", {"gate": "held"}, stream="s")
    worker = workers.start("--lease", 60, "--concurrency", 8)
    workers.wait_for("start", count=1)
    parked = send("sample.work", {}, stream="s")
    wait_until(lambda: Message.objects.get(pk=parked.id).available_at is None, patience=LONG)
    other = send("sample.work", {"gate": "held"}, stream="other")
    workers.wait_for("start", count=2)

    def act() -> None:
        if verb == "refused":
            assert operations.release([first.id]).refused  # it is active
        else:
            assert operations.release([parked.id]).done == [parked.id]

    with holding(act):
        workers.open("held")
        wait_gone(workers, [other.id])
        if verb == "refused":
            # A refused verb keeps nothing: even its own stream goes on.
            wait_gone(workers, [first.id, parked.id])
        wait_gone(workers, [send("sample.work").id for _ in range(UNRELATED)])
    wait_gone(workers, [first.id, parked.id])

    assert worker.stop() == 0
    assert set(starts(workers).values()) == {1}


@pytest.mark.process
def test_handlers_of_other_messages_keep_their_leases_while_a_row_is_locked(workers):
    held = send("sample.work", {"gate": "held"})
    long = send("sample.work", {"gate": "long"})
    worker = workers.start("--lease", 2, "--concurrency", 8)
    workers.wait_for("start", count=2)

    with holding(locked_row(held.id)):
        for _ in range(3):
            wait_renewed(long.id)
    workers.open("held")
    workers.open("long")
    wait_gone(workers, [held.id, long.id])

    assert worker.stop() == 0
    # The one whose own row was locked beyond its lease may run twice; the other may not.
    assert starts(workers)[long.id] == 1


@pytest.mark.process
def test_a_lock_timeout_of_the_role_changes_nothing(workers):
    with connection.cursor() as cursor:
        cursor.execute("ALTER ROLE CURRENT_USER SET lock_timeout = '50ms'")
    try:
        held = send("sample.work", {"gate": "held"}, stream="s")
        neighbour = send("sample.work", {"gate": "held"})
        worker = workers.start("--lease", 60, "--concurrency", 8)
        workers.wait_for("start", count=2)

        with holding(locked_row(held.id)):
            workers.open("held")
            wait_gone(workers, [neighbour.id])
            wait_gone(workers, [send("sample.work").id for _ in range(UNRELATED)])
        wait_gone(workers, [held.id])

        assert worker.stop() == 0
        assert set(starts(workers).values()) == {1}
        assert worker.lines("database_away") == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER ROLE CURRENT_USER RESET lock_timeout")


@pytest.mark.process
def test_a_drain_waits_for_what_it_could_not_settle(workers):
    held = send("sample.work", {"gate": "held"})
    worker = workers.start("--drain", "--lease", 60, "--concurrency", 8)
    workers.wait_for("start", count=1)

    with holding(locked_row(held.id)):
        workers.open("held")
        wait_gone(workers, [send("sample.work").id for _ in range(UNRELATED)])
        worker.wait_for("reports_postponed")
        assert worker.process.poll() is None
    assert worker.wait(LONG) == 0

    assert not Message.objects.exists()
    assert set(starts(workers).values()) == {1}


@pytest.mark.process
def test_a_stopped_worker_leaves_what_it_cannot_settle_to_the_lease(workers):
    held = send("sample.work", {"gate": "held"})
    worker = workers.start("--lease", 60, "--grace", 1, "--concurrency", 8)
    workers.wait_for("start", count=1)

    with holding(locked_row(held.id)):
        workers.open("held")
        worker.wait_for("reports_postponed")
        assert worker.stop() == 0
        assert worker.lines("reports_left")
    assert Message.objects.get(pk=held.id).lease_token is not None


@pytest.mark.process
def test_a_drain_waits_for_what_a_dead_process_held_and_runs_it(workers):
    held = send("sample.crash", {"how": "kill", "gate": "held", "times": 1})
    worker = workers.start("--drain", "--processes", 2, "--lease", 90, "--poll", 0.1)
    [start] = workers.wait_for("start", id=held.id)

    with holding(locked_row(held.id)):
        workers.open("held")
        worker.wait_for("worker_died", pid=start["pid"])
        # Both places have nothing left to do.
        worker.wait_for("worker_stopped", count=2)
        assert worker.process.poll() is None
    assert worker.wait(LONG) == 0

    assert not Message.objects.exists()
    assert [line["attempt"] for line in workers.journal("start", id=held.id)] == [1, 2]


@pytest.mark.process
@pytest.mark.parametrize("is_freed", [True, False])
def test_a_stopped_supervisor_tries_what_a_dead_process_held_until_its_grace_is_over(
    workers, is_freed
):
    held = send("sample.work", {"gate": "never"})
    grace = 60 if is_freed else 1
    worker = workers.start("--processes", 2, "--lease", 90, "--grace", grace, "--poll", 0.1)
    [start] = workers.wait_for("start", id=held.id)
    # So that the supervisor does not end before its dead child is seen.
    other = send("sample.work", {"gate": "end"})
    workers.wait_for("start", id=other.id)

    with holding(locked_row(held.id)):
        os.kill(start["pid"], signal.SIGKILL)
        worker.wait_for("worker_died", pid=start["pid"])
        worker.signal(signal.SIGTERM)
        worker.wait_for("worker_stopping")
        workers.open("end")
        if not is_freed:
            worker.wait(LONG)
        else:
            worker.wait_for("worker_stopped")
            assert worker.process.poll() is None
    assert worker.wait(LONG) == 0

    row = Message.objects.get(pk=held.id)
    assert (row.lease_token is None) is is_freed
    assert bool(worker.lines("reports_left")) is not is_freed


@pytest.mark.process
def test_an_atomic_handler_waits_for_its_own_row_alone(workers):
    from tests.sample.models import Effect

    held = send("sample.effect", {"gate": "held"})
    worker = workers.start("--lease", 60, "--concurrency", 2)
    workers.wait_for("start", count=1)

    with holding(locked_row(held.id)):
        workers.open("held")
        wait_gone(workers, [send("sample.effect").id for _ in range(UNRELATED)])
        assert Message.objects.filter(pk=held.id).exists()
    wait_gone(workers, [held.id])

    assert worker.stop() == 0
    assert set(starts(workers).values()) == {1}
    assert Effect.objects.count() == 1 + UNRELATED


def test_what_expires_in_a_locked_stream_is_left_while_other_things_expire(workers):
    Queue.objects.filter(name="default").update(paused=True)
    held = send("sample.work", {}, stream="s", expires_in=0.001)
    other = send("sample.work", {}, stream="other", expires_in=0.001)

    from deadletter.lifecycle import sweep

    with holding(locked_stream("s")):
        assert sweep().expired == 1
        assert list(Message.objects.values_list("pk", flat=True)) == [held.id]
        assert not Message.objects.filter(pk=other.id).exists()
    assert sweep().expired == 1


def locked_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE deadletter_message IN ACCESS EXCLUSIVE MODE")


@pytest.mark.process
def test_a_locked_table_is_no_outage_and_the_log_says_who_holds_it(workers):
    ids = [send("sample.work", {"gate": "held"}).id for _ in range(3)]
    worker = workers.start("--lease", 60, "--concurrency", 4)
    workers.wait_for("start", count=3)

    with holding(locked_table):
        workers.open("held")
        wait_until(lambda: worker.lines("reports_postponed"), patience=LONG)
        wait_until(lambda: worker.lines("claims_postponed"), patience=LONG)
    wait_gone(workers, ids)

    assert worker.stop() == 0
    assert set(starts(workers).values()) == {1}
    assert worker.lines("database_away") == []
    assert worker.lines("lease_lost") == []
    assert "pid " in str(worker.lines("claims_postponed")[0])


def test_leases_are_renewed_after_a_lock_of_the_table_and_nothing_is_lost_by_it(handles):
    gate = threading.Event()
    handles("job", lambda message: gate.wait(LONG))
    id = send("job").id
    process = Worker(Options(name="here", lease=3600.0))
    process._housekeeper.refresh()
    wait_until(lambda: process.pump.turn() or process._in_flight.running(), patience=LONG)
    [item] = list(process._in_flight)
    before = Message.objects.get(pk=id).available_at
    leases = process.pump.leases

    with holding(locked_table):
        item.until = monotonic() + 1000.0
        leases._next = 0.0
        leases.check(monotonic())
        assert item.until < monotonic() + 1001.0
    leases._next, leases._busy = 0.0, {}
    leases.check(monotonic())

    assert Message.objects.get(pk=id).available_at > before
    assert item.until > monotonic() + 3000.0
    gate.set()
    wait_until(lambda: process.pump.turn() or not len(process._in_flight), patience=LONG)
    process._executors.stop()
    assert process.pump.tally.lost == 0
