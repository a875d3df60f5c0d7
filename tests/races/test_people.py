"""Operators and workers change the same messages, and two operators the same poison."""

from __future__ import annotations

import pytest

from deadletter import operations, send
from deadletter.lifecycle import (
    Completion,
    Failure,
    KeptResult,
    claim,
    complete,
    fail,
    process_batch,
)
from deadletter.models import Message, PoisonRecord, Result
from tests.sample import tasks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


def poisoned(stream=None) -> PoisonRecord:
    send("m", queue="q", stream=stream)
    batch = claim(["q"])
    fail(batch.token, [Failure(id, permanent=True) for id in batch.ids])
    return PoisonRecord.objects.get()


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("verb", ["remove", "poison"])
def test_a_message_claimed_a_moment_earlier_is_refused_to_the_operator(queue, stage, stream, verb):
    message = send("m", queue="q", stream=stream)
    worker = stage(lambda: claim(["q"]), after="lease_runs" if stream else "claim")
    act = {
        "remove": lambda: list(operations.remove([message.id]).refused),
        "poison": lambda: list(operations.poison([message.id], why="bad").refused),
    }[verb]

    operator = stage(act)
    operator.wait_blocked(by=worker)
    batch = worker.result()

    assert operator.result() == [message.id]
    complete(batch.token, batch.ids)
    assert (Message.objects.count(), PoisonRecord.objects.count()) == (0, 0)


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_task_claimed_a_moment_earlier_is_not_cancelled_and_succeeds(queue, stage, stream):
    result = tasks.add.using(queue_name="q", stream=stream).enqueue(1)
    worker = stage(lambda: claim(["q"], worker="w"), after="lease_runs" if stream else "claim")

    operator = stage(lambda: operations.cancel(result))
    operator.wait_blocked(by=worker)
    batch = worker.result()

    assert list(operator.result().refused) == [int(result.id)]
    kept = KeptResult("2", None)
    done = [Completion(m.id, token=batch.token, message=m, result=kept) for m in batch]
    process_batch(worker="w", completions=done)
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 2)
    assert Result.objects.count() == 1


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_task_that_is_being_cancelled_is_claimed_by_nobody(queue, stage, stream):
    result = tasks.add.using(queue_name="q", stream=stream).enqueue(1)
    other = tasks.add.using(queue_name="q").enqueue(2)
    operator = stage(lambda: operations.cancel(result), after="keep_results_of_messages")

    batch = claim(["q"])

    assert operator.is_running()
    assert batch.ids == [int(other.id)]
    assert operator.result().done == [int(result.id)]
    result.refresh()
    assert (result.status, result.state) == ("FAILED", "cancelled")


def test_of_two_who_cancel_a_task_one_does_and_there_is_one_result(queue, stage):
    result = tasks.add.using(queue_name="q").enqueue(1)
    first = stage(lambda: operations.cancel(result, by="ada"), after="delete")

    second = stage(lambda: operations.cancel(result, by="bob"))
    second.wait_blocked(by=first)

    assert first.result().done == [int(result.id)]
    assert (second.result().done, second.result().missing) == ([], [int(result.id)])
    assert (Message.objects.count(), Result.objects.count()) == (0, 1)


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("verb", ["remove", "poison"])
def test_a_message_the_operator_took_a_moment_earlier_is_not_claimed(queue, stage, stream, verb):
    message = send("m", queue="q", stream=stream)
    other = send("m", queue="q")
    act = {
        "remove": lambda: operations.remove([message.id]),
        "poison": lambda: operations.poison([message.id], why="bad"),
    }[verb]
    operator = stage(act, after="delete")

    batch = claim(["q"])

    assert operator.is_running()
    assert batch.ids == [other.id]
    operator.result()
    assert claim(["q"]).ids == []
    assert PoisonRecord.objects.count() == (1 if verb == "poison" else 0)


@pytest.mark.parametrize("stream", [None, "s"])
def test_two_retries_of_one_record_put_one_message_back(queue, stage, stream):
    record = poisoned(stream)
    first = stage(lambda: operations.retry_poison([record.id]), after="retry")

    second = stage(lambda: operations.retry_poison([record.id]))
    second.wait_blocked(by=first)

    assert first.result().retried == [record.id]
    assert second.result().missing == [record.id]
    assert Message.objects.get().id == record.message_id
    assert PoisonRecord.objects.count() == 0


@pytest.mark.parametrize("stream", [None, "s"])
def test_of_a_retry_and_a_removal_the_first_decides(queue, stage, stream):
    record = poisoned(stream)
    first = stage(lambda: operations.retry_poison([record.id]), after="retry")

    second = stage(lambda: operations.remove_poison([record.id]))
    second.wait_blocked(by=first)

    assert first.result().retried == [record.id]
    assert second.result().missing == [record.id]
    assert Message.objects.count() == 1


def test_a_retried_head_is_not_overtaken_by_a_claim_that_began_earlier(queue, stage):
    record = poisoned("s")
    follower = send("m", queue="q", stream="s")
    operator = stage(lambda: operations.retry_poison([record.id]), after="retry")

    early = claim(["q"])

    assert operator.holds_stream_locks() == 1
    assert early.ids == []
    operator.result()
    assert claim(["q"]).ids == [record.message_id, follower.id]
