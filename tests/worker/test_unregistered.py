"""A name without a handler is no failure: the message waits, with a count and limit of its own."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import FailureReason, Status, operations, send, testing
from deadletter.models import Message, PoisonRecord, Queue, WorkerProcess
from deadletter.worker.registry import registry


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
    policy(max_attempts=None, cooldown=7, unregistered_attempts=None)
    send("nobody.knows")

    assert waits(clock, 9) == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_with_three_attempts_the_fourth_claim_poisons(clock, counts, policy):  # U5
    policy(max_attempts=3, unregistered_attempts=None)
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
    policy(max_attempts=10, unregistered_attempts=None)
    send("nobody.knows")

    assert len(waits(clock, 20)) == 10
    assert PoisonRecord.objects.get().attempts == 10


def test_nothing_is_written_as_failed_while_it_waits(clock, counts):  # U1, U13
    send("nobody.knows")

    tally = testing.drain()

    row = Message.objects.get()
    assert (tally.deferred, tally.failed) == (1, 0)
    assert (row.status, row.history, row.attempts) == (Status.STORED, [], 0)
    assert (row.unregistered_count, row.reason_counts) == (1, None)
    assert counts() == {"scheduled": 1}


def test_a_handler_registered_meanwhile_gets_the_message(clock, counts, handles):  # U10
    seen = []
    send("nobody.knows")
    testing.drain()

    handles("nobody.knows", lambda message: seen.append(message.attempt))
    clock.advance(1)
    testing.drain()

    assert seen == [1]
    assert counts() == {}


def test_a_handler_that_appears_has_its_full_number_of_attempts(clock, counts, handles, policy):
    policy(max_attempts=3, unregistered_attempts=None)
    send("sometimes.known")
    assert waits(clock, 3) == [1, 2, 4]  # one more and it would be dead
    attempts = []

    def fails(message):
        attempts.append((message.attempt, message.is_last_attempt))
        raise ValueError

    handles("sometimes.known", fails)

    assert waits(clock, 5) == [60, 120]
    assert attempts == [(1, False), (2, False), (3, True)]
    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (3, 3)
    assert record.last_failure_reason == FailureReason.HANDLER_EXCEPTION
    assert counts() == {"dead": 1}


def test_the_count_of_deferrals_outlives_a_failure_and_drives_the_backoff(clock, handles, policy):
    policy(max_attempts=None, unregistered_attempts=None)
    send("sometimes.known")
    assert waits(clock, 2) == [1, 2]

    def fails(message):
        raise ValueError

    handles("sometimes.known", fails)
    assert waits(clock, 1) == [60]
    registry.remove("sometimes.known")

    assert waits(clock, 2) == [4, 8]
    row = Message.objects.get()
    assert (row.attempts, row.unregistered_count, row.reason_counts) == (1, 4, {"2": 1})


def test_a_queue_may_put_unknown_names_off_more_often(clock, counts, policy):
    policy(max_attempts=5, unregistered_attempts=10)
    send("nobody.knows")

    found = waits(clock, 20)

    assert found == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert sum(found) == 303
    record = PoisonRecord.objects.get()
    assert (record.attempts, record.max_attempts) == (10, 10)
    assert record.verdict == "gave up after 10 of 10 deferrals: no worker knows its name"
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("limit", [0, 1])
def test_a_limit_of_nothing_still_puts_off_once(clock, counts, policy, limit, stream):
    policy(max_attempts=5, unregistered_attempts=limit)
    send("nobody.knows", stream=stream)

    assert waits(clock, 5) == [1]
    assert counts() == {"dead": 1}


def test_without_a_limit_of_its_own_a_queue_without_attempts_never_gives_up(clock, policy):
    policy(max_attempts=None, unregistered_attempts=None)
    send("nobody.knows")

    assert len(waits(clock, 30)) == 30


def test_an_edited_limit_acts_at_the_next_claim(clock, counts, policy):  # B22
    policy(max_attempts=5, unregistered_attempts=2)
    send("nobody.knows")
    waits(clock, 2)
    policy(unregistered_attempts=3)
    assert waits(clock, 1) == [4]

    policy(unregistered_attempts=1)
    testing.drain()

    assert counts() == {"dead": 1}


def worker(clock, *, queues=("default",), handlers=(), ago=0):
    seen_at = clock.now - timedelta(seconds=ago)
    fields = {"queues": list(queues), "handlers": list(handlers), "seen_at": seen_at}
    identity = {"host": "h", "pid": 1, "version": "1", "concurrency": 1, "started_at": seen_at}
    row, _ = WorkerProcess.objects.update_or_create(name="other", defaults={**identity, **fields})
    return row


KNOWN = [["message", "nobody.knows"]]


@pytest.mark.parametrize("stream", [None, "s"])
def test_beyond_the_limit_it_is_put_off_while_another_worker_knows_it(
    clock, counts, policy, stream
):
    policy(max_attempts=5, unregistered_attempts=2)
    send("nobody.knows", stream=stream)
    assert waits(clock, 2) == [1, 2]
    found = []
    for _ in range(5):
        worker(clock, handlers=KNOWN)
        found += waits(clock, 1)

    assert found == [4, 8, 16, 32, 60]
    row = Message.objects.get()
    assert (row.attempts, row.unregistered_count) == (0, 7)
    WorkerProcess.objects.all().delete()
    testing.drain()
    assert counts() == {"dead": 1}


def test_a_worker_that_serves_a_queue_by_pattern_may_know_it(clock, counts, policy):
    """Its row names a queue that was made a moment ago by the pattern only."""
    policy("tenant-a/mail", max_attempts=5, unregistered_attempts=2)
    send("nobody.knows", queue="tenant-a/mail")
    waits(clock, 2)
    worker(clock, handlers=KNOWN, queues=["tenant-b/*", "tenant-a/*"])

    assert waits(clock, 1) == [4]

    # No pattern matches a dead queue.
    dead = Queue.objects.get(name="tenant-a/mail")
    policy("source", on_poison="dead_queue", dead_queue=dead)
    worker(clock, handlers=KNOWN, queues=["tenant-a/*"])
    testing.drain(queues=["tenant-a/mail"])
    assert counts() == {"dead": 1}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"handlers": [["message", "other.name"]]},
        {"handlers": KNOWN, "queues": ["mail"]},
        {"handlers": KNOWN, "queues": []},
        {"handlers": KNOWN, "ago": 31},
        {"handlers": [["orchestration", "nobody.knows", "1"]]},
        {"handlers": ["nobody.knows", None, []]},
    ],
    ids=["old", "another name", "another queue", "draining", "dead", "a flow", "damaged"],
)
def test_a_worker_that_could_not_get_it_saves_nothing(clock, counts, policy, other):
    policy(max_attempts=5, unregistered_attempts=2)
    send("nobody.knows")
    waits(clock, 2)

    worker(clock, **other)
    testing.drain()

    assert counts() == {"dead": 1}


@pytest.mark.parametrize("dead_queue", [False, True])
def test_a_worker_may_serve_its_queue_by_a_pattern(clock, counts, policy, dead_queue):  # D33
    policy(max_attempts=5, unregistered_attempts=1)
    if dead_queue:
        default = Queue.objects.get(name="default")
        Queue.objects.create(name="other", on_poison="dead_queue", dead_queue=default)
    send("nobody.knows")
    testing.drain(queues=["default"])
    clock.advance(1)

    worker(clock, queues=["de?ault*"], handlers=KNOWN)
    testing.drain(queues=["default"])

    # No pattern matches a dead queue.
    assert counts() == ({"dead": 1} if dead_queue else {"scheduled": 1})


def test_a_known_name_is_put_off_for_a_day_at_most(clock, counts, policy):
    policy(max_attempts=5, unregistered_attempts=2)
    send("nobody.knows")
    testing.drain()
    clock.advance(1)
    testing.drain()
    began = clock.now
    clock.advance(timedelta(hours=24) - timedelta(seconds=10))
    worker(clock, handlers=KNOWN)
    testing.drain()
    assert Message.objects.get().unregistered_at == began
    assert counts() == {"scheduled": 1}

    clock.advance(10)
    worker(clock, handlers=KNOWN)
    testing.drain()

    assert counts() == {"dead": 1}
    assert PoisonRecord.objects.get().attempts == 3


def test_a_claimer_that_knows_it_takes_it_whenever_it_comes(clock, counts, handles, policy):
    policy(max_attempts=5, unregistered_attempts=1)
    send("nobody.knows")
    testing.drain()
    clock.advance(timedelta(days=3))
    seen = []
    handles("nobody.knows", lambda message: seen.append(message.attempt))

    testing.drain()

    assert seen == [1]
    assert counts() == {}


def test_worker_rows_are_read_only_when_a_message_is_over_its_limit(clock, policy):
    policy(max_attempts=5, unregistered_attempts=2)
    send("nobody.knows")

    def asked() -> int:
        with CaptureQueriesContext(connection) as seen:
            testing.drain()
        return sum("deadletter_worker" in query["sql"] for query in seen.captured_queries)

    found = [asked()]
    clock.advance(1)
    found.append(asked())
    clock.advance(2)

    assert [*found, asked()] == [0, 0, 1]


def test_a_retry_by_a_person_begins_to_count_anew(clock, policy):  # D15
    policy(max_attempts=5, unregistered_attempts=2)
    send("nobody.knows")
    waits(clock, 5)

    operations.retry_poison(PoisonRecord.objects.get().pk)

    row = Message.objects.get()
    assert (row.unregistered_count, row.unregistered_at, row.reason_counts) == (None, None, None)
    assert waits(clock, 5) == [1, 2]
    assert PoisonRecord.objects.get().poison_count == 2


def test_the_delays_are_settings(clock, policy, settings):  # U4
    settings.DEADLETTER = {"UNREGISTERED_BASE": 0.1, "UNREGISTERED_CAP": 0.5}
    policy(max_attempts=5, unregistered_attempts=None)
    send("nobody.knows")

    assert waits(clock, 10) == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.mark.parametrize(("limit", "remaining"), [(5, "4"), (1, "0"), (None, "unlimited")])
def test_each_deferral_is_a_warning(clock, policy, caplog, limit, remaining):  # U7
    caplog.set_level(logging.WARNING, logger="deadletter")
    policy(max_attempts=limit, unregistered_attempts=None)
    send("nobody.knows")

    testing.drain()

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "nobody.knows" in record.message
    assert f"attempt 1 of {limit}: waiting 1.0 s" in record.message
    assert f"will poison in {remaining} more attempts" in record.message


def test_poison_of_an_unknown_name_can_be_removed(clock, counts, policy):  # U14
    policy(max_attempts=1, unregistered_attempts=None)
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


def test_a_message_of_a_kind_that_only_a_later_release_knows_is_judged_like_others(
    clock, counts, policy
):
    policy(max_attempts=5, unregistered_attempts=2)
    id = send("nobody.knows").pk
    Message.objects.filter(pk=id).update(kind="saga")
    waits(clock, 2)

    worker(clock, handlers=[["saga", "nobody.knows"]])
    found = waits(clock, 1)
    worker(clock, handlers=KNOWN)
    testing.drain()

    assert found == [4]
    assert counts() == {"dead": 1}


def test_a_task_is_no_handler_of_messages(clock, counts, policy):
    policy(max_attempts=5, unregistered_attempts=2)
    send("nobody.knows")
    waits(clock, 2)

    worker(clock, handlers=[["message", "nobody.knows", "task"], ["task", "nobody.knows"]])
    testing.drain()

    assert counts() == {"dead": 1}
