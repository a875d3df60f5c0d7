"""Limits and delays of retries that differ by the reason of the failure."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection

from deadletter import FailureReason, Permanent, Retry, handler, operations, send, testing
from deadletter.failure_policy import Policy, read_reasons
from deadletter.lifecycle import (
    ClaimRequest,
    Failure,
    Poisoned,
    Released,
    Scheduled,
    abandon,
    claim,
    fail,
    process_batch,
)
from deadletter.models import Message, PoisonRecord, Queue
from deadletter.worker.registry import registry

OUTAGE = FailureReason.TRANSPORT_UNAVAILABLE
BUG = FailureReason.HANDLER_EXCEPTION
INVALID = FailureReason.VALIDATION_FAILURE
LOST = FailureReason.WORKER_LOST


def fails(clock, message, reason, times=1, **about):
    """Let a message fail; return the outcome of the last failure and the seconds of each wait."""
    outcome, waits = None, []
    for _ in range(times):
        batch = claim()
        assert batch.ids == [message.id]
        outcome = fail(batch.token, [Failure(message.id, "no", reason, **about)])[message.id]
        if isinstance(outcome, Poisoned):
            break
        waits.append((outcome.at - clock.now).total_seconds())
        clock.advance(outcome.at - clock.now)
    return outcome, waits


@pytest.mark.slow
@pytest.mark.parametrize("stream", [None, "s"])
def test_fifteen_outages_and_a_bug_do_not_kill_at_once(clock, counts, policy, stream):  # D28
    policy(max_attempts=5, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    message = send("mail", stream=stream)

    fails(clock, message, OUTAGE, 15, delay=1)
    outcome, _ = fails(clock, message, BUG)

    row = Message.objects.get()
    assert isinstance(outcome, Scheduled)
    assert (row.attempts, row.reason_counts) == (16, {"1": 15, "2": 1})
    assert counts() == {"pending": 1}


def test_a_bug_kills_when_it_has_failed_as_often_as_the_queue_says(clock, counts, policy):
    policy(max_attempts=3, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    message = send("mail")
    fails(clock, message, OUTAGE, 10, delay=1)

    outcome, waits = fails(clock, message, BUG, 5, delay=1)

    assert (outcome, len(waits)) == (Poisoned(attempts=13), 2)
    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (13, 3)
    assert record.verdict == "gave up after 3 of 3 failures; attempts: 13"
    assert counts() == {"dead": 1}


def test_reasons_without_a_policy_are_counted_together(clock, policy):
    policy(max_attempts=3, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    message = send("mail")
    fails(clock, message, OUTAGE, 4, delay=1)
    fails(clock, message, BUG, 1, delay=1)
    fails(clock, message, FailureReason.TIMEOUT_EXCEEDED, 1, delay=1)

    outcome, _ = fails(clock, message, FailureReason.UNKNOWN)

    assert outcome == Poisoned(attempts=7)


def test_a_reason_may_have_fewer_attempts_than_the_queue(clock, counts, policy):
    policy(max_attempts=5, reason_policies={"VALIDATION_FAILURE": {"max_attempts": 1}})
    first, second = send("mail"), send("mail")
    batch = claim()

    outcomes = fail(
        batch.token, [Failure(first.id, reason=INVALID), Failure(second.id, reason=BUG)]
    )

    assert outcomes[first.id] == Poisoned(attempts=1)
    assert isinstance(outcomes[second.id], Scheduled)
    record = PoisonRecord.objects.get()
    assert record.max_attempts == 1
    assert record.verdict == "gave up after 1 of 1 failures of VALIDATION_FAILURE; attempts: 1"
    assert counts() == {"failed": 1, "dead": 1}


def test_as_many_attempts_as_the_largest_limit_are_the_end_in_any_case(clock, counts, policy):
    reasons = {
        name: {"max_attempts": 4}
        for name in ("TRANSPORT_UNAVAILABLE", "TIMEOUT_EXCEEDED", "DEPENDENCY_FAILURE")
    }
    policy(max_attempts=4, reason_policies=reasons)
    message = send("mail")
    fails(clock, message, OUTAGE, 1, delay=1)
    fails(clock, message, FailureReason.TIMEOUT_EXCEEDED, 1, delay=1)
    fails(clock, message, FailureReason.DEPENDENCY_FAILURE, 1, delay=1)

    outcome, _ = fails(clock, message, BUG)

    assert outcome == Poisoned(attempts=4)
    assert counts() == {"dead": 1}


def test_a_reason_without_a_limit_is_tried_for_ever(clock, counts, policy):
    policy(max_attempts=2, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": None}})
    message = send("mail")

    outcome, waits = fails(clock, message, OUTAGE, 12, delay=1)

    assert (isinstance(outcome, Scheduled), len(waits)) == (True, 12)
    assert fails(clock, message, BUG, 1, delay=1)[0] != Poisoned(13)
    assert fails(clock, message, BUG)[0] == Poisoned(attempts=14)
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("stream", [None, "s"])
def test_leases_that_run_out_are_failures_of_a_reason_too(clock, counts, policy, stream):
    policy(max_attempts=2, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    message = send("mail", stream=stream)
    fails(clock, message, OUTAGE, 3, delay=1)
    for _ in range(2):
        assert claim().ids == [message.id]
        clock.advance(61)

    dead = claim().dead

    assert dead == [message.id]
    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (5, 2)
    assert record.last_failure_reason == LOST
    assert record.verdict == "gave up after 2 of 2 failures; attempts: 5"
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_lost_lease_is_counted_by_its_reason(clock, policy, stream):
    policy(max_attempts=3, reason_policies={"WORKER_LOST": {"max_attempts": 2}})
    message = send("mail", stream=stream)
    fails(clock, message, OUTAGE, 1, delay=1)
    claim()
    clock.advance(61)

    assert claim().ids == [message.id]
    assert Message.objects.get().reason_counts == {"1": 1, "10": 1}
    clock.advance(61)
    assert claim().dead == [message.id]
    assert PoisonRecord.objects.get().max_attempts == 2


def test_counts_that_were_damaged_by_hand_count_as_none(clock, policy):
    policy(max_attempts=3, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    first, second = send("mail"), send("mail")
    Message.objects.filter(pk=first.id).update(reason_counts=["1", 2])
    Message.objects.filter(pk=second.id).update(reason_counts={"1": "x", "10": "many", "2": -1})
    batch = claim()
    clock.advance(61)
    assert claim().ids == batch.ids
    clock.advance(61)
    batch = claim()

    fail(batch.token, [Failure(id, reason=OUTAGE) for id in batch.ids])

    counted = Message.objects.order_by("pk").values_list("reason_counts", flat=True)
    assert list(counted) == [{"1": 1, "10": 2}, {"1": 1, "10": 2}]


def test_without_a_policy_by_reason_attempts_are_what_counts(clock, policy):
    policy(max_attempts=3)
    message = send("mail")
    Message.objects.update(attempts=2, reason_counts=None)

    outcome, _ = fails(clock, message, OUTAGE)

    assert outcome == Poisoned(attempts=3)
    record = PoisonRecord.objects.get()
    assert record.verdict == "gave up after 3 of 3 attempts"


def test_a_policy_damaged_by_hand_is_no_policy(clock, policy):
    policy(max_attempts=2)
    Queue.objects.update(reason_policies={"NONSENSE": {"max_attempts": "x"}})
    message = send("mail")

    outcome, waits = fails(clock, message, OUTAGE, 5)

    assert (outcome, waits) == (Poisoned(attempts=2), [60])


def test_the_backoff_of_a_reason_counts_failures_of_that_reason(clock, policy):
    policy(
        max_attempts=None,
        backoff_cap=1000,
        reason_policies={"TRANSPORT_UNAVAILABLE": {"backoff_base": 5}},
    )
    message = send("mail")

    assert fails(clock, message, BUG, 3)[1] == [60, 120, 240]
    assert fails(clock, message, OUTAGE, 3)[1] == [10, 20, 40]
    assert fails(clock, message, BUG)[1] == [1000]  # 30 * 2**7, by the attempts


@pytest.mark.parametrize(
    ("queue", "own", "wait"),
    [
        ({}, {"backoff_base": 5}, 10),
        ({"cooldown": 7}, {"backoff_base": 5}, 10),
        ({"cooldown": 7}, {"backoff_cap": 50}, 50),
        ({"cooldown": 7}, {"max_attempts": 3}, 7),
        ({"cooldown": 7}, {"cooldown": None}, 60),
        ({"cooldown": 7}, {"cooldown": 9, "backoff_base": 5}, 9),
        ({"backoff_cap": 20}, {"backoff_base": 300}, 20),
        ({"backoff_base": 4}, {"backoff_cap": 100}, 8),
        ({}, {"cooldown": 0}, 0),
    ],
)
def test_the_level_above_wins_and_what_it_leaves_out_is_the_queues(clock, policy, queue, own, wait):
    policy(max_attempts=None, reason_policies={"TRANSPORT_UNAVAILABLE": own}, **queue)
    message = send("mail")

    assert fails(clock, message, OUTAGE)[1] == [wait]


def test_jitter_may_differ_by_reason(clock, policy):
    policy(max_attempts=None, reason_policies={"TRANSPORT_UNAVAILABLE": {"jitter": 1}})
    message = send("mail")

    (wait,) = fails(clock, message, OUTAGE)[1]

    assert 60 < wait <= 120
    assert fails(clock, message, BUG)[1] == [120]


def job(handles, error, **options):
    def run(message):
        raise error

    reasons = read_reasons(options.pop("reason_policies", {}))
    handles("job", run, reasons=reasons, **options)
    return send("job")


def wait_of(clock) -> float:
    return (Message.objects.get().available_at - clock.now).total_seconds()


@pytest.mark.parametrize(
    ("queue", "options", "wait"),
    [
        # what a handler leaves out is the queue's word, not a constant
        ({"backoff_cap": 20}, {"backoff_base": timedelta(seconds=5)}, 10),
        ({"backoff_cap": 8}, {"backoff_base": timedelta(seconds=5)}, 8),
        ({"backoff_base": 10}, {"backoff_cap": timedelta(hours=2)}, 20),
        ({"cooldown": 7}, {"backoff_base": timedelta(seconds=5)}, 10),
        # the handler goes before the queue's word on a reason
        ({"reason_policies": {"HANDLER_EXCEPTION": {"backoff_base": 50}}},
         {"backoff_base": timedelta(seconds=5)}, 10),
        ({"reason_policies": {"HANDLER_EXCEPTION": {"cooldown": 50}}},
         {"backoff_base": timedelta(seconds=5)}, 10),
        # and its word on a reason before all
        ({"reason_policies": {"HANDLER_EXCEPTION": {"backoff_base": 50}}},
         {"backoff_base": timedelta(seconds=5),
          "reason_policies": {"HANDLER_EXCEPTION": {"backoff_base": 3}}}, 6),
        ({"cooldown": 7}, {"reason_policies": {"HANDLER_EXCEPTION": {"cooldown": 9}}}, 9),
        ({}, {"reason_policies": {"TIMEOUT_EXCEEDED": {"cooldown": 9}}}, 60),
    ],
)  # fmt: skip
def test_a_handler_goes_before_its_queue(clock, policy, handles, queue, options, wait):
    policy(max_attempts=None, **queue)
    job(handles, ValueError("no"), **options)

    testing.drain()

    assert wait_of(clock) == wait


def test_retry_goes_before_every_policy(clock, policy, handles):
    policy(max_attempts=None, reason_policies={"HANDLER_EXCEPTION": {"cooldown": 50}})
    job(handles, Retry("later", after=3), backoff_base=timedelta(seconds=5))

    testing.drain()

    assert wait_of(clock) == 3


def test_the_queue_says_twenty_seconds_and_a_handlers_base_does_not_change_that(
    clock, policy, handles
):
    policy(max_attempts=None, backoff_cap=20)
    job(handles, ValueError("no"), backoff_base=timedelta(seconds=5))
    Message.objects.update(attempts=6)

    testing.drain()

    assert wait_of(clock) == 20  # not 5 * 2**7 = 640


def drained(clock, times=40) -> None:
    for _ in range(times):
        testing.drain()
        if not Message.objects.exists():
            return
        clock.advance(wait_of(clock))


@pytest.mark.parametrize(
    ("queue", "options", "attempts", "limit"),
    [
        ({"max_attempts": 5}, {"max_attempts": 2}, 2, 2),
        ({"max_attempts": 2}, {"max_attempts": 4}, 4, 4),
        # a handler's number goes before the queue's for the reason
        ({"max_attempts": 5, "reason_policies": {"HANDLER_EXCEPTION": {"max_attempts": 9}}},
         {"max_attempts": 2}, 2, 2),
        ({"max_attempts": 5, "reason_policies": {"HANDLER_EXCEPTION": {"max_attempts": 9}}},
         {"reason_policies": {"HANDLER_EXCEPTION": {"max_attempts": 3}}}, 3, 3),
        ({"max_attempts": 2},
         {"reason_policies": {"HANDLER_EXCEPTION": {"max_attempts": 6}}}, 6, 6),
        ({"max_attempts": 2}, {"max_attempts": 3,
         "reason_policies": {"HANDLER_EXCEPTION": {"max_attempts": 6}}}, 6, 6),
        ({"max_attempts": 2}, {"reason_policies": {"TIMEOUT_EXCEEDED": {"max_attempts": 6}}}, 2, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [None, "s"])
def test_the_record_has_the_limit_in_force(
    clock, counts, policy, handles, queue, options, attempts, limit, stream
):
    policy(cooldown=1, **queue)
    seen = []

    def run(message):
        seen.append(message.attempt)
        raise ValueError("no")

    reasons = read_reasons(options.get("reason_policies", {}))
    others = {key: value for key, value in options.items() if key != "reason_policies"}
    handles("job", run, reasons=reasons, **others)
    send("job", stream=stream)

    drained(clock)

    record = PoisonRecord.objects.get()
    assert seen == list(range(1, attempts + 1))
    assert (record.attempts, record.max_attempts) == (attempts, limit)
    assert counts() == {"dead": 1}


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"max_attempts": 8}, 8), ({"max_attempts": None}, None), ({}, 5)],
)
def test_a_permanent_failure_records_the_limit_in_force(clock, policy, handles, options, limit):
    job(handles, Permanent("never"), **options)

    testing.drain()

    assert PoisonRecord.objects.get().max_attempts == limit


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_claim_uses_the_largest_limit_of_a_handler_too(clock, counts, policy, handles, stream):
    policy(max_attempts=2)
    reasons = read_reasons({"WORKER_LOST": {"max_attempts": 4}})
    request = ClaimRequest(["default"], policies={"mail": Policy(reasons=reasons)})
    message = send("mail", stream=stream)
    taken = []
    for _ in range(5):
        batch = process_batch(worker="w", claim=request)
        taken.append((batch.ids, batch.dead))
        clock.advance(61)

    assert taken == [*[([message.id], [])] * 4, ([], [message.id])]
    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (4, 4)


@pytest.mark.parametrize("stream", [None, "s"])
def test_what_a_reason_allows_expires_all_the_same(clock, counts, policy, stream):
    policy(max_attempts=1, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    message = send("mail", stream=stream, expires_in=60)
    fails(clock, message, OUTAGE, delay=1)
    clock.advance(60)

    assert claim().dead == [message.id]

    record = PoisonRecord.objects.get()
    assert (record.reason, record.attempts) == (FailureReason.EXPIRED, 1)
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize(
    ("policies", "limit"),
    [
        ({}, 3),
        ({"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}}, 20),
        ({"TRANSPORT_UNAVAILABLE": {"max_attempts": 2}}, 3),
        ({"TRANSPORT_UNAVAILABLE": {"max_attempts": None}}, None),
        ({"TRANSPORT_UNAVAILABLE": {"backoff_base": 5}}, 3),
    ],
)
def test_a_claim_says_the_largest_limit_of_the_queue(clock, policy, policies, limit, stream):
    policy(max_attempts=3, reason_policies=policies)
    send("mail", stream=stream)

    [message] = claim()

    assert message.max_attempts == limit


def test_a_handler_sees_the_largest_limit(clock, policy, handles):
    policy(
        max_attempts=2,
        cooldown=1,
        reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 4}},
    )
    seen = []

    def run(message):
        seen.append((message.attempt, message.max_attempts, message.is_last_attempt))
        raise ConnectionError

    handles("job", run)
    send("job")

    drained(clock)

    assert seen == [(1, 4, False), (2, 4, False), (3, 4, False), (4, 4, True)]


def test_an_abandoned_message_counts_as_a_failure_of_an_unknown_reason(clock, counts, policy):
    policy(max_attempts=2, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    message = send("mail")
    fails(clock, message, OUTAGE, 4, delay=1)
    assert abandon(claim().token, message.id) == Released()
    assert Message.objects.get().reason_counts == {"1": 4, "99": 1}

    assert abandon(claim().token, message.id) == Poisoned(attempts=6)
    assert counts() == {"dead": 1}


@pytest.mark.parametrize(("error", "force"), [(None, False), ("no", False), ("no", True)])
def test_an_abandon_with_its_own_limit_records_it(clock, error, force):
    message = send("mail")
    Message.objects.update(attempts=1)

    outcome = abandon(claim().token, message.id, max_attempts=2, error=error, force_poison=force)

    record = PoisonRecord.objects.get()
    assert outcome == Poisoned(attempts=2)
    assert (record.attempts, record.max_attempts) == (2, 2)
    assert record.verdict == (
        "given up by its worker" if force else "gave up after 2 of 2 attempts"
    )


def unreadable(stream: str | None = None) -> None:
    send("job", stream=stream)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_message SET payload = %s", ["{"])


def test_a_payload_that_cannot_be_read_is_dead_at_once_when_settings_say_so(
    clock, counts, handles, settings
):
    settings.DEADLETTER = {"PERMANENT_REASONS": [FailureReason.SERIALIZATION_ERROR]}
    handles("job", print)
    unreadable()

    tally = testing.drain()

    record = PoisonRecord.objects.get()
    assert tally.poisoned == 1
    assert record.attempts == 1
    assert record.last_failure_reason == FailureReason.SERIALIZATION_ERROR
    assert record.verdict == "failed permanently: SERIALIZATION_ERROR is in PERMANENT_REASONS"
    assert counts() == {"dead": 1}


@pytest.mark.parametrize(("limit", "attempts"), [(0, 1), (1, 1), (2, 2)])
def test_a_payload_that_cannot_be_read_is_judged_by_its_reasons_own_limit(
    clock, counts, handles, policy, limit, attempts
):
    policy(max_attempts=5, reason_policies={"SERIALIZATION_ERROR": {"max_attempts": limit}})
    handles("job", print)
    unreadable()

    drained(clock)

    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (attempts, limit)
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_payload_that_cannot_be_read_dies_at_the_general_limit_whatever_others_have(
    clock, counts, handles, policy, stream
):
    policy(max_attempts=3, reason_policies={"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}})
    handles("job", print)
    unreadable(stream)

    drained(clock)

    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (3, 3)
    assert counts() == {"dead": 1}


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        ([], "expected an object of failure reasons"),
        ({"NO_SUCH": {}}, "'NO_SUCH' is not a failure reason (there are: TRANSPORT_UNAVAILABLE"),
        ({"UNREGISTERED": {}}, "UNREGISTERED: its limit is the field unregistered_attempts"),
        ({"UNKNOWN": 3}, "UNKNOWN: expected an object, got 3"),
        ({"UNKNOWN": {"attempts": 3}}, "UNKNOWN: unknown key 'attempts' (there are: max_attempts"),
        ({"UNKNOWN": {"max_attempts": -1}}, "UNKNOWN: max_attempts: expected a whole number"),
        ({"UNKNOWN": {"max_attempts": True}}, "UNKNOWN: max_attempts: expected a whole number"),
        ({"UNKNOWN": {"max_attempts": 1.5}}, "UNKNOWN: max_attempts: expected a whole number"),
        ({"UNKNOWN": {"max_attempts": 10**7}}, "UNKNOWN: max_attempts: expected a whole number"),
        (
            {"UNKNOWN": {"backoff_base": -1}},
            "UNKNOWN: backoff_base: expected a duration from 0 to 100 years",
        ),
        ({"UNKNOWN": {"backoff_cap": None}}, "UNKNOWN: backoff_cap: expected a"),
        ({"UNKNOWN": {"cooldown": "soon"}}, "UNKNOWN: cooldown: "),
        ({"UNKNOWN": {"jitter": 2}}, "UNKNOWN: jitter: expected a number from 0 to 1"),
    ],
)
def test_a_wrong_policy_is_refused_by_its_key(db, policy, policies, text):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its text is looked at below
        handler("job", reason_policies=policies or [1])
    assert text in str(refused.value)
    assert str(refused.value).startswith("handler job: reason_policies: ")

    with pytest.raises(ValidationError) as invalid:
        policy(reason_policies=policies or [1])
    assert text in invalid.value.message_dict["reason_policies"][0]
    assert Queue.objects.get(name="default").reason_policies == {}


def test_a_policy_is_stored_as_json_whatever_it_was_given_as(db, policy):
    policy(
        reason_policies={
            OUTAGE: {"backoff_base": timedelta(seconds=5), "cooldown": None},
            "UNKNOWN": {"max_attempts": None, "jitter": 0.5},
        }
    )

    assert Queue.objects.get(name="default").reason_policies == {
        "TRANSPORT_UNAVAILABLE": {"backoff_base": 5.0, "cooldown": None},
        "UNKNOWN": {"max_attempts": None, "jitter": 0.5},
    }


def test_a_policy_by_reason_can_be_taken_away(db, policy):
    policy(reason_policies={"UNKNOWN": {"max_attempts": 3}})

    policy(reason_policies=None)

    assert Queue.objects.get(name="default").reason_policies == {}


def test_a_handler_is_registered_with_its_policies(db):
    def run(message): ...

    try:
        handler("job", reason_policies={"UNKNOWN": {"max_attempts": 3}}, backoff_cap=9)(run)
        found = registry.get("job")
    finally:
        registry.remove("job")

    assert found is not None
    assert found.policy == Policy(
        backoff_cap=timedelta(seconds=9),
        reasons={FailureReason.UNKNOWN: Policy(max_attempts=3)},
    )


def test_a_retry_by_a_person_forgets_what_failed_before(clock, policy):  # D15
    policy(max_attempts=1)
    message = send("mail")
    fails(clock, message, BUG)

    operations.retry_poison(PoisonRecord.objects.get().pk)

    row = Message.objects.get()
    assert (row.attempts, row.reason_counts) == (0, None)


def test_a_retry_of_a_waiting_message_forgets_what_failed_before(clock):
    message = send("mail")
    batch = claim()
    fail(batch.token, [Failure(message.id, reason=BUG)])
    Message.objects.update(unregistered_count=3, unregistered_at=clock.now)

    operations.retry_now([message.id])

    row = Message.objects.get()
    assert (row.attempts, row.reason_counts) == (0, None)
    assert (row.unregistered_count, row.unregistered_at) == (None, None)
