from __future__ import annotations

import pytest

from deadletter import FailureReason, LeaseLost, Status, send, sql
from deadletter.lifecycle import Failure, Poisoned, Scheduled, claim, fail
from deadletter.models import Message, PoisonRecord

PACKED = Status(8)


def failed(**failure) -> Message:
    message = send("mail")
    batch = claim(worker="w1")
    fail(batch.token, [Failure(message.id, **failure)])
    return Message.objects.get(pk=message.id)


def test_a_failure_marks_frees_and_schedules_the_message(clock, counts):  # C2, C4
    row = failed(error="boom", reason=FailureReason.TRANSPORT_UNAVAILABLE)

    assert row.status == Status.STORED | Status.FAILED == 32769
    assert (row.error, row.failure_reason) == ("boom", FailureReason.TRANSPORT_UNAVAILABLE)
    assert (row.attempts, row.lease_token, row.worker) == (1, None, None)
    assert counts() == {"failed": 1}


def test_a_failure_without_a_reason_is_of_unknown_reason(clock):  # C3
    assert failed(error="boom").failure_reason == FailureReason.UNKNOWN == 99


def test_finished_stages_are_kept(clock):  # C9
    row = failed(completed=Status.STORED | Status.EVENT_STORED | PACKED)

    assert row.status == Status.STORED | Status.EVENT_STORED | PACKED | Status.FAILED


def test_the_retry_sees_the_finished_stages(clock):  # C9
    failed(completed=Status.EVENT_STORED, delay=0)

    seen = claim().messages[0].status

    assert Status.EVENT_STORED in seen
    assert Status.FAILED in seen  # D17: stays while waiting


def test_bits_are_only_added(clock):
    row = failed(completed=PACKED, delay=0)
    batch = claim()

    fail(batch.token, [Failure(row.id, completed=Status.EVENT_STORED)])

    row.refresh_from_db()
    assert row.status == Status.STORED | Status.EVENT_STORED | PACKED | Status.FAILED


def test_a_permanent_failure_is_quarantined_at_once(clock, counts):  # rule 4, A10
    message = send("mail")
    batch = claim()

    outcome = fail(batch.token, [Failure(message.id, error="no such customer", permanent=True,
                                         reason=FailureReason.VALIDATION_FAILURE)])  # fmt: skip

    record = PoisonRecord.objects.get()
    assert outcome == {message.id: Poisoned(attempts=1)}
    assert (record.reason, record.last_failure_reason) == (
        FailureReason.POISON_MESSAGE,
        FailureReason.VALIDATION_FAILURE,
    )
    assert (record.last_error, record.attempts) == ("no such customer", 1)
    assert counts() == {"dead": 1}


def test_a_permanent_failure_is_quarantined_even_without_a_limit(clock, counts, policy):
    policy(max_attempts=None)
    message = send("mail")
    batch = claim()

    assert fail(batch.token, [Failure(message.id, permanent=True)]) == {message.id: Poisoned(1)}
    assert counts() == {"dead": 1}


def test_reasons_are_counted_unless_settings_call_them_permanent(clock, counts, settings):
    first, second, third = (send("mail") for _ in range(3))
    batch = claim()
    serialization = FailureReason.SERIALIZATION_ERROR
    counted = fail(batch.token, [Failure(first.id, reason=serialization)])
    settings.DEADLETTER = {"PERMANENT_REASONS": [serialization]}

    outcome = fail(
        batch.token,
        [Failure(second.id, reason=serialization), Failure(third.id, reason=FailureReason.UNKNOWN)],
    )

    assert isinstance(counted[first.id], Scheduled)
    assert outcome[second.id] == Poisoned(attempts=1)
    assert isinstance(outcome[third.id], Scheduled)
    assert counts() == {"failed": 2, "dead": 1}


def test_a_deferred_failure_is_judged_by_the_next_claim_only(clock, counts, policy):  # D2, U5
    policy(max_attempts=1, unregistered_attempts=None)
    message = send("mail")
    batch = claim()

    outcome = fail(
        batch.token,
        [Failure(message.id, reason=FailureReason.UNREGISTERED, deferred=True, delay=1)],
    )

    assert isinstance(outcome[message.id], Scheduled)
    assert counts() == {"scheduled": 1}  # U13: no FAILED bit
    clock.advance(1)
    assert claim().dead == [message.id]
    record = PoisonRecord.objects.get()
    assert (record.attempts, record.reason) == (1, FailureReason.POISON_MESSAGE)
    assert record.last_failure_reason == FailureReason.UNREGISTERED


def test_a_failure_may_bring_its_own_limit(clock, counts):
    message = send("mail")
    batch = claim()

    outcome = fail(batch.token, [Failure(message.id, max_attempts=1)])

    assert outcome == {message.id: Poisoned(attempts=1)}
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("delay", [-1, float("inf"), "soon"])
def test_a_bad_delay_is_refused_and_nothing_is_recorded(clock, counts, delay):
    message = send("mail")
    batch = claim()

    with pytest.raises(ValueError, match="delay"):
        fail(batch.token, [Failure(message.id, delay=delay)])

    assert counts() == {"active": 1}
    assert Message.objects.get().error is None


def test_error_text_with_quotes_newlines_and_unicode_survives(clock):  # C23
    text = 'can\'t "open" it;\nDROP TABLE x; -- 100 % Ärger ☃ 😀 {"a": [1]}'

    row = failed(error=text)

    assert row.error == text
    assert row.history[0]["error"] == text


def test_several_failures_are_recorded_each_for_itself(clock, counts, policy):
    policy(max_attempts=2)
    fresh, tired = send("mail"), send("mail")
    Message.objects.filter(pk=tired.id).update(attempts=1)
    batch = claim()

    outcome = fail(batch.token, [Failure(tired.id, error="t"), Failure(fresh.id, error="f")])

    assert outcome[tired.id] == Poisoned(attempts=2)
    assert isinstance(outcome[fresh.id], Scheduled)
    assert Message.objects.get().error == "f"
    assert PoisonRecord.objects.get().last_error == "t"
    assert counts() == {"failed": 1, "dead": 1}


def test_lowering_the_limit_bites_existing_messages(clock, counts, policy):  # B22
    message = send("mail")
    for _ in range(2):
        batch = claim()
        fail(batch.token, [Failure(message.id, delay=0)])
    third = claim()

    policy(max_attempts=2)
    outcome = fail(third.token, [Failure(message.id)])

    assert outcome == {message.id: Poisoned(attempts=3)}
    assert counts() == {"dead": 1}


def test_a_limit_lowered_below_the_count_bites_at_the_claim(clock, counts, policy):  # B22
    message = send("mail")
    for _ in range(2):
        batch = claim()
        fail(batch.token, [Failure(message.id, delay=0)])

    policy(max_attempts=2)

    assert claim().dead == [message.id]
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("limit", [5, None])
def test_raising_the_limit_gives_more_attempts(clock, counts, policy, limit):  # B22
    policy(max_attempts=2)
    message = send("mail")
    first = claim()
    fail(first.token, [Failure(message.id, delay=0)])
    second = claim()

    policy(max_attempts=limit)
    outcome = fail(second.token, [Failure(message.id)])

    assert isinstance(outcome[message.id], Scheduled)
    assert counts() == {"failed": 1}


def test_what_was_lost_when_it_was_read_is_not_written_a_moment_later(clock, monkeypatch):
    """A lease that is over may be renewed between the two statements, by another thread."""
    kept, lost = send("mail").id, send("mail").id
    token = claim().token
    real = sql.run

    def run(connection, name, params, **options):
        rows = real(connection, name, params, **options)
        return rows[:1] if name == "read_for_failure" else rows

    monkeypatch.setattr(sql, "run", run)
    with pytest.raises(LeaseLost) as error:
        fail(token, [Failure(kept, error="x"), Failure(lost, error="x")])

    assert error.value.ids == [lost]
    states = dict(Message.objects.values_list("id", "status"))
    assert states[kept] & Status.FAILED
    assert states[lost] == Status.STORED
