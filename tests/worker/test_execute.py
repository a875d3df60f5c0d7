"""The call of a handler and its outcome, seen through `testing.drain`."""

from __future__ import annotations

import logging

import pytest
from django.db import IntegrityError

from deadletter import FailureReason, Permanent, Retry, Status, send, testing
from deadletter.models import Message, PoisonRecord, Queue
from tests.patience import PATIENCE

PACKED, LABELLED = Status(8), Status(16)


def raising(error: BaseException):
    def function(message):
        raise error

    return function


def test_a_handler_that_returns_completes_its_message(clock, counts, handles):
    seen = []
    handles("mail", lambda message: seen.append((message.payload, message.attempt)))
    send("mail", {"to": 1})

    tally = testing.drain()

    assert seen == [({"to": 1}, 1)]
    assert (tally.completed, tally.total) == (1, 1)
    assert counts() == {}


def test_an_async_handler_completes_its_message(clock, counts, handles):
    seen = []

    async def function(message):
        seen.append(message.id)

    handles("mail", function)
    message = send("mail")

    assert testing.drain().completed == 1
    assert seen == [message.id]
    assert counts() == {}


def test_a_handler_that_raises_fails_its_message(clock, counts, handles):
    handles("mail", raising(ValueError("no address")))
    send("mail")

    tally = testing.drain()

    row = Message.objects.get()
    assert (tally.failed, tally.completed) == (1, 0)
    assert (row.error, row.failure_reason) == (
        "ValueError: no address",
        FailureReason.HANDLER_EXCEPTION,
    )
    assert (row.available_at - clock.now).total_seconds() == 60
    assert "Traceback" in row.history[0]["traceback"]
    assert row.history[0]["exception"] == "ValueError"
    assert counts() == {"failed": 1}


def test_what_always_fails_is_executed_as_often_as_the_queue_allows(clock, counts, handles, policy):
    policy(max_attempts=3, cooldown=0)
    seen = []

    def function(message):
        seen.append((message.attempt, message.is_last_attempt))
        raise ValueError

    handles("mail", function)
    send("mail")

    tally = testing.drain()

    assert seen == [(1, False), (2, False), (3, True)]
    assert (tally.failed, tally.poisoned) == (2, 1)
    assert PoisonRecord.objects.get().attempts == 3
    assert counts() == {"dead": 1}


def test_permanent_quarantines_at_once(clock, counts, handles):  # rule 4
    handles("mail", raising(Permanent("no such customer")))
    send("mail")

    tally = testing.drain()

    record = PoisonRecord.objects.get()
    assert (tally.poisoned, tally.failed) == (1, 0)
    assert (record.attempts, record.reason) == (1, FailureReason.POISON_MESSAGE)
    assert record.last_failure_reason == FailureReason.HANDLER_EXCEPTION
    assert "no such customer" in record.last_error
    assert counts() == {"dead": 1}


def test_retry_brings_its_own_delay(clock, counts, handles):
    handles("mail", raising(Retry("busy", after=10)))
    send("mail")

    testing.drain()

    row = Message.objects.get()
    assert (row.available_at - clock.now).total_seconds() == 10
    assert "busy" in row.error
    assert counts() == {"failed": 1}


def test_retry_without_a_delay_takes_the_policys(clock, handles):
    handles("mail", raising(Retry("busy")))
    send("mail")

    testing.drain()

    assert (Message.objects.get().available_at - clock.now).total_seconds() == 60


def test_retries_are_counted_like_any_failure(clock, counts, handles, policy):
    policy(max_attempts=2)
    handles("mail", raising(Retry("busy", after=0)))
    send("mail")

    testing.drain()

    assert PoisonRecord.objects.get().attempts == 2


@pytest.mark.parametrize("after", [-1, float("nan"), 1e30, "soon"], ids=str)
def test_a_retry_with_a_bad_delay_fails_alone(clock, counts, handles, after):
    def function(message):
        raise Retry("later", after=after)

    handles("bad", function)
    handles("good", lambda message: None)
    send("bad")
    send("good")

    tally = testing.drain()

    row = Message.objects.get()
    assert (tally.completed, tally.failed) == (1, 1)
    assert (row.name, "after" in row.error) == ("bad", True)
    assert counts() == {"failed": 1}


def test_finished_stages_are_kept_and_seen_by_the_next_attempt(clock, handles):  # C9, C25
    seen = []

    def function(message):
        seen.append(message.status)
        message.done(PACKED)
        if LABELLED not in message.status:
            message.done(LABELLED)
            raise ValueError

    handles("mail", function)
    send("mail")
    testing.drain()
    after_failure = Message.objects.get().status
    clock.advance(60)

    testing.drain()

    assert after_failure == Status.STORED | PACKED | LABELLED | Status.FAILED
    assert seen == [Status.STORED, after_failure]
    assert not Message.objects.exists()


@pytest.mark.parametrize("flag", [1 << 31, 1 << 40, 1 << 70], ids=str)
def test_a_stage_no_database_can_store_fails_alone(clock, counts, handles, flag):
    def function(message):
        message.done(flag)
        raise ValueError

    handles("bad", function)
    handles("good", lambda message: None)
    send("bad")
    send("good")

    tally = testing.drain()

    assert (tally.completed, tally.failed) == (1, 1)
    assert Message.objects.get().name == "bad"
    assert counts() == {"failed": 1}


def test_a_run_stops_at_its_first_failure_and_gives_the_rest_back(clock, counts, handles):  # C25
    seen = []

    def function(message):
        seen.append(message.payload)
        if message.payload == 1:
            raise ValueError

    handles("mail", function)
    for n in range(4):
        send("mail", n, stream="a")
    send("mail", "other", stream="b")

    tally = testing.drain()

    assert seen == [0, 1, "other"]
    assert (tally.completed, tally.failed, tally.released) == (2, 1, 2)
    assert [row.attempts for row in Message.objects.all()] == [1, 0, 0]
    assert counts() == {"failed": 1, "blocked": 2}


def test_messages_without_a_stream_fail_each_alone(clock, counts, handles):  # C14
    def function(message):
        if message.payload == 1:
            raise ValueError

    handles("mail", function)
    for n in range(4):
        send("mail", n)

    tally = testing.drain()

    assert (tally.completed, tally.failed, tally.released) == (3, 1, 0)
    assert counts() == {"failed": 1}


def test_a_database_error_of_a_handler_breaks_nothing_but_its_attempt(clock, counts, handles):
    def function(message):
        Queue.objects.bulk_create([Queue(name="default")])

    handles("bad", function)
    handles("good", lambda message: None)
    send("bad")
    send("good")

    tally = testing.drain()

    assert (tally.completed, tally.failed) == (1, 1)
    assert IntegrityError.__name__ in Message.objects.get().error


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit()], ids=repr)
def test_even_an_exit_is_a_failure_of_the_message(clock, counts, handles, error):
    handles("mail", raising(error))
    send("mail")

    assert testing.drain().failed == 1
    assert counts() == {"failed": 1}


@pytest.mark.django_db(transaction=True)
def test_ctrl_c_of_a_handler_in_a_worker_is_a_failure_of_the_message(run, counts, handles):
    handles("mail", raising(KeyboardInterrupt()))
    send("mail")

    run()

    assert counts() == {"failed": 1}


def test_an_atomic_handler_and_its_completion_commit_together(clock, counts, handles):
    handles("mail", lambda message: Queue.objects.create(name="made"), atomic=True)
    send("mail")

    assert testing.drain().completed == 1
    assert Queue.objects.filter(name="made").exists()
    assert counts() == {}


def test_what_an_atomic_handler_wrote_is_undone_when_it_fails(clock, counts, handles):
    def function(message):
        Queue.objects.create(name="made")
        raise ValueError

    handles("mail", function, atomic=True)
    send("mail")

    assert testing.drain().failed == 1
    assert not Queue.objects.filter(name="made").exists()
    assert counts() == {"failed": 1}


def test_a_failure_is_logged_without_the_payload(clock, handles, caplog):
    caplog.set_level(logging.WARNING, logger="deadletter")
    handles("mail", raising(ValueError("boom\nforged line")))
    message = send("mail", {"password": "hunter2"})

    testing.drain()

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"failed message mail {message.id} of queue default, attempt 1 of 5" in record.message
    assert "hunter2" not in record.message
    assert "\n" not in record.message


def test_the_history_says_how_long_the_handler_ran(clock, handles):
    def slow(message):
        message.started -= 2.5  # as if it had begun that much earlier
        raise ValueError("no")

    handles("slow", slow)
    message = send("slow")

    testing.drain()

    entry = Message.objects.get(pk=message.pk).history[0]
    assert 2.5 <= entry["seconds"] < 2.5 + PATIENCE
