"""Results: read in every state of a task, kept as long as asked, and deleted in pieces."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import lifecycle, operations, send, testing
from deadletter.lifecycle import sweeps
from deadletter.models import Message, PoisonRecord, Queue, Result, WorkerProcess
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

pytestmark = pytest.mark.django_db

DoesNotExist = primary().result_does_not_exist


def test_a_running_task_names_its_worker(clock):
    result = tasks.add.enqueue(1)
    clock.advance(5)
    lifecycle.claim(worker="w1", lease=60)

    result.refresh()

    assert (result.status, result.state, result.worker_ids) == ("RUNNING", "active", ["w1"])
    assert result.started_at == result.last_attempted_at == clock.now
    assert result.finished_at is None
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018 - the property raises


def test_a_long_attempt_began_when_its_worker_says(clock):
    result = tasks.add.enqueue(1)
    began = clock.now
    lifecycle.claim(worker="w1", lease=60)
    clock.advance(300)
    Message.objects.update(available_at=clock.now + timedelta(seconds=60))  # as a renewal does
    WorkerProcess.objects.create(
        name="w1",
        host="h",
        pid=1,
        version="1",
        concurrency=1,
        started_at=began,
        seen_at=clock.now,
        running=[{"id": int(result.id), "seconds": 300.0}],
    )

    result.refresh()

    assert result.started_at == began


def test_every_attempt_has_its_worker_also_lost_ones(clock):
    result = tasks.add.enqueue(1)
    first = lifecycle.claim(worker="w1", lease=60)
    lifecycle.fail(first.token, [lifecycle.Failure(first.ids[0], error="no")])
    clock.advance(3600)
    lifecycle.claim(worker="w2", lease=60)
    clock.advance(61)  # w2 is never heard of again
    third = lifecycle.claim(worker="w3", lease=60)
    lifecycle.release(third.token, third.ids)
    lifecycle.claim(worker="w4", lease=60)

    result.refresh()

    assert result.worker_ids == ["w1", "w2", "w4"]
    assert result.attempts == 3
    assert [error.exception_class_path for error in result.errors] == [
        "deadletter.exceptions.DeadletterError",
        "deadletter.exceptions.WorkerLost",
    ]
    assert [error.exception_class.__name__ for error in result.errors] == [
        "DeadletterError",
        "WorkerLost",
    ]


def test_a_deferral_is_no_attempt(clock):
    result = tasks.add.enqueue(1)
    Message.objects.update(name="tests.sample.tasks.gone")

    assert testing.drain().deferred == 1

    found = primary().backends["default"].get_result(result.id)
    assert (found.status, found.worker_ids, found.errors) == ("READY", [], [])


def test_a_result_whose_code_is_gone_can_be_read(clock):
    result = tasks.add.enqueue(1)
    testing.drain()
    Result.objects.update(name="tests.sample.tasks.gone")

    found = primary().backends["default"].get_result(result.id)

    assert found.task.module_path == "tests.sample.tasks.gone"
    assert (found.task.name, found.return_value, found.args) == ("gone", 2, [1])
    with pytest.raises(LookupError, match=r"tests\.sample\.tasks\.gone is not defined here"):
        found.task.call(1)


def test_a_task_in_a_dead_queue_is_found_by_its_id(clock, policy):
    dead = policy("dead")
    policy(on_poison="dead_queue", dead_queue=dead)
    result = tasks.fail_for_good.enqueue()
    testing.drain(["default"])
    result.refresh()
    moved = (result.id, result.status, result.state, len(result.errors))

    again = operations.retry_dead([Message.objects.get().pk])
    result.refresh()

    assert moved == (result.id, "FAILED", "dead", 1)
    assert len(again.done) == 1
    assert (result.status, result.state) == ("READY", "pending")


def test_a_task_that_succeeds_in_a_dead_queue_has_its_result_under_its_id(clock, policy):
    policy(on_poison="dead_queue", dead_queue=policy("dead"))
    result = tasks.add.enqueue(1)
    operations.poison([int(result.id)], why="to look at it")
    assert Message.objects.get().pk != int(result.id)

    testing.drain(["dead"])

    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 2)


def test_a_discarded_task_has_failed(clock, policy):
    policy(on_poison="discard")
    result = tasks.fail_for_good.enqueue()

    testing.drain()

    result.refresh()
    assert (result.status, result.state, len(result.errors)) == ("FAILED", "removed", 1)


def test_a_cancelled_task_has_failed(clock):
    result = tasks.add.enqueue(1)

    done = operations.remove([int(result.id)])

    result.refresh()
    assert done.done == [int(result.id)]
    assert (result.status, result.state, result.worker_ids) == ("FAILED", "cancelled", [])


def test_records_past_their_retention_leave_results(clock, policy):
    policy(poison_retention=timedelta(days=1))
    result = tasks.fail_for_good.enqueue()
    testing.drain()
    clock.advance(86_401)

    swept = sweeps.sweep()

    result.refresh()
    assert (swept.forgotten, PoisonRecord.objects.count()) == (1, 0)
    assert (result.status, result.state) == ("FAILED", "removed")


def test_results_are_deleted_when_their_time_is_over(clock, settings):
    short = tasks.add.enqueue(1)
    testing.drain()
    settings.DEADLETTER = {**settings.DEADLETTER, "RESULTS_KEPT": None}
    from deadletter.worker.registry import registry

    registry._tasks.clear()
    kept = tasks.add.enqueue(2)
    testing.drain()
    registry._tasks.clear()

    clock.advance(7 * 86_400 - 1)
    before = sweeps.sweep().results
    clock.advance(1)
    after = sweeps.sweep().results

    assert (before, after) == (0, 1)
    assert list(Result.objects.values_list("pk", flat=True)) == [int(kept.id)]
    with pytest.raises(DoesNotExist):
        short.refresh()


def test_more_results_than_a_piece_are_all_deleted(clock):
    Result.objects.bulk_create(
        Result(
            message_id=number,
            queue="default",
            name="t",
            kind="task",
            outcome="successful",
            created_at=clock.now,
            finished_at=clock.now,
            expires_at=clock.now,
        )
        for number in range(1, sweeps.CHUNK + 2)
    )

    assert sweeps.sweep().results == sweeps.CHUNK + 1
    assert Result.objects.count() == 0


@pytest.mark.parametrize("id", ["", "x", "-1", "1.5", "9" * 30, "٣", "0", None, "1 or 1"])
def test_ids_that_cannot_exist_are_not_found(id):
    with pytest.raises(DoesNotExist):
        tasks.add.get_result(id)


def test_a_message_is_no_task(clock):
    message = send("sample.work")

    with pytest.raises(DoesNotExist):
        tasks.add.get_result(str(message.pk))


def test_the_result_of_another_task_is_refused(clock):
    from importlib import import_module

    mismatch = import_module(f"{primary().name}.exceptions").TaskResultMismatch
    result = tasks.add.enqueue(1)

    with pytest.raises(mismatch, match=r"received 'tests\.sample\.tasks\.add'"):
        tasks.look.get_result(result.id)


def test_a_handler_that_asks_keeps_its_result(clock, handles):
    from deadletter.worker.registry import _encode

    handles("mail", lambda message: {"sent": 3}, encode=_encode, keep_result=timedelta(hours=1))
    handles("note", lambda message: {"sent": 3})
    kept, other = send("mail", {"to": "a"}), send("note")

    testing.drain()

    row = Result.objects.get()
    assert (row.pk, row.kind, row.value) == (kept.pk, "message", {"sent": 3})
    assert row.expires_at == clock.now + timedelta(hours=1)
    assert not Result.objects.filter(pk=other.pk).exists()


def test_a_value_that_cannot_be_stored_fails_only_its_own_task(clock, counts):
    bad = tasks.answer.enqueue("\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    nul = tasks.answer_nul.enqueue()
    good = tasks.add.enqueue(1)

    tally = testing.drain()

    assert (tally.completed, tally.failed) == (2, 1)
    assert tasks.answer.get_result(bad.id).status == "SUCCESSFUL"
    assert tasks.add.get_result(good.id).return_value == 2
    nul.refresh()
    assert nul.status == "READY"
    assert "return value" in nul.errors[0].traceback


def test_a_return_value_that_contains_itself_fails_only_its_own_task(clock, counts):
    bad, good = tasks.answer_endless.enqueue(), tasks.add.enqueue(1)

    tally = testing.drain()

    bad.refresh()
    assert (tally.completed, tally.failed, counts()) == (1, 1, {"failed": 1})
    assert tasks.add.get_result(good.id).return_value == 2
    assert bad.errors[0].exception_class is ValueError
    assert bad.errors[0].traceback.splitlines()[-1] == (
        "ValueError: the return value is not JSON: nested deeper than 64 levels, or contains itself"
    )


def test_a_lost_lease_leaves_no_result(clock):
    tasks.add.enqueue(1)
    batch = lifecycle.claim(worker="w1", lease=60)
    message = batch.messages[0]
    clock.advance(61)

    done = lifecycle.process_batch(
        worker="w1",
        completions=[
            lifecycle.Completion(
                message.id,
                token=batch.token,
                message=message,
                result=lifecycle.KeptResult("5", None),
            )
        ],
    )

    assert done.lost == [message.id]
    assert (Result.objects.count(), Message.objects.count()) == (0, 1)


def test_the_queues_of_tasks_are_created_by_migrate(settings):
    from deadletter.operations.declared_queues import create_declared_queues

    settings.TASKS = {
        "default": {"BACKEND": "deadletter.tasks.DeadletterBackend", "QUEUES": ["default", "post"]}
    }

    create_declared_queues(using="default")

    assert Queue.objects.get(name="post").unregistered_attempts == 10


def test_the_progress_of_a_task_is_in_its_result(clock):
    result = tasks.count_up.enqueue(3)

    testing.drain()

    result.refresh()
    assert result.return_value == 3
    assert result.progress is not None
    assert {key: result.progress[key] for key in ("done", "total", "note")} == {
        "done": 3,
        "total": 3,
        "note": "step 3",
    }
