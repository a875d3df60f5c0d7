"""A name no handler knows is not a failure: it waits, and only the claim judges the count."""

from __future__ import annotations

import logging

import pytest

from deadletter import FailureReason, Status, operations, send, testing
from deadletter.models import Message, PoisonRecord


def waits(clock, limit: int) -> list[float]:
    """Drain until the message is gone; return how long it waited each time."""
    found = []
    for _ in range(limit):
        testing.drain()
        row = Message.objects.first()
        if row is None:
            break
        wait = row.available_at - clock.now
        found.append(wait.total_seconds())
        clock.advance(wait)
    return found


def test_an_unregistered_name_waits_by_its_own_formula(clock, policy):  # U2
    policy(max_attempts=None, cooldown=7)
    send("nobody.knows")

    assert waits(clock, 9) == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_with_three_attempts_the_fourth_claim_poisons(clock, counts, policy):  # U5
    policy(max_attempts=3)
    send("nobody.knows")

    assert waits(clock, 10) == [1, 2, 4]

    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (3, 3)
    assert (record.reason, record.last_failure_reason) == (
        FailureReason.POISON_MESSAGE,
        FailureReason.UNREGISTERED,
    )
    assert record.error_details.category == "poison"  # U6
    assert counts() == {"dead": 1}


def test_with_ten_attempts_the_eleventh_claim_poisons(clock, counts, policy):  # U5
    policy(max_attempts=10)
    send("nobody.knows")

    assert len(waits(clock, 20)) == 10
    assert PoisonRecord.objects.get().attempts == 10


def test_nothing_is_written_as_failed_while_it_waits(clock, counts):  # U1, U13
    send("nobody.knows")

    tally = testing.drain()

    row = Message.objects.get()
    assert (tally.deferred, tally.failed) == (1, 0)
    assert (row.status, row.history, row.attempts) == (Status.STORED, [], 1)
    assert counts() == {"scheduled": 1}


def test_a_handler_registered_meanwhile_gets_the_message(clock, counts, handles):  # U10
    seen = []
    send("nobody.knows")
    testing.drain()

    handles("nobody.knows", lambda message: seen.append(message.attempt))
    clock.advance(1)
    testing.drain()

    assert seen == [2]
    assert counts() == {}


def test_both_formulas_share_one_count(clock, counts, handles, policy):  # U15
    policy(max_attempts=3)
    send("sometimes.known")
    testing.drain()
    clock.advance(1)

    def fails(message):
        raise ValueError

    handles("sometimes.known", fails)
    testing.drain()

    row = Message.objects.get()
    assert row.attempts == 2
    assert (row.available_at - clock.now).total_seconds() == 120


def test_the_delays_are_settings(clock, policy, settings):  # U4
    settings.DEADLETTER = {"UNREGISTERED_BASE": 0.1, "UNREGISTERED_CAP": 0.5}
    policy(max_attempts=5)
    send("nobody.knows")

    assert waits(clock, 10) == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.mark.parametrize(("limit", "remaining"), [(5, "4"), (1, "0"), (None, "unlimited")])
def test_each_deferral_is_a_warning(clock, policy, caplog, limit, remaining):  # U7
    caplog.set_level(logging.WARNING, logger="deadletter")
    policy(max_attempts=limit)
    send("nobody.knows")

    testing.drain()

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "nobody.knows" in record.message
    assert f"attempt 1 of {limit}: waiting 1.0 s" in record.message
    assert f"will poison in {remaining} more attempts" in record.message


def test_poison_of_an_unknown_name_can_be_removed(clock, counts, policy):  # U14
    policy(max_attempts=1)
    send("nobody.knows")
    waits(clock, 5)
    record = PoisonRecord.objects.get()

    assert operations.remove_poison(record.pk).removed == [record.pk]
    assert operations.get_poison(record.pk) is None
    assert counts() == {}


def test_an_unknown_name_in_a_stream_holds_its_stream_only(clock, counts, handles):
    handles("known", lambda message: None)
    send("nobody.knows", stream="a")
    send("known", stream="a")
    send("known", stream="b")

    tally = testing.drain()

    assert (tally.completed, tally.deferred, tally.released) == (1, 1, 1)
    assert counts() == {"scheduled": 1, "blocked": 1}
