"""The backend: enqueue, run, read the result."""

from __future__ import annotations

import pytest

from deadletter import operations, testing
from deadletter.models import Kind, Message, PoisonRecord, Result
from tests.sample import tasks

pytestmark = pytest.mark.django_db


def test_a_task_runs_and_its_result_is_kept(clock, counts):
    result = tasks.add.enqueue(2, b=3)
    assert counts() == {"pending": 1}
    assert (result.status, result.state) == ("READY", "pending")

    tally = testing.drain()
    result.refresh()

    assert tally.completed == 1
    assert counts() == {}
    assert (result.status, result.state, result.return_value) == ("SUCCESSFUL", "successful", 5)
    assert result.args == [2]
    assert result.kwargs == {"b": 3}
    assert result.worker_ids == ["drain"]
    assert result.errors == []
    assert Result.objects.get().expires_at is not None


@pytest.mark.parametrize("task", [tasks.add_async, tasks.add_atomic])
def test_async_and_atomic_tasks_keep_their_results(task, clock):
    result = task.enqueue(a=4)

    testing.drain()

    assert task.get_result(result.id).return_value == 5


def test_a_failed_task_is_ready_again_and_then_dead(clock, counts):
    result = tasks.fail.enqueue()

    testing.drain()
    result.refresh()
    first = (result.status, result.state, len(result.errors), result.worker_ids)
    clock.advance(3600)
    testing.drain()
    result.refresh()

    assert first == ("READY", "failed", 1, ["drain"])
    assert counts() == {"dead": 1}
    assert (result.status, result.state) == ("FAILED", "dead")
    assert result.worker_ids == ["drain", "drain"]
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert "as asked" in result.errors[0].traceback


def test_a_retried_task_succeeds_under_its_id(clock):
    result = tasks.fail_for_good.enqueue()
    testing.drain()
    record = PoisonRecord.objects.get()

    operations.retry_poison([record.pk])

    result.refresh()
    assert (result.status, result.state) == ("READY", "pending")
    assert Message.objects.get().kind == Kind.TASK


def test_a_return_value_that_is_no_json_fails_the_task(clock):
    result = tasks.answer_something_else.enqueue()

    testing.drain()

    result.refresh()
    assert result.status == "READY"
    assert result.errors[0].exception_class is TypeError
    assert "the return value is not JSON: Unsupported type" in result.errors[0].traceback


def test_a_removed_task_has_failed(clock):
    result = tasks.fail_for_good.enqueue()
    testing.drain()

    operations.remove_poison([PoisonRecord.objects.get().pk])

    result.refresh()
    assert (result.status, result.state) == ("FAILED", "removed")
    assert len(result.errors) == 1


def test_the_context_knows_result_and_attempt(clock):
    result = tasks.look.enqueue()

    testing.drain()

    result.refresh()
    assert result.return_value == {
        "id": result.id,
        "attempt": 1,
        "attempts": 1,
        "status": "RUNNING",
        "workers": ["drain"],
    }


def test_stream_and_key_are_filled_from_the_arguments(clock):
    first = tasks.welcome.enqueue(7)
    second = tasks.welcome.enqueue(user_id=7)
    other = tasks.welcome.using(stream="vip", key=None).enqueue(8)

    rows = {str(m.pk): (m.stream, m.key) for m in Message.objects.all()}

    assert first.id == second.id
    assert rows == {first.id: ("user-7", "welcome-7"), other.id: ("vip", None)}


def test_a_task_that_keeps_no_result_is_gone_when_it_is_done(clock):
    result = tasks.forget.enqueue()

    testing.drain()

    assert Result.objects.count() == 0
    with pytest.raises(Exception, match=result.id) as raised:
        result.refresh()
    assert type(raised.value).__name__ == "TaskResultDoesNotExist"
