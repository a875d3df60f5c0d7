"""The contents of the tables by state: how many, since when, and whether a worker serves them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import Outgoing, lifecycle, operations, send, send_many
from deadletter.lifecycle import Failure
from deadletter.metrics import depths
from deadletter.metrics.depths import read_depths, read_poison
from deadletter.metrics.process_counters import OTHER
from deadletter.models import Breaker, Message, PoisonRecord, Queue, StreamPolicy, WorkerProcess
from deadletter.sql.planner import INDEX_ONLY, by_index
from tests.operations.records import failed

pytestmark = pytest.mark.django_db

EMPTY = {"pending": 0, "scheduled": 0, "failed": 0, "active": 0, "blocked": 0, "dead": 0}


def die(*messages: Message) -> None:
    """Quarantine what was just sent."""
    batch = lifecycle.claim(limit=len(messages), worker="w")
    assert {m.pk for m in messages} == set(batch.ids)
    lifecycle.fail(batch.token, [Failure(id, error="no", permanent=True) for id in batch.ids])


def test_an_empty_queue_has_every_state(clock):
    [(name, found)] = read_depths("default").queues.items()

    assert (name, found.states) == ("default", EMPTY)
    assert (found.oldest, found.paused, found.workers, found.halted) == (0.0, False, 0, 0)


def test_each_message_is_counted_in_its_state(clock, counts):
    die(send("job"), send("job"))
    send("job", delay=60)
    send_many([Outgoing("job", stream="s") for _ in range(3)])
    lifecycle.claim(limit=1, worker="w")
    failing = lifecycle.claim(limit=1, worker="w")
    assert not failing.ids  # the stream is busy: its followers are parked now
    send_many([Outgoing("job") for _ in range(2)])
    failing = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(failing.token, [Failure(failing.ids[0], error="no")])

    [found] = read_depths("default").queues.values()

    assert {state: n for state, n in found.states.items() if n} == counts()
    assert found.states["dead"] == 2
    assert found.states["failed"] == 1


def test_queues_do_not_count_each_other(clock):
    mail = Queue.objects.create(name="mail", paused=True)
    Queue.objects.filter(name="default").update(dead_queue=mail)
    send("job", queue="mail")

    found = read_depths("default").queues

    assert found["default"].states == EMPTY
    assert found["mail"].states == EMPTY | {"pending": 1}
    assert (found["default"].paused, found["mail"].paused) == (False, True)
    assert (found["default"].is_dead_queue, found["mail"].is_dead_queue) == (False, True)


def test_the_oldest_is_the_one_that_could_have_been_handled_first(clock):
    send("job", delay=100)
    send("job", priority=9)
    clock.advance(40)
    send("job")

    [found] = read_depths("default").queues.values()

    assert found.oldest == 40


def test_a_depth_is_counted_up_to_a_limit(clock, monkeypatch):
    monkeypatch.setattr(depths, "CAP", 3)
    monkeypatch.setattr("deadletter.operations.depths.LOOK", 2)
    send_many([Outgoing("job") for _ in range(5)])
    send_many([Outgoing("job", delay=60) for _ in range(5)])

    [found] = read_depths("default").queues.values()

    assert found.states == EMPTY | {"pending": 3, "scheduled": 2}


def test_the_next_retry_and_the_next_scheduled_message_are_told(clock):
    [found] = read_depths("default").queues.values()
    assert (found.next_retry, found.next_scheduled) == (None, None)
    for name in ("first", "second"):
        message = send(name)
        batch = lifecycle.claim(limit=1)
        lifecycle.fail(batch.token, [Failure(message.pk, error="no")])
        clock.advance(20)
    send("later", delay=500)
    send("sooner", delay=300, priority=5)
    send("active", priority=-5)
    lifecycle.claim(limit=1)
    unreadable = send("never", delay=900)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE deadletter_message SET available_at = 'infinity' WHERE id = %s",
                [unreadable.pk],
            )

    [found] = read_depths("default").queues.values()

    assert (found.next_retry, found.next_scheduled) == (20, 300)
    assert (found.states["failed"], found.states["scheduled"]) == (2, 3)


def test_failed_messages_are_told_by_attempts_and_how_many_are_candidates(clock, monkeypatch):
    send("plain")
    for attempts in (1, 1, 2, 7, 10, 300):
        message = failed(priority=-1)
        Message.objects.filter(pk=message.pk).update(attempts=attempts)
    parked = failed(priority=-1)
    Message.objects.filter(pk=parked.pk).update(attempts=10, available_at=None)

    found = read_depths("default")

    bands = {"1": 2, "2": 1, "3": 0, "4": 0, "5": 0, "6-9": 1, "10+": 3}
    assert (found.attempts, found.candidates) == (bands, 2)
    assert operations.stats().candidates == 2
    monkeypatch.setattr(depths, "CLASSIFIED", 3)
    assert sum(read_depths("default").attempts.values()) == 3


@pytest.mark.slow
def test_failed_messages_are_found_by_their_index(clock):
    send_many([Outgoing("job") for _ in range(3_000)])
    Message.objects.filter(pk=send("job").pk).update(status=32769)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    with by_index("default", INDEX_ONLY):
        plan = depths.failed_first("default").values("attempts").explain()

    assert "deadletter_failed" in plan


def test_only_workers_seen_lately_are_alive(clock):
    for name, ago, queues in (
        ("a", 0, ["default", "mail"]),
        ("b", 30, ["mail"]),
        ("c", 31, ["default"]),
        ("d", 90, ["default"]),
    ):
        WorkerProcess.objects.create(
            name=name,
            host="h",
            pid=1,
            version="1",
            concurrency=1,
            queues=queues,
            started_at=clock.now,
            seen_at=clock.now - timedelta(seconds=ago),
        )

    found = read_depths("default")

    assert found.workers == 2
    assert found.queues["default"].workers == 1


def test_open_breakers_and_halted_streams_are_told(clock):
    Queue.objects.filter(name="default").update(stream_policy=StreamPolicy.HALT)
    die(send("job", stream="a"), send("job", stream="b"))
    Breaker.objects.create(
        name="job",
        failures=3,
        error="e",
        opened_at=clock.now,
        until=clock.now + timedelta(minutes=1),
        opened_by="w",
    )

    found = read_depths("default")

    assert found.breakers == ["job"]
    assert found.queues["default"].halted == 2


def test_a_breaker_whose_time_is_over_is_not_open(clock):
    Breaker.objects.create(
        name="job",
        failures=3,
        error="e",
        opened_at=clock.now,
        until=clock.now + timedelta(seconds=30),
        opened_by="w",
    )
    clock.advance(29)
    assert read_depths("default").breakers == ["job"]
    assert list(operations.stats().breakers) == ["job"]

    clock.advance(1)

    assert read_depths("default").breakers == []
    assert operations.stats().breakers == {}
    assert Breaker.objects.count() == 1  # the next message of that name is the probe


def test_poison_is_counted_by_kind(clock):
    die(send("job"), send("job"), send("job"), send("job"))
    activity, strange = PoisonRecord.objects.values_list("pk", flat=True)[:2]
    PoisonRecord.objects.filter(pk=activity).update(kind="activity")
    PoisonRecord.objects.filter(pk=strange).update(kind="strange")

    assert read_poison("default") == {
        "message": 2,
        "orchestration": 0,
        "activity": 1,
        "task": 0,
        "event": 0,
        OTHER: 1,
    }


def test_the_number_of_questions_depends_on_queues_only(clock):
    send_many([Outgoing("job") for _ in range(50)])
    with CaptureQueriesContext(connection) as few:
        read_depths("default")
    send_many([Outgoing("job", stream=f"s{n}") for n in range(50)])
    with CaptureQueriesContext(connection) as many:
        read_depths("default")

    assert len(few) == len(many) <= 24


def test_who_serves_by_pattern_serves_what_it_matches_and_no_dead_queue(clock, policy):
    dead = policy("tenant-a/dead")
    policy("tenant-a/mail", dead_queue=dead, on_poison="dead_queue")
    policy("tenant-b/mail")
    WorkerProcess.objects.create(
        name="w", host="h", pid=1, version="1", concurrency=1, queues=["tenant-a/*"],
        started_at=clock.now, seen_at=clock.now,
    )  # fmt: skip

    workers = {name: depth.workers for name, depth in read_depths("default").queues.items()}

    assert workers == {"default": 0, "tenant-a/dead": 0, "tenant-a/mail": 1, "tenant-b/mail": 0}
