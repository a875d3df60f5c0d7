from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import FailureReason, Status, send
from deadletter.lifecycle import Failure, Poisoned, Released, abandon, claim, fail
from deadletter.models import Message, PoisonRecord


def test_an_abandoned_message_is_free_again_at_once(clock, counts):  # A7, A8
    message = send("mail")
    batch = claim()

    outcome = abandon(batch.token, message.id)

    row = Message.objects.get()
    assert outcome == Released()
    assert (row.attempts, row.lease_token, row.worker, row.status) == (1, None, None, Status.STORED)
    assert row.available_at == clock.now
    assert counts() == {"pending": 1}


def test_a_delay_and_a_lease_are_two_things(clock, counts):  # A28
    message = send("mail")
    batch = claim(lease=60)

    abandon(batch.token, message.id, delay=0.1)

    row = Message.objects.get()
    assert row.available_at == clock.now + timedelta(milliseconds=100)
    assert row.lease_token is None
    assert counts() == {"scheduled": 1}


def test_a_message_that_was_never_processed_is_given_back_uncounted(clock, counts):  # A9, A27
    message = send("mail")

    for _ in range(3):
        batch = claim()
        assert abandon(batch.token, message.id, count=False) == Released()
        assert Message.objects.get().attempts == 0

    assert counts() == {"pending": 1}


def test_an_uncounted_abandon_waits_its_delay(clock, counts):  # A33
    message = send("mail")
    batch = claim()

    abandon(batch.token, message.id, count=False, delay=0.1)

    row = Message.objects.get()
    assert (row.attempts, row.available_at) == (0, clock.now + timedelta(milliseconds=100))
    assert counts() == {"scheduled": 1}


def test_an_uncounted_abandon_never_poisons(clock, counts, policy):  # A9
    policy(max_attempts=0)
    message = send("mail")
    batch = claim()

    assert abandon(batch.token, message.id, count=False, max_attempts=0) == Released()
    assert counts() == {"pending": 1}


def test_force_poison_quarantines_whatever_the_count(clock, counts, policy):  # A10, B21
    policy(max_attempts=None)
    message = send("mail")
    batch = claim()

    outcome = abandon(batch.token, message.id, force_poison=True, error="unrecoverable")

    assert outcome == Poisoned(attempts=1)
    record = PoisonRecord.objects.get()
    assert (record.last_error, record.reason) == ("unrecoverable", FailureReason.POISON_MESSAGE)
    assert counts() == {"dead": 1}


def test_the_error_of_an_abandon_is_kept_as_the_last_error(clock, counts, policy):  # A11
    policy(max_attempts=1)
    message = send("mail")
    batch = claim()

    abandon(batch.token, message.id, error="connection reset")

    record = PoisonRecord.objects.get()
    assert record.last_error == "connection reset"
    assert [entry["error"] for entry in record.history] == ["connection reset"]
    assert counts() == {"dead": 1}


def test_an_abandon_may_bring_its_own_limit(clock, counts):  # A7
    message = send("mail")
    batch = claim()

    assert abandon(batch.token, message.id, max_attempts=1) == Poisoned(attempts=1)
    assert counts() == {"dead": 1}


def test_an_abandon_without_a_word_keeps_the_last_real_error(clock, counts, policy):  # C29
    policy(max_attempts=2)
    message = send("mail")
    first = claim()
    fail(first.token, [Failure(message.id, error="disk full", delay=0,
                               reason=FailureReason.DEPENDENCY_FAILURE)])  # fmt: skip
    second = claim()

    outcome = abandon(second.token, message.id)

    record = PoisonRecord.objects.get()
    assert outcome == Poisoned(attempts=2)
    assert (record.last_error, record.last_failure_reason) == (
        "disk full",
        FailureReason.DEPENDENCY_FAILURE,
    )
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("delay", [-1, float("nan"), "soon"])
def test_a_bad_delay_is_refused_and_nothing_changes(clock, counts, delay):
    message = send("mail")
    batch = claim()

    with pytest.raises(ValueError, match="delay"):
        abandon(batch.token, message.id, delay=delay)

    assert counts() == {"active": 1}


def test_an_abandoned_head_of_a_stream_holds_the_stream_while_it_waits(clock, counts):
    first, second = send("mail", stream="a"), send("mail", stream="a")
    batch = claim(limit=1)

    abandon(batch.token, first.id, delay=10)

    assert claim().ids == []
    assert counts() == {"scheduled": 1, "blocked": 1}
    clock.advance(10)
    assert claim().ids == [first.id, second.id]
