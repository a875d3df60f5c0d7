"""A row damaged by hand fails alone, is quarantined by the count, and its neighbours run."""

from __future__ import annotations

import logging

import pytest
from django.db import connection

from deadletter import FailureReason, Outgoing, operations, send_many, testing
from deadletter.error_details import FailedDeserialization
from deadletter.lifecycle import claim
from deadletter.models import Damaged, Message, PoisonRecord

DAMAGE = {
    "deep": "[" * 100_000,
    "deep and closed": "[" * 5_000 + "]" * 5_000,
    "not JSON": "{'a': 1}",
    "cut off": '{"a": 1',
    "nothing at all": "",
    "too long a number": "9" * 5_000,
    "a lone quote": '"',
}
every_damage = pytest.mark.parametrize("text", DAMAGE.values(), ids=DAMAGE)


@pytest.fixture
def ran(handles) -> list:
    """Payloads the handler of "mail" was given."""
    seen: list = []
    handles("mail", lambda message: seen.append(message.payload))
    return seen


def damaged(text: str, column: str = "payload") -> tuple[int, int, int]:
    """Send three messages and damage the middle one."""
    first, middle, last = send_many([Outgoing("mail", n) for n in range(3)])
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE deadletter_message SET {column} = %s WHERE id = %s", [text, middle])
    return first, middle, last


@every_damage
def test_the_claim_itself_does_not_read_payloads(clock, counts, text):  # A34, rule 10
    ids = damaged(text)

    assert claim().ids == list(ids)
    assert counts() == {"active": 3}


@every_damage
def test_a_damaged_message_fails_alone_and_its_neighbours_run(clock, counts, ran, text):
    _first, middle, _last = damaged(text)

    tally = testing.drain()

    assert ran == [0, 2]
    assert (tally.completed, tally.deferred, tally.failed, tally.poisoned) == (2, 1, 0, 0)
    row = Message.objects.get()
    assert (row.id, row.attempts) == (middle, 1)
    assert row.failure_reason == FailureReason.SERIALIZATION_ERROR
    assert "cannot be decoded" in row.error


@every_damage
def test_a_damaged_message_is_quarantined_by_the_count(clock, counts, ran, text):  # A34, A35
    _first, middle, _last = damaged(text)

    waits = []
    for _ in range(10):
        testing.drain()
        row = Message.objects.first()
        if row:
            waits.append((row.available_at - clock.now).total_seconds())
        clock.advance(1)

    record = PoisonRecord.objects.get()
    assert waits == [1, 1, 1, 1, 1]
    assert (record.message_id, record.attempts) == (middle, 5)
    assert (record.reason, record.last_failure_reason) == (
        FailureReason.POISON_MESSAGE,
        FailureReason.SERIALIZATION_ERROR,
    )
    assert ran == [0, 2]
    assert counts() == {"dead": 1}


@every_damage
def test_a_damaged_record_can_be_looked_at_and_its_damage_is_kept(clock, text):
    _first, middle, _last = damaged(text)

    operations.poison([middle], why="looks broken")

    record = operations.get_poison(PoisonRecord.objects.get().pk)

    assert isinstance(record.payload, Damaged)
    assert record.payload.text == text
    assert isinstance(record.error_details.message_type, FailedDeserialization)
    assert len(operations.list_poison()) == 1


def test_a_repaired_payload_lets_the_message_succeed(clock, counts, ran, policy):
    policy(max_attempts=1)
    damaged("{broken")
    testing.drain()
    clock.advance(1)
    testing.drain()
    assert counts() == {"dead": 1}

    operations.retry_poison(PoisonRecord.objects.get().pk, payload="repaired")
    testing.drain()

    assert ran == [0, 2, "repaired"]
    assert counts() == {}


def test_a_payload_of_another_type_than_expected_is_the_handlers_failure(clock, counts, handles):
    seen = []
    handles("mail", lambda message: seen.append(message.payload["to"]))
    first, middle, _last = send_many([Outgoing("mail", {"to": n}) for n in range(3)])
    Message.objects.filter(pk=middle).update(payload=[1])

    tally = testing.drain()

    assert seen == [0, 2]
    assert (tally.completed, tally.failed) == (2, 1)
    assert first != middle == Message.objects.get().id
    assert counts() == {"failed": 1}


@pytest.mark.parametrize("text", ["{broken", "[" * 100_000, ""], ids=["cut", "deep", "empty"])
def test_damaged_headers_fail_alone_too(clock, counts, handles, text):
    seen = []
    handles("mail", lambda message: seen.append(message.headers))
    _first, middle, _last = damaged(text, column="headers")

    tally = testing.drain()

    assert seen == [{}, {}]
    assert tally.completed == 2
    assert Message.objects.get().id == middle
    assert Message.objects.get().failure_reason == FailureReason.SERIALIZATION_ERROR


@pytest.mark.parametrize("history", ["{}", '"text"', "5", "null"])
def test_a_damaged_history_hinders_no_failure_and_no_neighbour(clock, counts, handles, history):
    handles("mail", lambda message: 1 / 0)
    _first, middle, _last = damaged(history, column="history")

    tally = testing.drain()

    assert tally.failed == 3
    assert counts() == {"failed": 3}
    assert Message.objects.get(pk=middle).error.startswith("ZeroDivisionError")


@pytest.mark.parametrize("history", ["{}", '"text"', "5", "null"])
def test_a_damaged_history_hinders_no_claim_after_a_crash(clock, counts, policy, history):
    policy(max_attempts=2)
    damaged(history, column="history")
    claim(lease=60)
    clock.advance(60)

    assert len(claim(lease=60)) == 3
    clock.advance(60)
    assert len(claim().dead) == 3
    assert counts() == {"dead": 3}


def test_damage_is_logged_without_the_payload(clock, ran, caplog):
    caplog.set_level(logging.WARNING, logger="deadletter")
    damaged("{secret")

    testing.drain()

    assert "cannot be decoded" in caplog.text
    assert "secret" not in caplog.text


@every_damage
def test_a_damaged_message_in_a_stream_holds_its_stream_and_no_other(clock, counts, ran, text):
    first, second = send_many([Outgoing("mail", n, stream="a") for n in range(2)])
    send_many([Outgoing("mail", "other", stream="b"), Outgoing("mail", "plain")])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_message SET payload = %s WHERE id = %s", [text, first])

    testing.drain()

    assert sorted(ran, key=str) == ["other", "plain"]
    assert set(Message.objects.values_list("id", flat=True)) == {first, second}
