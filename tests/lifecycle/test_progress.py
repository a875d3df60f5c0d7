"""Reports of progress on the row: who writes them, and how long they are kept."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from deadletter import Status, operations, send, sql, testing
from deadletter.lifecycle import (
    Claimed,
    Completion,
    Failure,
    KeptResult,
    Progress,
    claim,
    complete,
    fail,
    process_batch,
)
from deadletter.models import Message, PoisonRecord, Queue, Result

HOSTILE = "a\x00b \ud800 \u202e</script> %(now)s '; -- \" \\ 😀 $.at"
SAFE = "a�b ? \u202e</script> %(now)s '; -- \" \\ 😀 $.at"


def progress(id: int) -> Any:
    return Message.objects.values_list("progress", flat=True).get(pk=id)


def report(done: float = 3, total: float | None = 10, note: str = "") -> dict[str, Any]:
    return {"done": done, "total": total, "note": note}


def at(clock: Any) -> dict[str, str]:
    return {"at": clock.now.isoformat()}


def leased() -> Claimed:
    """A message under the lease of the worker w1."""
    send("job")
    (message,) = claim(limit=1, worker="w1").messages
    return message


def test_a_report_is_on_the_row_with_the_time_of_the_database(clock):
    first, second = leased(), leased()

    found = process_batch(
        worker="w",
        progress=[
            Progress(first.id, 0, first.token, report(3, 10, "half")),
            Progress(second.id, 0, second.token, report(0.5, None)),
        ],
    )

    assert found.recorded == [first.id, second.id]
    assert progress(first.id) == report(3, 10, "half") | at(clock)
    assert progress(second.id) == report(0.5, None) | at(clock)
    assert Message.objects.filter(status=1, attempts=1).count() == 2


def test_the_latest_report_replaces_the_one_before(clock):
    message = leased()
    step = Progress(message.id, 0, message.token, report(1))
    process_batch(worker="w", progress=[step])
    clock.advance(5)

    process_batch(worker="w", progress=[step._replace(report=report(2, None, "x"))])

    assert progress(message.id) == report(2, None, "x") | at(clock)


def test_only_the_holder_of_a_live_lease_reports(clock):
    message = leased()

    def write(done: int, token: str) -> list[int]:
        step = Progress(message.id, 0, token, report(done))
        return list(process_batch(worker="w", progress=[step]).recorded)

    assert write(1, "0" * 16) == []
    assert progress(message.id) is None
    assert write(2, message.token) == [message.id]
    kept = progress(message.id)
    clock.advance(61)
    assert write(3, message.token) == []
    assert progress(message.id) == kept


def test_a_stage_and_a_report_are_written_together(clock):
    first, second, third = leased(), leased(), leased()

    found = process_batch(
        worker="w",
        progress=[
            Progress(first.id, 8, first.token, report(1)),
            Progress(second.id, 16, second.token),
            Progress(third.id, 0, third.token, report(3)),
        ],
    )

    rows = Message.objects.order_by("id").values_list("status", "progress")
    assert found.recorded == [first.id, second.id, third.id]
    assert list(rows) == [
        (1 | 8, report(1) | at(clock)),
        (1 | 16, None),
        (1, report(3) | at(clock)),
    ]


def test_a_report_waits_for_the_stage_whose_row_was_locked(clock, monkeypatch):
    message = leased()
    step = Progress(message.id, 8, message.token, report(1))
    real = sql.run

    def locked(connection: Any, name: str, params: Any, **options: Any) -> Any:
        # The row is free again when the next statement runs.
        return [] if name == "record_stages" else real(connection, name, params, **options)

    monkeypatch.setattr(sql, "run", locked)
    found = process_batch(worker="w", progress=[step])

    # Otherwise the stage would be taken for written, too.
    assert found.recorded == []
    assert progress(message.id) is None


def test_hostile_text_is_stored_as_text(clock):
    message = leased()
    message.report(1, note=HOSTILE)

    fail(message.token, [Failure(message.id, message=message)])

    assert progress(message.id) == report(1, None, SAFE) | at(clock)


@pytest.mark.parametrize("done", [10**18, 10**300, 1e300, 5e-324, 0.1])
def test_every_number_that_is_accepted_can_be_stored(clock, done):
    message = leased()
    message.report(done, done)

    fail(message.token, [Failure(message.id, message=message)])

    # PostgreSQL returns 1e300 as an integer.
    assert (
        float(progress(message.id)["done"]) == float(progress(message.id)["total"]) == float(done)
    )


# What was reported last, when the attempt ends.


def test_a_failure_carries_the_last_report(clock, counts):
    message = leased()
    message.report(3, 10, "half")

    fail(message.token, [Failure(message.id, error="x", message=message)])

    assert progress(message.id) == report(3, 10, "half") | at(clock)
    assert counts() == {"failed": 1}


def test_a_report_that_is_on_the_row_is_not_written_again_by_the_failure(clock):
    message = leased()
    message.report(3)
    process_batch(worker="w", progress=[Progress(message.id, 0, message.token, message.progress)])
    message.written_progress = message.progress
    kept = progress(message.id)
    clock.advance(5)

    fail(message.token, [Failure(message.id, message=message)])

    assert progress(message.id) == kept


@pytest.mark.parametrize("token", ["0" * 16, None], ids=["wrong token", "lease is over"])
def test_a_failure_that_is_refused_leaves_no_report(clock, token):
    message = leased()
    message.report(3)
    if token is None:
        clock.advance(61)

    found = process_batch(
        worker="w", failures=[Failure(message.id, token=token or message.token, message=message)]
    )

    assert found.lost == [message.id]
    assert progress(message.id) is None


def test_the_stage_of_an_atomic_handler_carries_the_last_report(clock, handles):
    def function(message: Any) -> None:
        if message.status & Status(8):
            raise RuntimeError("no")
        message.report(3, 10)
        message.next_stage(Status(8))

    handles("job", function, atomic=True)
    id = send("job").pk

    tally = testing.drain()

    assert (tally.staged, tally.failed) == (1, 1)
    assert progress(id) == report(3, 10) | at(clock)


def test_a_finished_stage_carries_the_last_report(clock):
    message = leased()
    message.report(3, 10)

    process_batch(worker="w", completions=[Completion(message.id, 8, message.token, None, message)])

    row = Message.objects.get()
    assert (row.status, row.lease_token) == (1 | 8, None)
    assert row.progress == report(3, 10) | at(clock)


def test_a_new_attempt_finds_the_report_on_the_row_until_it_reports_itself(clock):
    message = leased()
    message.report(3, 10)
    fail(message.token, [Failure(message.id, delay=0, message=message)])
    kept = progress(message.id)

    (again,) = claim().messages

    assert again.progress is None
    fail(again.token, [Failure(again.id, delay=0, message=again)])
    assert progress(message.id) == kept
    clock.advance(5)
    (third,) = claim().messages
    third.report(1, 10)
    fail(third.token, [Failure(third.id, message=third)])
    assert progress(message.id) == report(1, 10) | at(clock)


def test_a_lease_that_ran_out_keeps_the_report(clock):
    message = leased()
    process_batch(worker="w", progress=[Progress(message.id, 0, message.token, report(3))])
    kept = progress(message.id)
    clock.advance(61)

    assert claim().ids == [message.id]

    assert progress(message.id) == kept


def test_poison_keeps_report_and_workers_until_a_retry(clock, counts):
    message = leased()
    message.report(3, 10, "half")
    fail(message.token, [Failure(message.id, permanent=True, message=message)])

    record = PoisonRecord.objects.get()
    assert (record.progress, record.workers) == (report(3, 10, "half") | at(clock), ["w1"])

    operations.retry_poison([record.pk])

    row = Message.objects.get()
    assert (row.progress, row.workers) == (record.progress, record.workers)
    assert counts() == {"pending": 1}


def test_a_dead_queue_keeps_report_and_workers_until_a_retry(clock, policy, counts):
    policy(on_poison="dead_queue", dead_queue=policy("dead"))
    message = leased()
    message.report(3, 10, "half")
    fail(message.token, [Failure(message.id, permanent=True, message=message)])

    copy = Message.objects.get(queue=Queue.objects.get(name="dead"))
    assert (copy.progress, copy.workers) == (report(3, 10, "half") | at(clock), ["w1"])

    operations.retry_dead([copy.pk])

    row = Message.objects.get()
    assert (row.pk, row.queue.name) == (message.id, "default")
    assert (row.progress, row.workers) == (copy.progress, copy.workers)
    assert counts() == {"pending": 1}


def test_a_completed_message_is_gone_with_its_report(clock, counts):
    message = leased()
    message.report(10, 10)

    complete(message.token, [message.id])

    assert counts() == {}
    assert message.progress == report(10, 10)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_result_keeps_the_last_report(clock, handles, atomic):
    def function(message: Any) -> None:
        message.report(1, 10)
        message.report(10, 10, "all")

    handles("job", function, encode=json.dumps, keep_result=timedelta(days=1), atomic=atomic)
    send("job")

    testing.drain()

    assert Result.objects.get().progress == report(10, 10, "all") | at(clock)


def test_a_result_keeps_the_time_of_a_report_that_was_on_the_row(clock):
    message = leased()
    message.report(3)
    process_batch(worker="w", progress=[Progress(message.id, 0, message.token, message.progress)])
    message.written_progress = message.progress
    kept = progress(message.id)
    clock.advance(5)
    result = KeptResult("null", None, message.progress)
    done = Completion(message.id, token=message.token, message=message, result=result)

    process_batch(worker="w", completions=[done])

    assert Result.objects.get().progress == kept


# Without a worker that watches.


@pytest.mark.parametrize("kind", ["plain", "async", "atomic"])
def test_a_drain_writes_the_last_report_of_a_failed_attempt(clock, handles, kind):
    def function(message: Any) -> None:
        message.report(1, 10)
        message.report(2, 10, "second")
        raise RuntimeError("no")

    async def function_async(message: Any) -> None:
        function(message)

    handles("job", function_async if kind == "async" else function, atomic=kind == "atomic")
    id = send("job").pk

    tally = testing.drain()

    assert tally.failed == 1
    assert progress(id) == report(2, 10, "second") | at(clock)


def test_a_bad_report_fails_the_attempt(clock, handles):
    handles("job", lambda message: message.report(-1))
    send("job")

    testing.drain()

    row = Message.objects.get()
    assert "ValueError: report: done is -1" in row.error
    assert row.progress is None
