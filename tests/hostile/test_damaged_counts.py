"""Counts and policies by reason that were damaged by hand break neither a claim nor a settle."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction

from deadletter import FailureReason, send
from deadletter.failure_policy import read_counts, read_reasons
from deadletter.lifecycle import Failure, abandon, claim, fail
from deadletter.models import Message, PoisonRecord, Queue, WorkerProcess

pytestmark = pytest.mark.slow

LONG = "9" * 5_000
COUNTS = {
    "text": '"abc"',
    "a list": "[1, 2]",
    "a number": "7",
    "null": "null",
    "too long a number": LONG,
    "too long a count": f'{{"10": {LONG}, "1": {LONG}}}',
    "a large float": '{"10": 1e308}',
    "a fraction": '{"10": 1.5}',
    "64 bits": '{"10": 9223372036854775807}',
    "32 bits": '{"10": 4294967296, "1": 2147483648}',
    "negative": '{"10": -9223372036854775808}',
    "true": '{"10": true}',
    "an object": '{"10": {"a": 1}}',
    "deep": "[" * 900 + "]" * 900,
    "too deep": "[" * 3_000 + "]" * 3_000,
}
POLICIES = {
    "text": '"abc"',
    "a list": "[1, 2]",
    "null": "null",
    "no object": '{"UNKNOWN": 7}',
    "too long a number": LONG,
    "too many attempts": f'{{"UNKNOWN": {{"max_attempts": {LONG}}}}}',
    "fewer than none": '{"UNKNOWN": {"max_attempts": -99999999999999999999}}',
    "a large float": '{"UNKNOWN": {"max_attempts": -1e300}}',
    "too much jitter": f'{{"UNKNOWN": {{"jitter": {"9" * 400}}}}}',
    "too long": f'{{"UNKNOWN": {{"backoff_base": {"9" * 400}}}}}',
    "too deep": "[" * 3_000 + "]" * 3_000,
}


def damage(table: str, column: str, text: str) -> None:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column} = %s", [text])
    except DatabaseError as error:
        pytest.skip(f"cannot be stored here: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("reasons", [{}, {"WORKER_LOST": {"max_attempts": 20}}], ids=["", "own"])
@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("text", COUNTS.values(), ids=COUNTS)
def test_damaged_counts_count_as_none(clock, policy, text, stream, reasons):
    policy(max_attempts=5, reason_policies=reasons)
    id = send("mail", stream=stream).pk
    claim()
    damage("deadletter_message", "reason_counts", text)
    clock.advance(61)
    batch = claim()
    assert batch.ids == [id]
    assert read_counts(Message.objects.get().reason_counts) in ({"10": 1}, {})

    damage("deadletter_message", "reason_counts", text)
    fail(batch.token, [Failure(id, "no", FailureReason.TRANSPORT_UNAVAILABLE, delay=1)])
    clock.advance(1)
    damage("deadletter_message", "reason_counts", text)
    batch = claim()
    abandon(batch.token, id)
    damage("deadletter_message", "reason_counts", text)
    Message.objects.update(attempts=50)

    assert claim().dead == [id]
    assert PoisonRecord.objects.get().attempts == 50


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("text", POLICIES.values(), ids=POLICIES)
def test_damaged_policies_are_none(clock, policy, text, stream):
    policy(max_attempts=3)
    id = send("mail", stream=stream).pk
    damage("deadletter_queue", "reason_policies", text)
    assert claim().ids == [id]
    clock.advance(61)
    batch = claim()
    assert batch.ids == [id]
    fail(batch.token, [Failure(id, "no", FailureReason.TRANSPORT_UNAVAILABLE, delay=1)])
    clock.advance(1)
    batch = claim()
    assert batch.ids == [id]

    abandon(batch.token, id)

    assert PoisonRecord.objects.get().max_attempts == 3
    assert Queue.objects.get().name == "default"


@pytest.mark.parametrize("text", [LONG, f'["default", {LONG}]', "[" * 3_000 + "]" * 3_000])
@pytest.mark.parametrize("column", ["queues", "handlers"])
def test_a_damaged_row_of_a_worker_breaks_no_claim(clock, policy, column, text):
    policy(max_attempts=3)
    id = send("mail").pk
    Message.objects.update(unregistered_count=50, failure_reason=FailureReason.UNREGISTERED)
    at = {"started_at": clock.now, "seen_at": clock.now}
    WorkerProcess.objects.create(name="w", host="h", pid=1, version="1", concurrency=1, **at)
    damage("deadletter_worker", column, text)

    assert claim().dead == [id]


def test_a_share_that_no_float_can_hold_is_refused_by_its_key():
    with pytest.raises(ValueError, match="UNKNOWN: jitter: expected a number from 0 to 1"):
        read_reasons({"UNKNOWN": {"jitter": 10**400}})
