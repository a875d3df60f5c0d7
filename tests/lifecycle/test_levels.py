"""A claim looks at the levels that exist: it reads them, or is given levels read before."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from deadletter import Outgoing, lifecycle, operations, send, send_many
from deadletter.lifecycle import ClaimRequest, Levels, claim, process_batch
from deadletter.lifecycle.levels import FEW, oldest_due, priorities, read_levels
from deadletter.models import Message, PoisonRecord, Queue


def found(queues=None, **options) -> Levels:
    """Let a claim of one message find the levels."""
    levels = process_batch(worker="w", claim=ClaimRequest(queues, 1, **options)).levels
    assert levels is not None
    return levels


def pairs(levels) -> list[tuple[str, int]]:
    return [(level.queue, level.priority) for level in levels]


@pytest.fixture
def three(policy) -> list[str]:
    for name in ("a", "b", "c"):
        policy(name)
    return ["a", "b", "c"]


def test_levels_come_by_preference_then_by_priority(clock, three):
    for queue, priority in (("a", 5), ("b", 100), ("a", -100), ("c", 0), ("b", -1)):
        send_many([Outgoing("m", priority=priority) for _ in range(3)], queue=queue)

    assert pairs(found(["c", "a"]).due) == [("c", 0), ("a", -100), ("a", 5)]
    assert pairs(found().due) == [("a", -100), ("a", 5), ("b", -1), ("b", 100), ("c", 0)]


@pytest.mark.slow
def test_many_names_come_in_their_order_too(clock, policy):
    names = [f"n{n}" for n in range(FEW + 5)]
    for name in reversed(names):
        policy(name)
        send_many([Outgoing("m", priority=1), Outgoing("m", priority=-1)], queue=name)
    send("m")

    batch = claim(names, limit=1_000)

    expected = [name for name in names for _ in range(2)]
    assert [message.queue for message in batch] == expected
    assert Message.objects.filter(queue__name="default", lease_token=None).count() == 1


def test_all_201_levels_come_in_order(clock):
    wanted = list(range(-100, 101))
    ids = send_many([Outgoing("m", priority=priority) for priority in reversed(wanted)])

    assert claim(limit=1_000).ids == ids[::-1]


def test_levels_of_the_future_are_not_among_them_until_they_are_nearly_due(clock):
    send("m", priority=1, delay=1)
    send("m", priority=2, delay=2)

    assert pairs(found().due) == [("default", 1)]
    clock.advance(1)
    assert pairs(found().due) == [("default", 1), ("default", 2)]


def test_what_is_due_at_a_level_that_is_not_given_is_found_when_the_others_did_not_fill(clock):
    known = Levels((), 0.0)
    send("m", priority=-7)

    without = process_batch(
        worker="w", claim=ClaimRequest(levels=known, rediscover=False, limit=10)
    )
    with_it = process_batch(worker="w", claim=ClaimRequest(levels=known, limit=10))

    assert without.ids == []
    assert len(with_it.ids) == 1
    assert with_it.levels is not None


def test_levels_that_fill_the_batch_are_all_that_is_looked_at(clock):
    known = [send("m", priority=5).id for _ in range(4)]
    levels = read_levels("default")
    better = send("m", priority=-5)

    batch = process_batch(
        worker="w", claim=ClaimRequest(limit=4, levels=Levels(tuple(levels), 0.0))
    )

    assert batch.ids == known
    assert batch.levels is None
    assert claim().ids == [better.id]


@pytest.mark.parametrize("is_named", [True, False])
def test_a_queue_that_is_paused_since_hands_out_nothing(clock, policy, is_named):
    send("m")
    known = Levels(tuple(read_levels("default")), 0.0)
    names = ["default"] if is_named else None
    request = ClaimRequest(names, levels=known, rediscover=False)
    Queue.objects.filter(name="default").update(paused=True)

    paused = process_batch(worker="w", claim=request)
    Queue.objects.filter(name="default").update(paused=False)
    resumed = process_batch(worker="w", claim=request)

    assert (len(paused), len(resumed)) == (0, 1)


def test_a_queue_that_is_renamed_since_is_no_longer_the_one_asked_for(clock):
    send("m")
    known = Levels(tuple(read_levels("default")), 0.0)
    Queue.objects.filter(name="default").update(name="other")

    by_name = process_batch(
        worker="w", claim=ClaimRequest(["default"], levels=known, rediscover=False)
    )
    of_all = process_batch(worker="w", claim=ClaimRequest(levels=known, rediscover=False))

    assert by_name.ids == []
    assert [message.queue for message in of_all] == ["other"]


def test_a_queue_that_became_a_dead_queue_is_only_served_by_name(clock, policy):
    policy("dead")
    send("m", queue="dead")
    known = Levels(tuple(read_levels("default")), 0.0)
    policy("default", on_poison="dead_queue", dead_queue=Queue.objects.get(name="dead"))

    of_all = process_batch(worker="w", claim=ClaimRequest(levels=known, rediscover=False))

    assert of_all.ids == []
    assert claim().ids == []
    assert len(claim(["dead"])) == 1


def test_levels_of_a_queue_that_is_not_asked_for_are_passed_over(clock, three):
    """As when deadletter's own queue is left out for a moment by a worker that knows its levels."""
    send("m", queue="b")
    known = Levels(tuple(read_levels("default")), 0.0)

    others = process_batch(
        worker="w", claim=ClaimRequest(["a", "c"], levels=known, rediscover=False)
    )
    asked = process_batch(worker="w", claim=ClaimRequest(["b"], levels=known, rediscover=False))

    assert (len(others), len(asked)) == (0, 1)


def test_the_policy_of_this_moment_holds(clock, policy):
    send("m")
    known = Levels(tuple(read_levels("default")), 0.0)
    policy("default", lease_timeout=timedelta(seconds=7), max_attempts=9)

    batch = process_batch(worker="w", claim=ClaimRequest(levels=known, rediscover=False))

    assert [(message.lease, message.max_attempts) for message in batch] == [
        (timedelta(seconds=7), 9)
    ]


@pytest.mark.slow
def test_queues_are_shuffled_and_their_priorities_are_not(clock, three):
    orders = set()
    for name in three:
        send_many([Outgoing("m", priority=p) for p in (2, -2)] * 60, queue=name)

    for _ in range(40):
        batch = process_batch(worker="w", claim=ClaimRequest(limit=130, shuffle=True))
        seen = [(message.queue, message.id) for message in batch]
        orders.add(tuple(dict.fromkeys(queue for queue, _ in seen)))
        lifecycle.release(batch.token, batch.ids)
        rows = dict(Message.objects.values_list("id", "priority"))
        first = [rows[id] for queue, id in seen if queue == seen[0][0]]
        assert first == sorted(first)

    assert len(orders) > 1


def test_pages_see_every_level_and_since_when_a_queue_waits(clock, policy):
    policy("later")
    send("m", priority=50)
    clock.advance(10)
    send("m", priority=-50)
    send("m", queue="later", delay=60, priority=3)

    levels = read_levels("default")

    assert priorities(levels) == {"default": [-50, 50], "later": [3]}
    waiting = oldest_due(levels, now=clock.now)
    assert waiting == {"default": clock.now - timedelta(seconds=10)}


#: Times that Python cannot read, some of them long past.
UNREADABLE = {
    "postgresql": ["-infinity", "0044-03-15 BC", "0001-01-01", "infinity", "10000-01-01"],
    "sqlite": ["", "5", 5, 0.5, "2025-02-30 00:00:00", "0000-00-00", "garbage"],
}


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("names", [["default"], None], ids=["by name", "all queues"])
def test_a_time_that_cannot_be_read_hides_nothing_at_its_level(transactional_db, names, place):
    """Not inside a transaction of the test: then SQLite would not look ahead."""
    if place >= len(UNREADABLE[connection.vendor]):
        pytest.skip("the other database can hold more")
    bad = send("bad")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE deadletter_message SET available_at = %s WHERE id = %s",
            [UNREADABLE[connection.vendor][place], bad.pk],
        )
    good = send("good")

    assert good.pk in claim(names).ids
    assert [(level.queue, level.priority) for level in read_levels("default")] == [("default", 0)]


def test_a_quarantined_message_keeps_a_priority_below_zero(clock):
    message = send("m", priority=-100)
    batch = claim()

    lifecycle.fail(batch.token, [lifecycle.Failure(message.id, permanent=True)])
    record = PoisonRecord.objects.get()
    operations.retry_poison([record.pk])

    assert record.priority == -100
    assert Message.objects.get().priority == -100


@pytest.fixture
def writer(transactional_db):
    """Another connection that holds SQLite's write lock; ours does not wait for it."""
    other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 0")
    yield other
    other.close()
    connection.close()


LOCK = pytest.mark.sqlite_only(reason="PostgreSQL has no lock for all writers")


@LOCK
def test_a_claim_that_finds_nothing_does_not_need_the_write_lock(writer):
    send("m", delay=3600)
    writer.execute("BEGIN IMMEDIATE")

    batch = claim()
    exchanged = process_batch(worker="w", claim=ClaimRequest(token="mine"))
    known = process_batch(worker="w", claim=ClaimRequest(levels=Levels((), 0.0), rediscover=False))

    assert (batch.ids, exchanged.ids, known.ids) == ([], [], [])
    assert exchanged.token == "mine"
    assert exchanged.levels == ((), *exchanged.levels[1:])


@LOCK
def test_a_claim_that_finds_something_takes_it_under_the_write_lock(writer):
    send("m")
    writer.execute("BEGIN IMMEDIATE")

    with pytest.raises(OperationalError, match="locked"):
        claim()
    writer.execute("ROLLBACK")

    assert len(claim()) == 1


@LOCK
def test_what_another_took_after_the_look_is_not_taken_twice(transactional_db, monkeypatch):
    """The look is a hint; the claim decides under the lock."""
    message = send("m")
    real = lifecycle.batch.look_ahead
    taken = []

    def look_then_lose(request, *, using):
        hint = real(request, using=using)
        monkeypatch.setattr(lifecycle.batch, "look_ahead", real)
        taken.extend(claim().ids)
        return hint

    monkeypatch.setattr(lifecycle.batch, "look_ahead", look_then_lose)
    batch = process_batch(worker="late", claim=ClaimRequest())

    assert taken == [message.id]
    assert batch.ids == []
