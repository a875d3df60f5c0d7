"""Tasks in dead queues: found by the id that they were enqueued with, however they end."""

from __future__ import annotations

from typing import Any

import pytest

from deadletter import operations, testing
from deadletter.models import Message, Queue, Result
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def dead_queue(policy: Any) -> Queue:
    found: Queue = policy("dead")
    policy(on_poison="dead_queue", dead_queue=found)
    return found


def test_a_task_is_found_in_a_queue_that_is_no_longer_a_dead_queue(clock, dead_queue):
    result = tasks.fail_for_good.enqueue()
    testing.drain(["default"])

    Queue.objects.filter(name="default").update(dead_queue=None, on_poison="quarantine")

    found = result.task.get_result(result.id)
    assert (found.id, found.status, found.state) == (result.id, "FAILED", "dead")


def test_a_task_removed_from_a_dead_queue_had_died(clock, dead_queue):
    result = tasks.fail_for_good.enqueue()
    testing.drain(["default"])

    operations.remove([Message.objects.get().pk])

    result.refresh()
    assert (result.status, result.state, len(result.errors)) == ("FAILED", "removed", 1)
    assert Result.objects.get().pk == int(result.id)


def test_the_signal_of_a_task_that_ends_in_a_dead_queue_has_its_id(clock, dead_queue):
    told: list[tuple[str, str]] = []

    def receive(task_result: Any, **kwargs: Any) -> None:
        told.append((task_result.id, str(task_result.status)))

    primary().signals.task_finished.connect(receive)
    result = tasks.add.enqueue(1)
    operations.poison([int(result.id)], why="to look at it")

    testing.drain(["dead"])

    primary().signals.task_finished.disconnect(receive)
    assert told == [(result.id, "FAILED"), (result.id, "SUCCESSFUL")]
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 2)
