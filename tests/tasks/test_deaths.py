"""What a result says of a task that died: in quarantine, in a dead queue, and when that is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deadletter import lifecycle, operations, testing
from deadletter.models import Message, PoisonRecord, Queue
from tests.sample import tasks

pytestmark = pytest.mark.django_db

VERDICTS = {
    "handler": ("deadletter.exceptions.Permanent", "deadletter.exceptions.Permanent: never\n"),
    "person": ("deadletter.exceptions.DeadletterError", "by hand"),
    "time": ("deadletter.exceptions.DeadletterError", "expired before it was handled"),
}


@pytest.fixture(params=["quarantine", "dead_queue"])
def remove(request: Any) -> Callable[[int], None]:
    """Make the queue `mail`; return the function that removes a task that died in it."""
    if request.param == "quarantine":
        Queue.objects.create(name="mail")
        return lambda task: _remove_record(PoisonRecord.objects.get(message_id=task))
    letters = Queue.objects.create(name="letters", paused=True)
    Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=letters)
    return lambda task: _remove_message(Message.objects.get(source_id=task))


def _remove_record(row: PoisonRecord) -> None:
    operations.remove_poison([row.pk])


def _remove_message(row: Message) -> None:
    operations.remove([row.pk])


def die(by: str, clock: Any) -> Any:
    """Enqueue a task in the queue `mail` and let it die five seconds later."""
    task = tasks.fail_for_good if by == "handler" else tasks.add
    task = task.using(queue_name="mail", priority=7)
    if by == "time":
        task = task.using(expires_in=3)
    result = task.enqueue() if by == "handler" else task.enqueue(1)
    clock.advance(5)
    if by == "handler":
        testing.drain(queues=["mail"])
    elif by == "person":
        operations.poison([int(result.id)], why="by hand")
    else:
        lifecycle.sweep()
    return result


@pytest.mark.parametrize("by", VERDICTS)
def test_a_dead_task_is_as_it_was_enqueued_and_says_why_it_died(by, remove, clock, counts):
    result = die(by, clock)
    enqueued_at = result.enqueued_at

    result.refresh()

    found = result.task.get_backend().get_result(result.id)
    assert (found.status, found.state) == ("FAILED", "dead")
    assert (found.task.queue_name, found.task.priority) == ("mail", 7)
    assert (found.enqueued_at, found.finished_at) == (enqueued_at, clock.now)
    (error,) = found.errors
    path, end = VERDICTS[by]
    assert (error.exception_class_path, error.traceback[-len(end) :]) == (path, end)


@pytest.mark.parametrize("by", VERDICTS)
def test_a_removed_task_keeps_its_queue_and_has_an_error(by, remove, clock, counts):
    result = die(by, clock)

    remove(int(result.id))

    found = result.task.get_backend().get_result(result.id)
    assert (found.status, found.state, counts()) == ("FAILED", "removed", {})
    assert (found.task.queue_name, found.task.priority) == ("mail", 7)
    (error,) = found.errors
    expected = VERDICTS[by][0]
    assert error.exception_class_path == expected
    # The record said why, and is gone.
    assert by == "handler" or error.traceback == "removed"


@pytest.mark.parametrize("damage", [{"queue": "x" * 300}, {"queue": 7}, [], 7, "text", None])
def test_facts_of_a_death_that_were_damaged_do_not_keep_a_message(damage, clock, counts):
    letters = Queue.objects.create(name="letters", paused=True)
    Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=letters)
    result = die("handler", clock)
    Message.objects.update(death=damage)

    operations.remove([Message.objects.get().pk])

    result.refresh()
    assert (result.status, result.state, counts()) == ("FAILED", "removed", {})
