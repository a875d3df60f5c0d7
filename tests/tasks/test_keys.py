"""Keys of tasks: one unfinished task for a key, and its own result for everybody."""

from __future__ import annotations

from typing import Any

import pytest

from deadletter import MessageRejected, send, testing
from deadletter.models import Message
from deadletter.tasks import enqueue_many
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def enqueued() -> Any:
    """The ids that `task_enqueued` was sent for."""
    found: list[str] = []

    def receive(task_result: Any, **kwargs: Any) -> None:
        found.append(task_result.id)

    primary().signals.task_enqueued.connect(receive)
    yield found
    primary().signals.task_enqueued.disconnect(receive)


def test_a_key_that_another_task_holds_returns_the_result_of_that_task(clock, enqueued):
    first = tasks.add.using(key="k").enqueue(1)

    second = tasks.look.using(key="k").enqueue()

    assert second.id == first.id
    assert (second.task.module_path, second.args) == ("tests.sample.tasks.add", [1])
    assert enqueued == [first.id]
    assert Message.objects.count() == 1


def test_a_key_that_a_failed_task_holds_returns_its_errors(clock):
    first = tasks.fail.using(key="k").enqueue()
    testing.drain()

    second = tasks.fail.using(key="k").enqueue()

    assert (second.id, second.state, len(second.errors)) == (first.id, "failed", 1)


def test_a_key_that_a_message_holds_is_refused(clock, enqueued):
    message = send("sample.work", [1], key="k")

    with pytest.raises(MessageRejected, match=f"message {message.pk}, which is no task"):
        tasks.add.using(key="k").enqueue(1)
    with pytest.raises(MessageRejected, match=f"message {message.pk}, which is no task"):
        enqueue_many(tasks.add.using(key="k"), [(1,)])

    assert Message.objects.count() == 1
    assert enqueued == []


def test_a_bulk_announces_each_new_task_once(clock, enqueued):
    held = tasks.welcome.enqueue(7)
    enqueued.clear()

    ids = enqueue_many(tasks.welcome, [(7,), (8,), (8,), (9,)])

    assert ids[0] == held.id
    assert ids[1] == ids[2]
    assert sorted(enqueued) == sorted({ids[1], ids[3]})
    assert Message.objects.count() == 3
