"""Tasks that were tried before: what contexts, signals and results know of the attempts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from deadletter import lifecycle, testing
from deadletter.lifecycle import Failure
from deadletter.models import Message
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def finished() -> Iterator[list[Any]]:
    """The results that `task_finished` was sent with."""
    found: list[Any] = []

    def receive(task_result: Any, **kwargs: Any) -> None:
        found.append(task_result)

    primary().signals.task_finished.connect(receive)
    yield found
    primary().signals.task_finished.disconnect(receive)


def fail_once(clock: Any) -> None:
    """Let a worker w1 claim what is due and fail, and wait until it is due again."""
    batch = lifecycle.claim(worker="w1")
    lifecycle.fail(batch.token, [Failure(id, error="no") for id in batch.ids])
    clock.advance(3600)


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async, tasks.add_atomic])
def test_a_task_that_failed_before_runs_with_a_log_and_listeners(task, clock, caplog, finished):
    caplog.set_level(logging.INFO, logger=primary().name)
    result = task.enqueue(1)
    fail_once(clock)

    tally = testing.drain()

    result.refresh()
    assert (tally.completed, tally.failed) == (1, 0)
    assert (result.status, result.return_value) == ("SUCCESSFUL", 2)
    assert result.worker_ids == ["w1", "drain"]
    (told,) = finished
    assert (told.id, told.status, told.return_value) == (result.id, "SUCCESSFUL", 2)
    assert (told.worker_ids, len(told.errors)) == (["w1", "drain"], 1)


@pytest.mark.parametrize("task", [tasks.look, tasks.look_async])
def test_a_context_knows_the_earlier_attempts(task, clock):
    result = task.enqueue()
    fail_once(clock)

    testing.drain()

    result.refresh()
    assert result.return_value == {
        "id": result.id,
        "attempt": 2,
        "attempts": 2,
        "status": "RUNNING",
        "workers": ["w1", "drain"],
    }


def test_the_first_attempt_of_a_task_reads_nothing_for_its_context(
    clock, django_assert_num_queries
):
    tasks.look.enqueue()
    message = lifecycle.claim(worker="w1").messages[0]
    from deadletter.worker.execute import execute

    with django_assert_num_queries(0):
        report = execute(message)

    assert report.result is not None
    assert '"workers":["w1"]' in report.result.value


def test_the_latest_thousand_workers_are_kept(clock):
    result = tasks.add.enqueue(1)
    Message.objects.update(workers=["first", *["w"] * 999])

    testing.drain()

    result.refresh()
    assert result.worker_ids == [*["w"] * 999, "drain"]
