"""Results that are read while their tasks move from table to table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from deadletter import lifecycle, operations
from deadletter.lifecycle import Completion, Failure, KeptResult
from deadletter.models import Message, PoisonRecord, Result
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

pytestmark = pytest.mark.django_db(transaction=True)

MOVES = 12


@contextmanager
def before_each_read(act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with each query of this block before it runs; queries of `act` are left alone."""
    is_acting = False

    def wrap(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal is_acting
        if not is_acting and sql.startswith(("SELECT", "(SELECT")):
            is_acting = True
            try:
                act(sql)
            finally:
                is_acting = False
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrap):
        yield


def test_a_task_that_flees_from_each_read_is_found_when_it_rests(clock):
    result = tasks.add.enqueue(1)
    moves: list[str] = []

    def flee(sql: str) -> None:
        if len(moves) >= MOVES:
            return
        if "FROM deadletter_message r" in sql and Message.objects.exists():
            operations.poison([int(result.id)], why="to flee")
            moves.append("poison")
        elif 'FROM "deadletter_poison"' in sql and PoisonRecord.objects.exists():
            operations.retry_poison([PoisonRecord.objects.get().pk])
            moves.append("retry")

    with before_each_read(flee):
        found = tasks.add.get_result(result.id)

    assert len(moves) == MOVES
    assert found.id == result.id


TWO = KeptResult("2", None)


def complete(task_id: int, result: KeptResult | None = TWO) -> None:
    batch = lifecycle.claim(worker="w1")
    (message,) = [message for message in batch if message.id == task_id]
    done = Completion(task_id, token=batch.token, message=message, result=result)
    lifecycle.process_batch(worker="w1", completions=[done])


def bury(task_id: int) -> None:
    batch = lifecycle.claim(worker="w1")
    lifecycle.fail(batch.token, [Failure(task_id, "never", permanent=True)])


def retry(task_id: int) -> None:
    operations.retry_poison([PoisonRecord.objects.get(message_id=task_id).pk])


def remove(task_id: int) -> None:
    operations.remove_poison([PoisonRecord.objects.get(message_id=task_id).pk])


def cancel(task_id: int) -> None:
    operations.remove([task_id])


LIVES = [
    [complete],
    [cancel],
    [bury, remove],
    [bury, retry, complete],
    [bury, retry, bury, retry, complete],
    [bury, retry, cancel],
]


@pytest.mark.parametrize("life", LIVES, ids=lambda life: "-".join(act.__name__ for act in life))
@pytest.mark.parametrize("step", [1, 2, 3])
def test_whenever_a_task_moves_its_result_is_found(
    clock, life: list[Callable[[int], None]], step: int
):
    for first in range(6):
        _move_between_the_reads(life, first, step)
        Result.objects.all().delete()


def _move_between_the_reads(life: list[Callable[[int], None]], first: int, step: int) -> None:
    """Let each act happen before another read: the first before read `first`."""
    result = tasks.add.enqueue(1)
    left, reads = list(life), 0

    def move(sql: str) -> None:
        nonlocal reads
        if left and reads >= first and (reads - first) % step == 0:
            left.pop(0)(int(result.id))
        reads += 1

    with before_each_read(move):
        while left:
            assert tasks.add.get_result(result.id).id == result.id

    ended = tasks.add.get_result(result.id)
    assert ended.status == ("SUCCESSFUL" if life[-1] is complete else "FAILED")
    assert (Message.objects.count(), Result.objects.count()) == (0, 1)


def test_a_task_that_ends_between_the_reads_and_keeps_nothing_does_not_exist(clock):
    result = tasks.forget.enqueue()

    def end(sql: str) -> None:
        if Message.objects.exists():
            complete(int(result.id), None)

    with before_each_read(end), pytest.raises(primary().result_does_not_exist):
        tasks.forget.get_result(result.id)

    assert (Message.objects.count(), Result.objects.count()) == (0, 0)
