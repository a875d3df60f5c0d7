"""
What is not claimable costs nothing: 100,000 scheduled, 300,000 parked, 100,000 poison.

Bounds are on rows read of the large tables, by PostgreSQL's own count; on SQLite on the steps of
its machine, ten for a row. They leave room for another plan, not for reading a crowd.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from deadletter import Outgoing, operations, send, send_many
from deadletter.lifecycle import (
    ClaimRequest,
    Completion,
    Failure,
    Progress,
    claim,
    complete,
    fail,
    process_batch,
    release,
    renew,
    sweep,
)
from deadletter.lifecycle.renewals import renew_unlocked_in
from deadletter.lifecycle.transaction import in_transaction
from deadletter.models import Message, PoisonRecord, Queue
from deadletter.testing import frozen_clock

from .conftest import NOW, assert_bounded

pytestmark = pytest.mark.slow


@pytest.fixture
def time():
    with frozen_clock(NOW) as clock:
        yield clock


def test_a_claim_of_100_reads_a_bounded_number_of_rows(time, seen):
    ids = send_many([Outgoing("m", priority=7) for _ in range(150)], queue="q")

    batch = claim(["q"], limit=100)

    assert batch.ids == ids[:100]
    assert_bounded(seen, "claim", rows=3_000)
    assert "deadletter_claim" in seen["claim"].indexes


def test_a_claim_from_a_backlog_reads_only_what_it_takes(time, seen):
    batch = claim(["backlog"], limit=100)

    assert len(batch) == 100
    assert_bounded(seen, "claim", rows=3_000)


def test_the_heads_of_streams_are_read_without_the_backlog_beside_them(time, seen):
    ids = send_many(
        [Outgoing("m", stream=f"s{n % 50}", at=NOW - timedelta(days=2)) for n in range(100)],
        queue="backlog",
    )

    batch = claim(["backlog"], limit=100)
    complete(batch.token, batch.ids)

    assert sorted(batch.ids) == ids
    assert_bounded(seen, "read_streams", "lease_runs", "complete_streamed", "wake", rows=8_000)


def test_an_empty_claim_beside_the_crowd_reads_next_to_nothing(time, seen):
    batch = claim(["q"], limit=100)

    assert batch.ids == []
    assert_bounded(seen, "read_levels_of", rows=200)


def test_settling_plain_messages_reads_only_them(time, seen):
    send_many([Outgoing("m", priority=7) for _ in range(100)], queue="q")
    batch = claim(["q"], limit=100)

    renew(batch.token, batch.ids)
    complete(batch.token, batch.ids[:40])
    fail(batch.token, [Failure(id, error="x") for id in batch.ids[40:60]])
    fail(batch.token, [Failure(id, permanent=True) for id in batch.ids[60:80]])
    release(batch.token, batch.ids[80:])

    names = [
        "renew",
        "complete",
        "read_for_failure",
        "fail",
        "release",
        "read_for_quarantine",
        "quarantine",
    ]
    assert_bounded(seen, *names, "delete", rows=3_000)


def test_a_failure_is_not_compared_with_every_other(time, seen):
    send_many([Outgoing("m", priority=7) for _ in range(100)], queue="q")
    batch = claim(["q"], limit=100)

    fail(batch.token, [Failure(id, error="x") for id in batch.ids])

    assert_bounded(seen, "read_for_failure", "fail", rows=3_000)


def test_progress_is_written_without_reading_other_messages(time, seen):
    send_many([Outgoing("m", priority=7) for _ in range(100)], queue="q")
    batch = claim(["q"], limit=100)
    report = {"done": 1, "total": 2, "note": ""}

    found = process_batch(
        worker="w", progress=[Progress(id, 8, batch.token, report) for id in batch.ids]
    )

    assert found.recorded == sorted(batch.ids)
    assert_bounded(seen, "record_stages", "record_progress", rows=3_000)


def test_arrivals_behind_a_long_blocked_stream_are_parked_without_reading_it(time, seen):
    ids = send_many([Outgoing("m", stream="long") for _ in range(100)], queue="q")

    batch = claim(["q"], limit=100)

    assert batch.ids == []
    assert Message.objects.filter(pk__in=ids, available_at=None).count() == 100
    assert_bounded(seen, "claim", "read_streams", "park")
    if "deadletter_stream" in seen["read_streams"].indexes:
        assert seen["read_streams"].rows <= 1_000


def test_other_streams_beside_a_long_blocked_one_do_not_read_it(time, seen):
    """Their names are in front of its own: a scan that does not end with its stream meets it."""
    names = [f"a{n}" for n in range(50)]
    ids = send_many([Outgoing("m", stream=name) for name in names * 2], queue="q")

    batch = claim(["q"], limit=100)
    complete(batch.token, batch.ids[:50])
    fail(batch.token, [Failure(id, error="x") for id in batch.ids[50:]])

    assert sorted(batch.ids) == ids
    assert_bounded(seen, "read_streams", "lease_runs", "complete_streamed", "wake")


def test_a_long_stream_is_worked_off_at_the_cost_of_what_is_taken(time, seen):
    time.advance(timedelta(hours=2))
    batch = claim(["q"], limit=100)
    first, *rest = batch.ids

    again = process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(id) for id in rest[:10]],
        failures=[Failure(first, error="x", delay=600)],
        releases=rest[10:],
        claim=ClaimRequest(["q"], 100),
    )
    time.advance(601)
    last = claim(["q"], limit=100)
    complete(last.token, last.ids)

    assert len(batch.ids) == 25
    assert again.ids == []
    assert last.ids[0] == first
    names = ["lease_runs", "lock_streams", "complete_streamed", "release", "fail", "wake", "park"]
    assert_bounded(seen, *names)


@pytest.mark.parametrize("policy", ["release", "halt"])
def test_the_other_policies_cost_no_more(time, seen, policy):
    Queue.objects.filter(name="q").update(stream_policy=policy)
    time.advance(timedelta(hours=2))

    batch = claim(["q"], limit=100)
    fail(batch.token, [Failure(batch.ids[0], permanent=True)])
    release(batch.token, batch.ids[1:])
    again = claim(["q"], limit=100)

    assert len(batch.ids) == 25
    assert again.ids[:24] == (batch.ids[1:] if policy == "release" else [])
    assert_bounded(seen, "read_streams", "wake", "read_for_quarantine", "quarantine")


def test_a_sweep_probes_each_stream_once_however_much_is_parked_in_it(time, seen):
    Queue.objects.filter(name="q").update(poison_retention=timedelta(days=1))
    send("m", queue="q", expires_in=5)
    time.advance(6)

    swept = sweep()

    assert (swept.expired, swept.forgotten, swept.repaired) == (1, 0, 0)
    assert_bounded(seen, "read_expired", "read_old_poison", "read_stuck_streams", rows=1_000)


def test_old_poison_is_forgotten_a_bounded_number_at_a_time(time, seen):
    PoisonRecord.objects.filter(message_id__lte=1_000_000_100).update(
        poisoned_at=NOW - timedelta(days=30)
    )
    Queue.objects.filter(name="q").update(poison_retention=timedelta(days=7))

    swept = sweep()

    assert swept.forgotten == 100
    assert_bounded(seen, "read_old_poison")


def test_people_find_their_records_by_index(time, seen):
    record = PoisonRecord.objects.first()
    other = PoisonRecord.objects.last()

    assert operations.retry_poison([record.pk]).retried == [record.pk]
    assert operations.remove_poison([other.pk]).removed == [other.pk]

    assert_bounded(seen, "lock_streams_of_poison", "retry", "wake", rows=200)


def test_the_bounds_can_be_broken(time, seen):
    """Without its index the claim reads the crowd, and these tests would say so."""
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX deadletter_claim")
    send_many([Outgoing("m", priority=7) for _ in range(10)], queue="q")

    claim(["q"], limit=5)

    with pytest.raises(AssertionError):
        assert_bounded(seen, "claim")


def test_reports_that_met_a_lock_are_settled_by_reading_only_them(time, seen):
    send_many([Outgoing("m", priority=7, stream=f"s{n % 25}") for n in range(50)], queue="q")
    send_many([Outgoing("m", priority=7) for _ in range(50)], queue="q")
    batch = claim(["q"], limit=100)
    tokens = dict.fromkeys(batch.ids, batch.token)

    in_transaction(lambda tx: renew_unlocked_in(tx, {**tokens, 1: batch.token}, lease=60))
    answer = process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(id) for id in batch.ids],
        careful=True,
    )

    assert len(answer.outcomes) == 100
    if connection.vendor == "postgresql":
        names = ("renew_unlocked", "try_lock_streams", "try_lock_messages", "read_leases")
        assert_bounded(seen, *names, rows=3_000)
