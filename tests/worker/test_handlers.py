"""What a handler may return, raise and leave behind without harm to the worker or others."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter import FailureReason, Permanent, Retry, Status, send
from deadletter.models import Message, PoisonRecord
from deadletter.worker.registry import handler
from tests.patience import PATIENCE
from tests.processes import Workers
from tests.sample.models import Effect

from .rows import rows

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PACKED, SHIPPED = Status(8), Status(16)


def wait_of(id: int) -> float:
    message = Message.objects.get(pk=id)
    return (message.available_at - message.created_at).total_seconds()


def test_stages_done_survive_a_failure_and_are_seen_by_the_retry(run, handles, policy):
    policy(cooldown=timedelta(0))
    seen = []

    def work(message: Any) -> None:
        seen.append(message.status & (PACKED | SHIPPED))
        if not message.status & PACKED:
            message.done(PACKED)
            raise RuntimeError("after packing")
        message.done(SHIPPED)
        if message.attempt == 2:
            raise RuntimeError("after shipping")

    handles("job", work)
    send("job")

    process = run()

    assert seen == [0, PACKED, PACKED | SHIPPED]
    assert (process.pump.tally.completed, process.pump.tally.failed) == (1, 2)


@pytest.mark.parametrize("is_async", [False, True])
def test_permanent_quarantines_at_once(run, handles, is_async):
    def refuse(message: Any) -> None:
        raise Permanent("never")

    async def refuse_async(message: Any) -> None:
        raise Permanent("never")

    handles("job", refuse_async if is_async else refuse)
    id = send("job").pk

    process = run()

    [poison] = PoisonRecord.objects.all()
    assert (poison.message_id, poison.attempts) == (id, 1)
    assert (process.pump.tally.poisoned, process.pump.tally.failed) == (1, 0)


def test_retry_says_when(run, handles):
    def later(message: Any) -> None:
        raise Retry("come back", after=500)

    handles("job", later)
    id = send("job").pk

    run()

    assert 500 <= wait_of(id) < 500 + PATIENCE


@pytest.mark.parametrize(
    ("limit", "queue_limit", "attempts"),
    [(1, 3, 1), (2, 5, 2), (4, 2, 4)],
    ids=["one", "smaller", "larger"],
)
def test_a_handlers_own_limit_replaces_the_queues(
    run, handles, policy, limit, queue_limit, attempts
):
    policy(max_attempts=queue_limit, cooldown=timedelta(0))
    seen = []

    def fail(message: Any) -> None:
        seen.append((message.attempt, message.max_attempts, message.is_last_attempt))
        raise RuntimeError("no")

    handles("job", fail, max_attempts=limit)
    send("job")

    run()

    assert seen == [(n, limit, n == limit) for n in range(1, attempts + 1)]
    [poison] = PoisonRecord.objects.all()
    assert (poison.attempts, poison.max_attempts) == (attempts, limit)


def test_a_handler_without_a_limit_is_tried_for_ever(run, handles, policy):
    policy(max_attempts=1, cooldown=timedelta(0))

    def fail_often(message: Any) -> None:
        assert message.max_attempts is None
        if message.attempt < 8:
            raise RuntimeError("no")

    handles("job", fail_often, max_attempts=None)
    send("job")

    process = run()

    assert (process.pump.tally.completed, process.pump.tally.failed) == (1, 7)
    assert not PoisonRecord.objects.exists()


def test_a_handlers_own_backoff_replaces_the_queues(run, handles):
    base, cap = timedelta(seconds=200), timedelta(seconds=5000)

    def fail(message: Any) -> None:
        raise RuntimeError("no")

    handles("job", fail, backoff_base=base, backoff_cap=cap)
    id = send("job").pk

    run()

    assert 400 <= wait_of(id) < 400 + PATIENCE


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Unprintable(), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_is_a_failure_of_its_message_only(run, handles, error, is_async):
    def fail(message: Any) -> None:
        raise error

    async def fail_async(message: Any) -> None:
        raise error

    handles("bad", fail_async if is_async else fail)
    handles("good", lambda message: None)
    before = send("good").pk
    bad = send("bad").pk
    after = send("good").pk

    process = run(concurrency=1)

    assert before != after
    assert rows() == {bad: 1}
    [message] = Message.objects.all()
    assert type(error).__name__ in message.error
    assert message.failure_reason == FailureReason.HANDLER_EXCEPTION
    assert (process.pump.tally.completed, process.pump.tally.failed) == (2, 1)


def test_a_handler_that_cancels_its_own_task_fails_and_its_slot_comes_back(run, handles):
    async def cancel(message: Any) -> None:
        asyncio.current_task().cancel()

    async def fine(message: Any) -> None:
        await asyncio.sleep(0)

    handles("bad", cancel)
    handles("good", fine)
    bad = send("bad").pk
    for _ in range(3):
        send("good")

    process = run(concurrency=1)

    assert rows() == {bad: 1}
    assert process.pump.tally.completed == 3


def test_an_async_function_behind_a_plain_wrapper_is_run_all_the_same(run, handles):
    done = []

    async def work(message: Any) -> None:
        done.append(message.id)

    def wrapper(message: Any) -> Any:
        return work(message)

    handles("job", wrapper)
    id = send("job").pk

    run()

    assert done == [id]


def test_a_generator_is_refused_as_a_handler():
    def generator(message: Any) -> Any:
        yield message

    with pytest.raises(ValueError, match="calling a generator runs nothing"):
        handler("job.generator")(generator)


@pytest.mark.process
@pytest.mark.parametrize("leave", ["atomic", "autocommit", "begin"])
def test_a_transaction_left_open_is_rolled_back_logged_and_fails_its_message(
    workers: Workers, leave: str
):
    bad = send("sample.dirty", {"leave": leave}).pk
    good = send("sample.inspect", {}).pk

    worker = workers.drain("--concurrency", 1)

    [state] = workers.journal("state", id=good)
    assert state["state"] == {
        "autocommit": True,
        "in_atomic_block": False,
        "language": "en",
        "zone": "UTC",
        "effects": 0,
    }
    assert worker.lines("transaction_left_open", alias="default")
    assert rows() == {bad: 1}
    assert "End every transaction" in Message.objects.get().error
    assert list(Effect.objects.values_list("note", flat=True)) == ["inspected"]


@pytest.mark.process
@pytest.mark.parametrize("leave", ["closed", "language"])
def test_a_closed_connection_or_another_language_does_not_reach_the_next_message(
    workers: Workers, leave: str
):
    send("sample.dirty", {"leave": leave})
    good = send("sample.inspect", {}).pk

    worker = workers.drain("--concurrency", 1)

    [state] = workers.journal("state", id=good)
    assert (state["state"]["language"], state["state"]["zone"]) == ("en", "UTC")
    assert state["state"]["autocommit"]
    assert rows() == {}
    assert not worker.lines("transaction_left_open")


def test_connections_of_idle_executors_are_not_kept(run, handles):
    seen: list[Any] = []

    def work(message: Any) -> None:
        Effect.objects.create(message=message.id)
        seen.append(connection.connection)

    handles("job", work)
    send("job")

    run(concurrency=1)

    assert seen[0] is not None
    assert is_closed(seen[0])


def is_closed(raw: Any) -> bool:
    if connection.vendor == "postgresql":
        return raw.closed
    try:
        raw.execute("SELECT 1")
    except Exception as error:  # noqa: BLE001 - of the driver
        return "closed" in str(error) or "thread" in str(error)
    return False


def test_a_handler_may_remove_its_own_message(run, handles):
    def remove(message: Any) -> None:
        Message.objects.filter(pk=message.id).delete()

    handles("bad", remove)
    handles("good", lambda message: None)
    send("bad")
    send("good")

    process = run()

    assert rows() == {}
    assert (process.pump.tally.completed, process.pump.tally.lost) == (1, 1)
