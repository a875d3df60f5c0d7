"""N = max_attempts means N executions, however they end."""

from __future__ import annotations

import pytest

from deadletter import FailureReason, LeaseLost, Status, send
from deadletter.lifecycle import (
    ClaimRequest,
    Failure,
    Poisoned,
    Scheduled,
    abandon,
    claim,
    complete,
    fail,
    process_batch,
)
from deadletter.models import Message, PoisonRecord

EVERY_N = range(13)


@pytest.mark.parametrize("n", EVERY_N)
def test_a_message_that_always_fails_is_executed_n_times_then_is_poison(clock, counts, policy, n):
    policy(max_attempts=n)
    message = send("mail")
    executions = 0
    outcomes = []

    for _ in range(20):
        clock.advance(3600)
        batch = claim(worker="w1")
        executions += len(batch)
        outcomes += fail(batch.token, [Failure(id, error="boom") for id in batch.ids]).values()

    record = PoisonRecord.objects.get()
    assert executions == record.attempts == max(n, 1)
    assert record.message_id == message.id
    assert outcomes[-1] == Poisoned(attempts=max(n, 1))
    assert all(isinstance(outcome, Scheduled) for outcome in outcomes[:-1])
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("n", EVERY_N)
def test_a_message_whose_leases_run_out_is_handed_out_n_times_then_is_poison(
    clock, counts, policy, n
):
    policy(max_attempts=n)
    message = send("mail")
    executions = 0

    for _ in range(20):
        executions += len(claim(worker="w1", lease=60))
        clock.advance(60)

    record = PoisonRecord.objects.get()
    assert executions == record.attempts == max(n, 1)
    assert (record.message_id, record.reason) == (message.id, FailureReason.POISON_MESSAGE)
    assert record.last_failure_reason == FailureReason.WORKER_LOST
    assert record.last_error == "worker w1 did not report before its lease ran out"
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("n", EVERY_N)
def test_in_a_stream_the_leases_that_run_out_are_counted_the_same(clock, counts, policy, n):
    policy(max_attempts=n)
    send("mail", stream="a")
    executions = 0

    for _ in range(20):
        executions += len(claim(lease=60))
        clock.advance(60)

    assert executions == PoisonRecord.objects.get().attempts == max(n, 1)
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("n", range(1, 13))
def test_abandons_release_until_the_nth_which_poisons(clock, counts, policy, n):  # A7, A13
    policy(max_attempts=n)
    message = send("mail")
    outcomes = []

    for _ in range(n):
        batch = claim()
        outcomes.append(abandon(batch.token, message.id))

    assert [type(outcome).__name__ for outcome in outcomes] == ["Released"] * (n - 1) + ["Poisoned"]
    assert outcomes[-1] == Poisoned(attempts=n)
    assert counts() == {"dead": 1}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [None, "a"])
def test_without_a_limit_a_message_is_never_given_up(clock, counts, policy, stream):  # B17, C28
    policy(max_attempts=None)
    message = send("mail", stream=stream)

    for attempt in range(1, 31):
        clock.advance(3600)
        batch = claim()
        assert [item.attempt for item in batch] == [attempt]
        fail(batch.token, [Failure(message.id, error="boom")])

    assert counts() == {"failed": 1}
    assert Message.objects.get().attempts == 30


@pytest.mark.parametrize("stream", [None, "a"])
def test_without_a_limit_leases_may_run_out_for_ever(clock, counts, policy, stream):  # B17
    policy(max_attempts=None)
    send("mail", stream=stream)

    for attempt in range(1, 6):
        assert [item.attempt for item in claim(lease=60)] == [attempt]
        clock.advance(60)

    assert counts() == {"pending": 1}
    assert Message.objects.get().attempts == 5


def test_crashes_and_failures_share_one_count(clock, counts, policy):  # D1, U15
    policy(max_attempts=3)
    message = send("mail")
    claim(lease=60)
    clock.advance(60)
    second = claim()
    fail(second.token, [Failure(message.id, error="boom", delay=0)])

    third = claim()
    outcome = fail(third.token, [Failure(message.id, error="bang")])

    assert third.messages[0].attempt == 3
    assert outcome == {message.id: Poisoned(attempts=3)}
    assert counts() == {"dead": 1}


def test_the_last_attempt_is_not_taken_away_while_its_lease_is_valid(clock, counts, policy):  # B15
    policy(max_attempts=1)
    message = send("mail")
    last = claim(lease=60)
    clock.advance(59)

    nothing = claim()

    assert (len(nothing), nothing.dead) == (0, [])
    assert counts() == {"active": 1}
    complete(last.token, [message.id])
    assert counts() == {}


def test_a_claim_reports_what_it_quarantined_and_returns_the_next(clock, counts, policy):  # A25
    policy(max_attempts=1)
    dying, healthy = send("mail"), send("mail", delay=60)
    claim(lease=60)
    clock.advance(60)

    batch = claim()

    assert batch.dead == [dying.id]
    assert batch.ids == [healthy.id]
    assert counts() == {"active": 1, "dead": 1}


def test_the_first_attempt_is_number_one_and_the_last_is_said_to_be(clock, policy):  # A24, C26
    policy(max_attempts=2)
    message = send("mail")
    first = claim()
    seen = [(first.messages[0].attempt, first.messages[0].is_last_attempt)]
    fail(first.token, [Failure(message.id, delay=0)])

    second = claim()

    seen.append((second.messages[0].attempt, second.messages[0].is_last_attempt))
    assert seen == [(1, False), (2, True)]
    assert second.messages[0].max_attempts == 2


def test_failing_does_not_count_a_second_time(clock):  # C26, C4
    message = send("mail")

    batch = claim()
    fail(batch.token, [Failure(message.id)])

    row = Message.objects.get()
    assert row.attempts == 1
    assert row.status == Status.STORED | Status.FAILED


def test_failing_twice_without_a_claim_in_between_counts_once(clock, counts):  # E15
    message = send("mail")
    batch = claim()
    fail(batch.token, [Failure(message.id)])

    with pytest.raises(LeaseLost):
        fail(batch.token, [Failure(message.id)])

    assert Message.objects.get().attempts == 1
    assert counts() == {"failed": 1}


@pytest.mark.parametrize("stream", [None, "a"])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_leases_that_run_out_are_counted_by_a_handlers_own_number(clock, counts, policy, n, stream):
    policy(max_attempts=4)
    send("mail", stream=stream)
    request = ClaimRequest(["default"], 1, 60, max_attempts={"mail": n})

    for number in range(1, n + 1):
        (message,) = process_batch(worker="w", claim=request).messages
        assert message.attempt == number
        clock.advance(61)

    assert counts() == {"pending": 1}
    assert process_batch(worker="w", claim=request).messages == []
    assert counts() == {"dead": 1}
    assert PoisonRecord.objects.get().attempts == n
