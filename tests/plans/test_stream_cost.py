"""
A stream costs what is taken of it, however many other streams there are and however long it is.

Before PostgreSQL 18 a row comparison ends a scan of an index only where its first column changes,
here at the end of the queue. That shows in pages and not in rows: what is passed does not leave the
index. The statements run inside the test's transaction, as in a caller's own.
"""

from __future__ import annotations

import pytest

from deadletter import Status, operations
from deadletter.lifecycle import (
    Batch,
    ClaimRequest,
    Completion,
    Failure,
    WorkBatch,
    claim,
    complete,
    process_batch,
    sweep,
)
from deadletter.lifecycle import streams as parking
from deadletter.models import Message, Queue
from deadletter.testing import frozen_clock

from .conftest import HELD, NOW, assert_bounded

pytestmark = pytest.mark.slow

POLICIES = ("strict", "release")


@pytest.fixture
def time(monkeypatch):
    monkeypatch.setattr(parking, "REACH", 100)  # every message that is parked costs pages
    with frozen_clock(NOW) as clock:
        yield clock


def settle(batch: Batch) -> WorkBatch:
    """Report on a batch in every way at once, and claim the next."""
    quarter = len(batch.ids) // 4
    return process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(id) for id in batch.ids[quarter : 3 * quarter]],
        failures=[Failure(id, error="x") for id in batch.ids[:quarter]],
        releases=batch.ids[3 * quarter :],
        claim=ClaimRequest(["q"], 100),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_claim_and_its_reports_read_only_what_is_taken(time, streams, seen_in_streams, policy):
    Queue.objects.filter(name="q").update(stream_policy=policy)
    seen_in_streams.clear()  # the edit looks at every blocked stream

    batch = claim(["q"], limit=100)
    again = settle(batch)

    assert len(batch) == 100
    assert len(again) > 50
    assert_bounded(
        seen_in_streams, "claim", "read_streams", "lease_runs", "complete_streamed", "wake"
    )


def test_a_stream_that_is_99_percent_of_the_table_is_read_from_its_head(
    time, streams, seen_in_streams
):
    is_long = streams == "one long stream"
    lease_what_is_in_front()

    batch = claim(["q"], limit=100)
    again = settle(batch)

    # The share of a stream in a claim is limited; its first message waits for its retry.
    assert len(batch) == (25 if is_long else 100)
    assert len(again) == (0 if is_long else 100)
    assert_bounded(seen_in_streams, "read_streams", "lease_runs", "wake", *["park"] * is_long)


def test_a_stage_gives_back_its_run_and_reads_no_other_message(time, streams, seen_in_streams):
    lease_what_is_in_front()
    batch = claim(["q"], limit=100)

    outcomes = complete(batch.token, batch.ids[:1], status=Status(8))
    process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(id, Status(8)) for id in batch.ids if id not in outcomes],
    )

    assert_bounded(seen_in_streams, "complete_stage", "release_rest", "wake")
    assert not Message.objects.filter(lease_token=batch.token).exists()


def test_leases_that_ran_out_are_found_by_their_streams(time, streams, seen_in_streams):
    lost = claim(["q"], limit=100, lease=60)
    time.advance(61)

    batch = claim(["q"], limit=100)

    assert (len(lost), len(batch)) == (100, 100)
    assert_bounded(seen_in_streams, "lease_runs")


def test_streams_that_are_held_take_a_few_probes_each(time, streams, seen_in_streams):
    lease_what_is_in_front()
    settle(claim(["q"], limit=100))

    swept = sweep()
    held = operations.list_streams(limit=10)
    first = operations.get_stream(held[0].queue, held[0].stream)

    assert swept.repaired == 0
    assert first == held[0]
    assert_bounded(seen_in_streams, "read_stuck_streams", "read_blocked_streams")


def lease_what_is_in_front() -> None:
    for _ in range(2 * HELD // 100):
        assert len(claim(["q"], limit=100, lease=600)) == 100
