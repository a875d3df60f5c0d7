"""Enqueue: what is stored, what is refused, and in whose transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from deadletter import MessageRejected, PayloadRejected, UnknownQueue, testing
from deadletter.models import Kind, Message, Queue
from deadletter.tasks import Call, aenqueue_many, enqueue_many, task
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

pytestmark = pytest.mark.django_db

InvalidTask = primary().invalid_task


def test_a_task_is_stored_as_a_message_named_by_its_path(clock):
    result = tasks.add.enqueue(2, b=3)

    message = Message.objects.get()

    assert result.id == str(message.pk)
    assert (message.name, message.kind) == ("tests.sample.tasks.add", Kind.TASK)
    assert message.payload == {"args": [2], "kwargs": {"b": 3}}
    assert message.headers is None
    assert result.enqueued_at == clock.now


def test_a_rollback_undoes_the_enqueue():
    with transaction.atomic():
        tasks.add.enqueue(1)
        transaction.set_rollback(True)

    assert Message.objects.count() == 0


def test_the_highest_priority_runs_first(clock):
    ids = [tasks.look.using(priority=priority).enqueue().id for priority in (-5, 0, 100)]

    stored = {str(row.pk): row.priority for row in Message.objects.all()}

    assert [stored[id] for id in ids] == [5, 0, -100]
    assert [tasks.look.get_result(id).task.priority for id in ids] == [-5, 0, 100]


def test_run_after_and_delay_put_a_task_off(clock):
    at = clock.now + timedelta(minutes=10)
    later = tasks.add.using(run_after=at).enqueue(1)
    delayed = tasks.add.using(delay="5m").enqueue(2)

    assert testing.drain().completed == 0
    stored = {str(row.pk): row.available_at for row in Message.objects.all()}

    assert stored == {later.id: at, delayed.id: clock.now + timedelta(minutes=5)}
    assert tasks.add.get_result(later.id).task.run_after == at
    assert tasks.add.get_result(later.id).state == "scheduled"


def test_the_state_is_known_before_the_result_is_read():
    at = timezone.now() + timedelta(minutes=10)

    results = [
        tasks.add.enqueue(1),
        tasks.add.using(run_after=at).enqueue(1),
        tasks.add.using(delay="5m").enqueue(1),
    ]

    states = [result.state for result in results]
    assert states == ["pending", "scheduled", "scheduled"]
    assert states == [tasks.add.get_result(result.id).state for result in results]


def test_a_task_expires(clock):
    result = tasks.add.using(expires_in=60).enqueue(1)
    clock.advance(61)

    testing.drain()

    result.refresh()
    assert (result.status, result.state) == ("FAILED", "dead")
    assert result.errors[-1].traceback == "expired before it was handled"


def test_an_argument_that_is_no_json_is_refused():
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.add.enqueue(datetime.now(UTC))

    assert Message.objects.count() == 0


def endless() -> list[Any]:
    """Return a list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("value", [endless(), {"a": endless()}])
def test_an_argument_that_contains_itself_is_refused(value):
    with pytest.raises(PayloadRejected, match="payload: nested deeper than 64 levels, or contains"):
        tasks.answer.enqueue(value)
    with pytest.raises(PayloadRejected, match="payload: nested deeper than 64 levels, or contains"):
        enqueue_many(tasks.answer, [(1,), (value,)])

    assert Message.objects.count() == 0


@pytest.mark.parametrize(
    "value", [float("nan"), "\0", "\ud800", 10**5_000], ids=["nan", "nul", "surrogate", "long"]
)
def test_an_argument_that_no_database_stores_is_refused(value):
    with pytest.raises(PayloadRejected, match=r"payload\.args\[0\]"):
        tasks.answer.enqueue(value)

    assert Message.objects.count() == 0


def test_a_payload_that_is_too_large_is_refused():
    with pytest.raises(MessageRejected, match="262,144"):
        tasks.answer.enqueue("x" * 300_000)

    assert Message.objects.count() == 0


def test_a_queue_that_does_not_exist_is_refused():
    with pytest.raises(UnknownQueue, match="nowhere"):
        tasks.add.using(queue_name="nowhere").enqueue(1)


def test_many_calls_are_stored_at_once(clock):
    ids = enqueue_many(tasks.add, [(1,), {"a": 2}, Call([3], {"b": 4}), [5, 6]])

    testing.drain()

    assert [tasks.add.get_result(id).return_value for id in ids] == [2, 3, 7, 11]


def test_many_calls_of_a_stream_run_in_order(clock):
    ids = tasks.welcome.enqueue_many([(1,), (1,), (2,)])

    assert ids[0] == ids[1] != ids[2]
    assert Message.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_async_enqueue_and_results():
    async def story() -> object:
        result = await tasks.add.aenqueue(1)
        many = await aenqueue_many(tasks.add, [(5,)])
        assert (await tasks.add.aget_result(many[0])).args == [5]
        await result.arefresh()
        return result.status

    assert async_to_sync(story)() == "READY"


def test_a_call_that_is_none_is_refused():
    with pytest.raises(TypeError, match="call 1: expected a tuple"):
        enqueue_many(tasks.add, [(1,), 2])

    assert Message.objects.count() == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_attempts": -1}, "max_attempts: expected a number from 0, got -1"),
        ({"timeout": "soon"}, "timeout"),
        ({"keep_result": "soon"}, "keep_result"),
        ({"stream": "{nobody}"}, "names 'nobody', which is no parameter"),
        ({"stream": "{"}, "is not a template"),
        ({"stream": "{a!z}"}, "has the unknown conversion !z"),
        ({"stream": "{a:>{b}}"}, "has an argument in a format specification"),
        ({"stream": "{a:{nobody}}"}, "has an argument in a format specification"),
        ({"stream": " "}, "stream: expected 1 to 200 characters"),
        ({"key": 7}, "key: expected text, got int"),
        ({"reason_policies": {"NOTHING": {}}}, "reason_policies"),
        ({"tags": "user_id"}, "tags: expected a list of paths"),
        ({"tags": ["a..b"]}, "tags: expected a path"),
    ],
)
def test_options_are_checked_when_the_task_is_defined(options, problem):
    with pytest.raises(InvalidTask, match=problem):
        task(**options)(tasks.add.func)


def test_a_template_cannot_name_the_context():
    with pytest.raises(InvalidTask, match=r"'context', which is no parameter \(there are: total\)"):
        task(stream="{context}", takes_context=True)(tasks.count_up.func)


def test_an_atomic_async_task_is_refused():
    with pytest.raises(InvalidTask, match="atomic needs a plain function"):
        task(atomic=True)(tasks.add_async.func)


@pytest.mark.parametrize("word", ["run_after", "delay"])
def test_times_are_for_calls(word):
    with pytest.raises(TypeError, match=rf"use \.using\({word}=…\)"):
        task(**{word: 1})(tasks.add.func)


def test_using_refuses_unknown_words():
    with pytest.raises(TypeError):
        tasks.add.using(streem="x")


def test_delay_and_run_after_exclude_each_other(clock):
    with pytest.raises(InvalidTask, match="either delay or run_after"):
        tasks.add.using(run_after=clock.now, delay=1)


def test_a_stream_that_cannot_be_stored_is_refused():
    with pytest.raises(MessageRejected, match="stream: expected 1 to 200 characters"):
        tasks.welcome.enqueue("x" * 300)

    assert Message.objects.count() == 0


def test_arguments_that_do_not_fit_the_template_are_refused():
    with pytest.raises(MessageRejected, match=r"stream: the template .* cannot be filled"):
        tasks.welcome.enqueue()


def test_a_key_returns_the_running_task(clock):
    from deadletter import lifecycle

    first = tasks.welcome.enqueue(1)
    lifecycle.claim(worker="w1")

    second = tasks.welcome.enqueue(1)

    assert (second.id, second.status, second.worker_ids) == (first.id, "RUNNING", ["w1"])


def test_the_queue_of_a_task_must_be_one_of_the_backend():
    with (
        override_settings(
            TASKS={"default": {"BACKEND": "deadletter.tasks.DeadletterBackend", "QUEUES": ["a"]}}
        ),
        pytest.raises(InvalidTask, match="Queue 'default' is not valid for backend"),
    ):
        tasks.add.enqueue(1)


def test_another_alias_is_kept_with_the_task(clock):
    backend = {"BACKEND": "deadletter.tasks.DeadletterBackend", "QUEUES": ["mail"]}
    Queue.objects.get_or_create(name="mail")
    with override_settings(TASKS={"default": backend | {"QUEUES": []}, "mail": backend}):
        result = tasks.add.using(backend="mail", queue_name="mail").enqueue(1)
        testing.drain()

        again = result.task.get_result(result.id)

    assert (again.backend, again.task.backend, again.task.queue_name) == ("mail", "mail", "mail")
    assert again.return_value == 2


def test_the_settings_give_options_to_the_tasks_of_applications(clock, policy):
    from deadletter.worker.registry import registry

    policy(max_attempts=5)
    given = {
        "tests.sample.tasks.add": {"stream": "number-{a}"},
        "tests.sample.tasks.fail": {"max_attempts": 1, "keep_result": "never"},
    }
    backend = {"BACKEND": "deadletter.tasks.DeadletterBackend", "QUEUES": []}
    registry._tasks.clear()
    with override_settings(TASKS={"default": backend | {"OPTIONS": {"TASK_OPTIONS": given}}}):
        added, failed = tasks.add.enqueue(7), tasks.fail.enqueue()
        stored = {str(row.pk): row.stream for row in Message.objects.all()}
        tally = testing.drain()
    registry._tasks.clear()

    assert stored == {added.id: "number-7", failed.id: None}
    assert (tally.completed, tally.poisoned) == (1, 1)
