"""Judgements of a claim: each defect that was found, as its smallest example."""

from __future__ import annotations

import pytest

from deadletter import FailureReason, Outgoing, send, send_many
from deadletter.lifecycle import ClaimRequest, LeaseLost, claim, complete, process_batch
from deadletter.models import PoisonRecord, Queue


@pytest.mark.parametrize("stream", [None, "s"])
def test_without_a_limit_a_message_may_be_claimed_for_ever(clock, counts, stream):
    Queue.objects.create(name="patient", max_attempts=None)
    send("mail", queue="patient", stream=stream)

    attempts = []
    for _ in range(5):
        attempts += [message.attempt for message in claim(["patient"])]
        clock.advance(61)

    assert attempts == [1, 2, 3, 4, 5]
    assert counts() == {"pending": 1}


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_limit_of_nothing_still_means_one_execution(clock, counts, stream):
    Queue.objects.create(name="once", max_attempts=0)
    send("mail", queue="once", stream=stream)

    first = claim(["once"])
    clock.advance(61)
    second = claim(["once"])

    assert [message.attempt for message in first] == [1]
    assert second.ids == []
    assert counts() == {"dead": 1}


def test_a_queue_named_twice_gives_each_message_once(clock, counts):
    message = send("mail")

    batch = claim(["default", "default"])

    assert batch.ids == [message.id]
    assert counts() == {"active": 1}


def test_a_lost_lease_is_named_as_the_cause_when_a_follower_is_taken_in_the_same_claim(clock):
    Queue.objects.create(name="once", max_attempts=1)
    head, follower = (send("mail", queue="once", stream="s") for _ in range(2))
    claim(["once"], limit=1, worker="gone")
    clock.advance(61)

    batch = claim(["once"])

    record = PoisonRecord.objects.get()
    assert batch.ids == [follower.id]
    assert record.message_id == head.id
    assert record.last_failure_reason == FailureReason.WORKER_LOST
    assert record.last_error == "worker gone did not report before its lease ran out"
    assert [entry["reason"] for entry in record.history] == [FailureReason.WORKER_LOST]


def test_a_handlers_smaller_limit_counts_crashes_too(clock, counts):
    send("fragile")
    request = ClaimRequest(["default"], max_attempts={"fragile": 1})
    first = process_batch(worker="w", claim=request)
    clock.advance(61)

    second = process_batch(worker="w", claim=request)

    assert [message.attempt for message in first] == [1]
    assert second.ids == []
    assert counts() == {"dead": 1}


@pytest.mark.slow
def test_a_claim_larger_than_one_look_is_filled(clock, counts):
    ids = send_many([Outgoing("mail") for _ in range(2_500)])

    batch = claim(limit=2_400)

    assert batch.ids == ids[:2_400]
    assert counts() == {"active": 2_400, "pending": 100}


def test_a_stream_taken_over_in_part_has_one_holder_even_when_the_clock_is_set_back(clock, counts):
    Queue.objects.create(name="q")
    head, *rest = send_many([Outgoing("mail", stream="s") for _ in range(3)], queue="q")
    first = claim(["q"], worker="one", lease=60)
    clock.advance(61)

    second = claim(["q"], limit=1, worker="two", lease=60)
    clock.advance(-30)

    assert (first.ids, second.ids) == ([head, *rest], [head])
    assert counts() == {"active": 1, "blocked": 2}
    with pytest.raises(LeaseLost) as lost:
        complete(first.token, first.ids)
    assert lost.value.ids == [head, *rest]
