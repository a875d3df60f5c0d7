from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from django.db import transaction

from deadletter import ErrorDetails, FailureReason, Status, operations, send
from deadletter.lifecycle import Failure, abandon, claim, complete, fail
from deadletter.models import Message, PoisonRecord
from deadletter.signals import message_poisoned


@pytest.fixture
def heard():
    """Listen to message_poisoned; what was heard, in order."""
    events = []

    def listen(poison, using, **kwargs):
        events.append(poison)

    message_poisoned.connect(listen)
    yield events
    message_poisoned.disconnect(listen)


def poison(message: Message, **failure) -> PoisonRecord:
    batch = claim(worker="w1")
    fail(batch.token, [Failure(message.id, permanent=True, **failure)], by="w1")
    return PoisonRecord.objects.get(message_id=message.id)


def test_the_record_keeps_the_message_as_it_died(clock, counts):  # A5, C27
    message = send("mail", {"to": 1}, headers={"h": 2}, stream="a", key="k", priority=3)
    clock.advance(10)

    record = poison(
        message,
        error="boom",
        reason=FailureReason.HANDLER_EXCEPTION,
        completed=Status.EVENT_STORED,
    )

    assert (record.message_id, record.queue, record.name) == (message.id, "default", "mail")
    assert (record.payload, record.headers) == ({"to": 1}, {"h": 2})
    assert (record.stream, record.key, record.priority, record.kind) == ("a", "k", 3, "message")
    assert (record.attempts, record.max_attempts, record.fence) == (1, 5, 1)
    assert record.status == Status.STORED | Status.EVENT_STORED | Status.FAILED
    assert (record.reason, record.last_failure_reason) == (
        FailureReason.POISON_MESSAGE,
        FailureReason.HANDLER_EXCEPTION,
    )
    assert (record.last_error, record.poisoned_by, record.poison_count) == ("boom", "w1", 1)
    assert (record.original_created_at, record.poisoned_at) == (
        clock.now - timedelta(seconds=10),
        clock.now,
    )
    assert counts() == {"dead": 1}


def test_the_record_says_why_it_was_given_up_beside_the_last_error(clock, policy):  # C29
    policy(max_attempts=1)
    message = send("mail")
    batch = claim()

    fail(batch.token, [Failure(message.id, error="disk full")])

    record = PoisonRecord.objects.get()
    assert record.last_error == "disk full"
    assert record.verdict == "gave up after 1 of 1 attempts"


def test_the_record_of_a_claim_that_gave_up_keeps_the_last_real_error(clock, policy):  # C29
    message = send("mail")
    batch = claim()
    fail(batch.token, [Failure(message.id, error="disk full", delay=0,
                               reason=FailureReason.DEPENDENCY_FAILURE)])  # fmt: skip
    policy(max_attempts=1)

    claim()

    record = PoisonRecord.objects.get()
    assert (record.last_error, record.last_failure_reason) == (
        "disk full",
        FailureReason.DEPENDENCY_FAILURE,
    )


def test_the_poison_error_of_a_record_can_be_passed_on(clock, policy):  # A1, A2, A14
    policy(max_attempts=1)
    message = send("mail")
    batch = claim()
    fail(batch.token, [Failure(message.id, error="boom")])

    error = PoisonRecord.objects.get().error_details

    assert (error.category, error.is_retryable) == ("poison", False)
    assert (error.attempts, error.max_attempts, error.last_error) == (1, 1, "boom")
    assert str(error) == "poison: message mail exceeded 1 attempts (max 1)"
    assert (error.instance, error.execution_id, error.message_id) == (None, None, message.id)


def test_the_poison_error_says_how_the_message_came_to_its_end(clock, policy):  # A3
    def error(how) -> str:
        message = send("mail", {"to": 1}, expires_in=3600)
        how(message)
        record = PoisonRecord.objects.get(message_id=message.id)
        assert record.error_details.message == {
            "id": message.id,
            "queue": "default",
            "name": "mail",
            "kind": "message",
            "stream": None,
            "key": None,
            "payload": {"to": 1},
            "headers": None,
        }
        return str(record.error_details)

    def permanently(message) -> None:
        fail(claim().token, [Failure(message.id, permanent=True)])

    def by_hand(message) -> None:
        fail(claim().token, [Failure(message.id, error="no")])
        operations.poison([message.id], why="fraud")

    def given_up(message) -> None:
        abandon(claim().token, message.id, force_poison=True)

    def expired(message) -> None:
        clock.advance(3601)
        claim()

    assert error(permanently) == "poison: message mail failed permanently at attempt 1 (max 5)"
    assert (
        error(by_hand) == "poison: message mail was poisoned by an operator after 1 attempt (max 5)"
    )
    assert error(given_up) == "poison: message mail was given up by its worker at attempt 1 (max 5)"
    assert error(expired) == "poison: message mail expired after 0 attempts (max 5)"


def test_the_poison_error_of_an_activity_names_its_instance_and_execution(clock, policy):  # A3
    message = send("charge")
    Message.objects.update(kind="activity", instance="order-1", execution_id=2, activity_id=7)
    policy(max_attempts=None)

    operations.poison([message.id], why="fraud")

    error = PoisonRecord.objects.get().error_details
    assert (error.instance, error.execution_id, error.message_id) == ("order-1", 2, message.id)
    assert str(error) == (
        "poison: activity charge#7 was poisoned by an operator after 0 attempts (no limit)"
    )
    assert ErrorDetails.from_dict(error.as_dict()) == error


def test_poison_is_never_handed_out_again_and_others_flow(clock, counts):  # A15, C18
    doomed, healthy = send("mail"), send("mail")
    batch = claim(limit=1)

    fail(batch.token, [Failure(doomed.id, permanent=True)])

    assert claim().ids == [healthy.id]
    clock.advance(1_000_000)
    assert claim().ids == [healthy.id]
    assert counts() == {"active": 1, "dead": 1}


def test_one_message_is_poisoned_while_others_of_the_batch_are_in_process(clock, counts):  # A22
    doomed, other = send("mail", stream="a"), send("mail", stream="b")
    batch = claim()

    fail(batch.token, [Failure(doomed.id, permanent=True)])

    assert counts() == {"active": 1, "dead": 1}
    complete(batch.token, [other.id])
    assert counts() == {"dead": 1}


def test_the_same_failure_of_two_messages_has_one_fingerprint(clock):
    records = [
        poison(send("mail"), exception="shop.Refused", frame="shop:bill", error=f"customer {n}")
        for n in range(2)
    ]
    other = poison(send("mail"), exception="KeyError", frame="shop:bill")

    assert records[0].fingerprint == records[1].fingerprint != other.fingerprint


def test_listeners_hear_of_poison_after_the_commit_once(
    clock, heard, django_capture_on_commit_callbacks
):  # rule 5
    message = send("mail", {"secret": 1})

    with django_capture_on_commit_callbacks(execute=True):
        poison(message, error="boom")
        assert heard == []

    (event,) = heard
    assert (event.message_id, event.queue, event.name) == (message.id, "default", "mail")
    assert (event.attempts, event.reason) == (1, FailureReason.POISON_MESSAGE)
    assert (event.last_error, event.destination) == ("boom", "quarantine")
    assert not hasattr(event, "payload")


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_was_never_poisoned_and_nobody_heard_of_it(heard):
    message = send("mail")

    with transaction.atomic():
        poison(message)
        transaction.set_rollback(True)

    assert heard == []
    assert PoisonRecord.objects.count() == 0
    assert Message.objects.get().attempts == 0


@pytest.mark.django_db(transaction=True)
def test_a_listener_that_raises_undoes_nothing_and_the_next_still_hears(heard, caplog):
    def raises(**kwargs):
        raise RuntimeError("a listener's own trouble")

    message_poisoned.connect(raises)
    caplog.set_level(logging.WARNING, logger="deadletter")
    message = send("mail")

    try:
        poison(message)
    finally:
        message_poisoned.disconnect(raises)

    assert PoisonRecord.objects.get().message_id == message.id
    assert Message.objects.count() == 0
    assert [event.message_id for event in heard] == [message.id]
    assert "a listener's own trouble" in caplog.text


def test_poison_is_logged_once_as_an_error_without_its_payload(
    clock, caplog, django_capture_on_commit_callbacks
):
    message = send("mail", {"password": "hunter2"})
    caplog.set_level(logging.WARNING, logger="deadletter")

    with django_capture_on_commit_callbacks(execute=True):
        poison(message)

    assert f"mail {message.id} of queue default" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info is None
    assert "hunter2" not in caplog.text


def test_poison_by_hand_has_its_own_reason(clock, counts):  # rule 4
    message = send("mail")

    verdicts = operations.poison([message.id], why="sent by mistake", by="ann")

    record = PoisonRecord.objects.get()
    assert verdicts.done == [message.id]
    assert (record.reason, record.verdict, record.poisoned_by) == (
        FailureReason.OPERATOR,
        "sent by mistake",
        "ann",
    )
    assert (record.last_failure_reason, record.last_error, record.attempts) == (None, None, 0)
    assert counts() == {"dead": 1}


def test_poison_by_hand_is_refused_while_somebody_works_on_it(clock, counts):
    message = send("mail")
    claim()

    verdicts = operations.poison([message.id], why="sent by mistake")

    assert "is active" in verdicts.refused[message.id]
    assert counts() == {"active": 1}


def test_a_message_that_is_already_recorded_gets_no_second_record(clock, counts):  # C27
    message = send("mail")
    record = poison(message, error="first")
    again = send("mail")
    Message.objects.filter(pk=again.id).update(id=message.id)

    batch = claim()
    fail(batch.token, [Failure(message.id, permanent=True, error="second")])

    assert counts() == {"dead": 1}
    assert PoisonRecord.objects.get().last_error == record.last_error == "first"
