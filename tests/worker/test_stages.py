"""Stages in a worker: recorded while the handler runs, and finished when it says so."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from deadletter import Status, crash_points, send, sql, testing
from deadletter.lifecycle import ClaimRequest, Failure, Progress, claim, fail, process_batch
from deadletter.models import Message, PoisonRecord
from deadletter.worker.crash_ledger import CrashLedger, LedgerEntry, SlotState
from deadletter.worker.orphans import free
from tests.patience import PATIENCE
from tests.processes import Workers, wait_until
from tests.sample.models import Effect

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PACKED, SHIPPED = Status(8), Status(16)
STORED = int(Status.STORED)


def status(id: int) -> int:
    return Message.objects.values_list("status", flat=True).get(pk=id)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The named statements that are run from now on."""
    names: list[str] = []
    real = sql.run

    def noting(connection: Any, name: str, params: Any, **options: Any) -> Any:
        names.append(name)
        return real(connection, name, params, **options)

    monkeypatch.setattr(sql, "run", noting)
    return names


# What a handler has done, while it runs.


@pytest.mark.process
@pytest.mark.parametrize("name", ["sample.stages", "sample.async_stages"])
def test_what_was_done_before_an_exchange_survives_a_sigkill(workers: Workers, name: str):
    id = send(name, {"gate": "never"}).pk
    worker = workers.start("--processes", 2, "--concurrency", 1, "--poll", 0.1)
    wait_until(lambda: status(id) & PACKED, why=worker.text)
    [first] = workers.journal("start", id=id)

    os.kill(first["pid"], signal.SIGKILL)

    wait_until(lambda: not Message.objects.exists(), why=worker.text)
    starts = workers.journal("start", id=id)
    # FAILED as well: the supervisor has charged the attempt whose process was killed.
    assert [line["attempt"] for line in starts] == [1, 2]
    assert [line["status"] & ~Status.FAILED for line in starts] == [STORED, STORED | PACKED]
    assert worker.stop() == 0


@pytest.mark.process
def test_a_lone_process_that_is_killed_leaves_the_flag_on_the_row(workers: Workers):
    id = send("sample.stages", {"gate": "never"}).pk
    worker = workers.start("--concurrency", 1, "--poll", 0.1, "--lease", 5)
    wait_until(lambda: status(id) & PACKED, why=worker.text)

    worker.signal(signal.SIGKILL)
    worker.wait()

    assert status(id) == STORED | PACKED
    again = workers.start("--poll", 0.1)
    wait_until(lambda: not Message.objects.exists(), why=again.text)
    starts = workers.journal("start", id=id)
    assert [(line["attempt"], line["status"]) for line in starts] == [
        (1, STORED),
        (2, STORED | PACKED),
    ]
    assert again.stop() == 0


@pytest.mark.parametrize(
    ("point", "is_kept"), [("transaction.committing", False), ("pump.exchanged", True)]
)
def test_a_flag_is_kept_from_the_commit_of_the_exchange_on(
    running, handles, gate, monkeypatch, point, is_kept
):
    """What a process that dies at this point leaves behind, seen while it stands there."""
    seen: list[int] = []
    arrived, leave, recorded = threading.Event(), threading.Event(), threading.Event()

    def listen(where: str, subject: Any) -> None:
        if where == "stage.recorded":
            recorded.set()
        if where == point and recorded.is_set() and not arrived.is_set():
            arrived.set()
            leave.wait(PATIENCE)

    def function(message: Any) -> None:
        message.done(PACKED)
        gate.wait(PATIENCE)

    handles("job", function)
    id = send("job").pk
    crash_points.listen(listen)
    try:
        with running(concurrency=1):
            assert arrived.wait(PATIENCE)
            seen.append(status(id))
            leave.set()
            wait_until(lambda: status(id) == STORED | PACKED)
            gate.set()
            wait_until(lambda: not Message.objects.exists())
    finally:
        leave.set()
        crash_points.listen(None)

    assert seen == [STORED | PACKED if is_kept else STORED]


def test_nothing_is_written_for_handlers_that_record_nothing(run, handles, statements):
    handles("plain", lambda message: None)
    handles("quick", lambda message: message.done(PACKED))
    for _ in range(5):
        send("plain")

    run(concurrency=1)

    assert "record_stages" not in statements
    assert not Message.objects.exists()


@pytest.mark.slow
def test_each_flag_is_written_once(running, handles, statements, gate):
    reached, go_on = threading.Event(), threading.Event()

    def function(message: Any) -> None:
        message.done(PACKED)
        message.done(PACKED)
        reached.set()
        go_on.wait(PATIENCE)
        message.done(SHIPPED)
        gate.wait(PATIENCE)

    handles("job", function)
    id = send("job").pk
    with running(concurrency=1) as process:
        assert reached.wait(PATIENCE)
        wait_until(lambda: status(id) == STORED | PACKED)
        before = process.pump.turned
        wait_until(lambda: process.pump.turned > before + 0.2)
        first = statements.count("record_stages")
        go_on.set()
        wait_until(lambda: status(id) == STORED | PACKED | SHIPPED)
        before = process.pump.turned
        wait_until(lambda: process.pump.turned > before + 0.2)
        gate.set()
        wait_until(lambda: not Message.objects.exists())

    # The handler may have recorded the same flag once more just after the first exchange left.
    assert first == 1
    assert statements.count("record_stages") == 2


def test_what_a_handler_has_done_is_kept_when_it_is_given_back(running, handles, gate):
    started = threading.Event()

    def function(message: Any) -> None:
        message.done(PACKED)
        started.set()
        gate.wait(PATIENCE)

    handles("job", function)
    id = send("job").pk
    with running(concurrency=1) as process:
        assert started.wait(PATIENCE)
        process.pump.stop(grace=0)
        wait_until(lambda: Message.objects.filter(lease_token=None).exists())

    row = Message.objects.get(pk=id)
    assert (row.status, row.attempts) == (STORED | PACKED, 0)


def test_only_the_holder_of_a_live_lease_records(clock):
    first, second = send("job").pk, send("job").pk
    batch = claim(limit=2, lease=60)

    def record(token: str) -> list[int]:
        progress = [Progress(first, 8, token), Progress(second, 16, token)]
        return sorted(process_batch(worker="w", progress=progress).recorded)

    assert record("0" * 16) == []
    assert record(batch.token) == [first, second]
    clock.advance(61)
    assert record(batch.token) == []
    assert (status(first), status(second)) == (STORED | 8, STORED | 16)


def test_progress_is_written_before_its_message_is_given_back(clock):
    id = send("job", stream="s").pk
    batch = claim()

    result = process_batch(
        worker="w", token=batch.token, releases=[id], progress=[Progress(id, 8, batch.token)]
    )

    row = Message.objects.get()
    assert (result.recorded, result.lost) == ([id], [])
    assert (row.status, row.attempts, row.lease_token) == (STORED | 8, 0, None)


@pytest.mark.postgresql_only(reason="SQLite has one writer at a time")
def test_a_row_that_is_locked_is_recorded_later(running, handles, gate, statements):
    started, go_on = threading.Event(), threading.Event()

    def function(message: Any) -> None:
        started.set()
        go_on.wait(PATIENCE)
        message.done(PACKED)
        gate.wait(PATIENCE)

    handles("job", function)
    id = send("job").pk
    with running(concurrency=1):
        assert started.wait(PATIENCE)
        with transaction.atomic():
            Message.objects.select_for_update().get(pk=id)
            go_on.set()
            wait_until(lambda: statements.count("record_stages") >= 2)
        wait_until(lambda: status(id) == STORED | PACKED)
        gate.set()
        wait_until(lambda: not Message.objects.exists())


@pytest.mark.parametrize("flag", [-1, 1 << 15, 1 << 16, 1 << 31, 8 | 1 << 15, Status.FAILED])
@pytest.mark.parametrize("verb", ["done", "next_stage"])
def test_flags_that_are_no_stage_are_refused_where_they_are_named(clock, verb, flag):
    send("job")
    (message,) = claim().messages

    with pytest.raises(ValueError, match=f"{verb}: "):
        getattr(message, verb)(flag)

    assert (message.status, message.stage) == (Status.STORED, 0)


@pytest.mark.parametrize("flag", [0, Status.STORED, PACKED])
def test_a_next_stage_that_is_none_is_refused_where_it_is_named(clock, flag):
    send("job")
    (message,) = claim().messages
    message.done(PACKED)

    with pytest.raises(ValueError, match="adds no stage"):
        message.next_stage(flag)
    with pytest.raises(ValueError, match="PUBLISHED ends the message"):
        message.next_stage(Status.PUBLISHED | SHIPPED)


# A stage ends when its handler says so.


def by_stages(seen: list[Any], *, is_async: bool = False) -> Callable[[Any], Any]:
    """A handler that packs, then ships, then ends; each stage fails once."""

    def step(message: Any) -> None:
        seen.append((message.payload["n"], int(message.status) & 24, message.attempt))
        if message.attempt == 1:
            raise RuntimeError("once for each stage")
        if not message.status & PACKED:
            message.next_stage(PACKED)
        elif not message.status & SHIPPED:
            message.next_stage(SHIPPED)

    async def step_async(message: Any) -> None:
        step(message)

    return step_async if is_async else step


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("options", [{}, {"is_async": True}, {"atomic": True}], ids=str)
@pytest.mark.parametrize("way", ["worker", "drain"])
def test_a_handler_goes_through_its_stages_with_all_attempts_for_each(
    run, handles, policy, stream, options, way
):
    policy(max_attempts=2, cooldown=0)
    seen: list[Any] = []
    is_async = options.get("is_async", False)
    handles("job", by_stages(seen, is_async=is_async), atomic=options.get("atomic", False))
    for n in range(2):
        send("job", {"n": n}, stream=stream)

    tally = run(concurrency=1).pump.tally if way == "worker" else testing.drain()

    each = [(0, 1), (0, 2), (8, 1), (8, 2), (24, 1), (24, 2)]
    assert [(bits, n) for which, bits, n in seen if which == 0] == each
    assert [(bits, n) for which, bits, n in seen if which == 1] == each
    if stream:
        assert [which for which, *_ in seen] == [0] * 6 + [1] * 6
    assert (tally.completed, tally.staged, tally.failed) == (2, 4, 6)
    assert (tally.poisoned, tally.lost) == (0, 0)
    assert not Message.objects.exists()
    assert not PoisonRecord.objects.exists()


def test_a_next_stage_is_not_recorded_before_its_handler_returns(running, handles, gate):
    """Its flag would not be new any more, and the stage refused."""
    seen: list[int] = []

    def function(message: Any) -> None:
        seen.append(int(message.status))
        if not message.status & PACKED:
            message.next_stage(PACKED)
            message.done(SHIPPED)
            gate.wait(PATIENCE)

    handles("job", function)
    id = send("job").pk
    with running(concurrency=1) as process:
        wait_until(lambda: status(id) & SHIPPED)
        before = status(id)
        gate.set()
        wait_until(lambda: not Message.objects.exists())

    assert before == STORED | SHIPPED
    assert seen == [STORED, STORED | PACKED | SHIPPED]
    assert (process.pump.tally.staged, process.pump.tally.completed) == (1, 1)


def test_what_an_atomic_handler_wrote_is_committed_with_its_stage(run, handles):
    def function(message: Any) -> None:
        Effect.objects.create(message=message.id, note=f"status {int(message.status)}")
        if not message.status & PACKED:
            message.next_stage(PACKED)

    handles("job", function, atomic=True)
    send("job")

    run()

    notes = Effect.objects.order_by("id").values_list("note", flat=True)
    assert list(notes) == ["status 1", "status 9"]


def test_a_handler_that_raises_after_its_stage_fails_and_keeps_the_flag(run, handles):
    def function(message: Any) -> None:
        message.next_stage(PACKED)
        raise RuntimeError("no")

    handles("job", function)
    send("job")

    tally = run().pump.tally

    row = Message.objects.get()
    assert (row.status, row.attempts) == (STORED | PACKED | Status.FAILED, 1)
    assert (tally.failed, tally.staged) == (1, 0)


@pytest.mark.parametrize("late", [False, True], ids=["raises", "fails to commit"])
def test_a_stage_that_was_to_be_committed_with_its_work_is_undone_with_it(run, handles, late):
    def function(message: Any) -> None:
        Effect.objects.create(message=message.id, note="packed")
        message.done(SHIPPED)
        message.next_stage(PACKED)
        if late:
            # The lease is gone when the stage is to be committed.
            transaction.set_rollback(True)
        else:
            raise RuntimeError("no")

    handles("job", function, atomic=True)
    send("job")

    run()

    assert not Effect.objects.exists()
    assert Message.objects.get().status == STORED | SHIPPED | Status.FAILED


def test_a_refused_stage_is_judged_by_the_policy_of_its_handler(run, handles):
    def function(message: Any) -> None:
        message.stage = 8  # past next_stage, which would refuse it

    handles("job", function, max_attempts=1)
    send("job")

    run()

    assert PoisonRecord.objects.get().max_attempts == 1


def test_progress_is_written_where_nothing_is_due():
    id = send("job").pk
    batch = claim()

    found = process_batch(
        worker="w", progress=[Progress(id, 8, batch.token)], claim=ClaimRequest(limit=5)
    )

    assert (list(found.recorded), found.messages) == ([id], [])
    assert status(id) == STORED | PACKED


def test_a_stage_that_is_refused_is_a_failure_of_the_attempt(run, handles, caplog):
    def function(message: Any) -> None:
        message.stage = 8  # past next_stage, which would refuse it

    handles("job", function)
    send("job")

    with caplog.at_level(logging.ERROR, "deadletter"):
        tally = run().pump.tally

    row = Message.objects.get()
    assert (row.status, row.attempts) == (STORED | Status.FAILED, 1)
    assert "its next stage was refused: status 1 adds no stage to 1" in row.error
    assert (tally.failed, tally.staged, tally.completed) == (1, 0, 0)
    assert [r.event for r in caplog.records if hasattr(r, "event")] == ["stage_refused"]


def test_a_stage_that_a_dead_process_had_finished_is_finished_for_it():
    ids = [send("job", stream="s").pk for _ in range(3)]
    batch = claim(limit=3)
    ledger = CrashLedger()
    slots = [ledger.hold(id, batch.token) for id in ids]
    ledger.mark_staged(slots[0], STORED | PACKED)
    assert ledger.entries()[0] == LedgerEntry(
        ids[0], batch.token, SlotState.STAGED, STORED | PACKED
    )

    free("dead", ledger.entries(), "signal SIGKILL", claiming=(), using="default")

    rows = Message.objects.order_by("id").values_list("status", "attempts", "lease_token")
    assert list(rows) == [(STORED | PACKED, 0, None), (STORED, 0, None), (STORED, 0, None)]
    assert claim(limit=3).ids == ids


def test_a_failure_after_done_keeps_the_flag_without_an_exchange(clock):
    send("job")
    (message,) = (batch := claim()).messages
    message.done(PACKED)

    fail(batch.token, [Failure(message.id, completed=message.status)])

    assert status(message.id) == STORED | PACKED | Status.FAILED
