"""The series of backoff delays, to the second, as the database computes it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import send
from deadletter.lifecycle import Failure, Scheduled, claim, fail
from deadletter.models import Message


def waits(clock, message, failures: int, **failure) -> list[float]:
    """Fail a message again and again; return the seconds it was told to wait each time."""
    found = []
    for _ in range(failures):
        batch = claim()
        assert batch.ids == [message.id]
        outcome = fail(batch.token, [Failure(message.id, **failure)])[message.id]
        assert outcome == Scheduled(Message.objects.get(pk=message.id).available_at)
        found.append((outcome.at - clock.now).total_seconds())
        clock.advance(outcome.at - clock.now)
    return found


def test_failures_wait_60_120_240_and_so_on_up_to_an_hour(clock, policy):  # C5, C6, D6
    policy(max_attempts=None)
    message = send("mail")

    assert waits(clock, message, 9) == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_failed_message_is_not_handed_out_a_second_early(clock, counts):  # C8
    message = send("mail")
    batch = claim()
    fail(batch.token, [Failure(message.id)])

    clock.advance(59)

    assert claim().ids == []
    assert counts() == {"failed": 1}
    clock.advance(1)
    assert claim().ids == [message.id]


def test_a_million_attempts_wait_an_hour(clock, policy):  # C7
    policy(max_attempts=None)
    message = send("mail")
    Message.objects.update(attempts=999_999)

    batch = claim()
    outcome = fail(batch.token, [Failure(message.id)])

    assert batch.messages[0].attempt == 1_000_000
    assert outcome == {message.id: Scheduled(clock.now + timedelta(hours=1))}


def test_a_cooldown_replaces_the_formula(clock, policy):  # E1, D6
    policy(max_attempts=None, cooldown=7)
    message = send("mail")

    assert waits(clock, message, 4) == [7, 7, 7, 7]


def test_a_cooldown_of_nothing_retries_at_once(clock, policy):
    policy(max_attempts=None, cooldown=0)
    message = send("mail")

    assert waits(clock, message, 3) == [0, 0, 0]


def test_base_and_cap_belong_to_the_queue(clock, policy):  # C21
    policy(max_attempts=None, backoff_base=1, backoff_cap=10)
    message = send("mail")

    assert waits(clock, message, 5) == [2, 4, 8, 10, 10]


@pytest.mark.parametrize("delay", [10, 10.0, timedelta(seconds=10)])
def test_a_failure_may_bring_its_own_delay(clock, policy, delay):
    policy(cooldown=7)
    message = send("mail")

    assert waits(clock, message, 2, delay=delay) == [10, 10]


def test_jitter_spreads_and_never_shortens(clock, policy):
    policy(max_attempts=None, jitter=0.5, cooldown=None)
    message = send("mail")

    found = waits(clock, message, 9)

    floors = [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert all(low <= wait <= low * 1.5 for low, wait in zip(floors, found, strict=True))
    assert found != floors


def test_an_edit_of_the_policy_acts_on_the_next_failure(clock, policy):  # E9, B22, D19
    policy(max_attempts=None)
    message = send("mail")
    first = waits(clock, message, 1)

    policy(cooldown=5)

    assert first == [60]
    assert waits(clock, message, 1) == [5]


def test_a_deadline_that_was_set_stays_when_the_policy_is_edited(clock, policy):  # D19
    message = send("mail")
    batch = claim()
    fail(batch.token, [Failure(message.id)])

    policy(cooldown=5)

    assert Message.objects.get().available_at == clock.now + timedelta(seconds=60)
