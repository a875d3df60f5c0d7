"""A message in a dead queue keeps where and why it died; a retry moves it back under its id."""

from __future__ import annotations

import pytest

from deadletter import FailureReason, Status, crash_points, operations, send
from deadletter.lifecycle import Failure, claim, complete, fail, sweep
from deadletter.lifecycle.dead_queues import read_original_death
from deadletter.models import (
    AuditedMessage,
    AuditEntry,
    Count,
    Message,
    PoisonRecord,
    Queue,
)


@pytest.fixture
def dead(policy) -> Queue:
    """The dead queue of "default"."""
    queue = policy("dead")
    policy(on_poison="dead_queue", dead_queue=queue)
    return queue


def die(message: Message, queue: str = "default", **failure) -> None:
    batch = claim(queues=[queue])
    assert message.id in batch.ids
    fail(batch.token, [Failure(message.id, permanent=True, **failure)])


def moved(message: Message) -> Message:
    return Message.objects.get(source_id=message.id)


def poisoned() -> dict[str, int]:
    """How many deaths the statistics know, by queue."""
    rows = Count.objects.filter(poisoned__gt=0).values_list("queue", "poisoned")
    found: dict[str, int] = {}
    for queue, n in rows:
        found[queue] = found.get(queue, 0) + n
    return found


def test_the_move_keeps_where_and_why_it_died(clock, policy, dead):
    policy(max_attempts=7)
    message = send("mail", key="k")
    clock.advance(5)

    die(
        message,
        error="boom",
        reason=FailureReason.TRANSPORT_UNAVAILABLE,
        completed=Status.EVENT_STORED,
    )

    row = moved(message)
    burial = read_original_death(row)
    assert burial is not None
    assert (burial.queue, burial.message_id, burial.key) == ("default", message.id, "k")
    assert (burial.reason, burial.cause) == (
        FailureReason.POISON_MESSAGE,
        FailureReason.TRANSPORT_UNAVAILABLE,
    )
    assert (burial.error, burial.attempts, burial.max_attempts) == ("boom", 1, 7)
    assert burial.status & Status.EVENT_STORED
    assert (burial.at, burial.created_at) == (clock.now, message.created_at)
    assert row.died_at == clock.now
    assert row.fingerprint == burial.fingerprint != ""
    assert row.poison_count == 1
    assert poisoned() == {"default": 1}


def test_a_retry_moves_it_back_under_its_own_id(clock, counts, dead):
    message = send("mail", {"to": 1}, headers={"h": 1}, key="k", priority=3)
    die(message, error="boom", completed=Status.EVENT_STORED)
    clock.advance(60)

    found = operations.retry_dead(moved(message).id, "ann", why="repaired")

    back = Message.objects.get()
    assert (back.id, back.queue.name, back.source_id) == (message.id, "default", None)
    assert (back.attempts, back.key, back.priority) == (0, "k", 3)
    assert back.status == Status.STORED | Status.EVENT_STORED
    assert (back.payload, back.headers) == ({"to": 1}, {"h": 1})
    assert (back.death, back.fingerprint, back.died_at) == (None, None, None)
    assert (back.created_at, back.available_at) == (message.created_at, clock.now)
    assert [entry["error"] for entry in back.history] == ["boom"]
    assert back.poison_count == 1
    entry = AuditEntry.objects.get(pk=found.entry_id)
    assert (entry.act, entry.by, entry.why, entry.done) == ("retry", "ann", "repaired", 1)
    assert counts() == {"pending": 1}
    assert Count.objects.get(retried__gt=0).queue == "default"


@pytest.mark.parametrize(("end", "outcome"), [("complete", 1), ("die", 2)])
def test_a_retry_is_followed_to_its_outcome(clock, dead, end, outcome):
    message = send("mail")
    die(message, error="boom")
    operations.retry_dead(moved(message).id)

    if end == "complete":
        batch = claim()
        complete(batch.token, batch.ids)
    else:
        die(message, error="boom")
    sweep()

    row = AuditedMessage.objects.get()
    assert (row.message_id, row.outcome, row.is_open) == (message.id, outcome, False)


def test_what_was_retried_and_dies_again_has_died_twice(clock, dead):
    message = send("mail")
    die(message)
    operations.retry_dead(moved(message).id)
    die(message)

    assert moved(message).poison_count == 2
    assert poisoned() == {"default": 2}


def test_a_retry_may_lead_to_another_queue(clock, policy, dead):
    policy("other")
    message = send("mail")
    die(message)

    operations.retry_dead(moved(message).id, queue="other")

    assert Message.objects.get().queue.name == "other"
    assert Message.objects.get().id == message.id


def test_a_payload_may_be_replaced_on_the_way_and_the_old_one_stays_readable(clock, dead):
    message = send("mail", {"to": 1})
    die(message)

    operations.retry_dead(moved(message).id, "ann", payload={"to": 2})

    back = Message.objects.get()
    assert back.payload == {"to": 2}
    assert back.history[-1]["original_payload"] == '{"to":1}'
    assert back.history[-1]["error"] == "payload edited by ann"


def test_in_its_stream_it_is_the_first_again(clock, dead):
    first, *_ = [send("mail", stream="a") for _ in range(3)]
    batch = claim(limit=1)
    fail(batch.token, [Failure(first.id, permanent=True)])

    operations.retry_dead(moved(first).id)

    assert claim(limit=1).ids == [first.id]
    assert claim().ids == []


def test_the_stream_of_the_dead_queue_goes_on_without_it(clock, policy, dead):
    first, second = send("mail", stream="a"), send("mail", stream="a")
    batch = claim()
    fail(batch.token, [Failure(id, permanent=True) for id in batch.ids])
    policy("dead", backoff_base=1000)
    there = claim(queues=["dead"], limit=1)
    fail(there.token, [Failure(moved(first).id)])
    assert claim(queues=["dead"]).ids == []

    operations.retry_dead(moved(first).id)

    assert claim(queues=["dead"]).ids == [moved(second).id]


def test_the_insert_comes_before_the_delete_and_both_or_nothing_happen(clock, counts, dead):
    message = send("mail")
    die(message)
    seen = []

    def crash(point: str, subject: object) -> None:
        if point == "retry.restored":
            seen.append(set(Message.objects.values_list("id", flat=True)))
            raise RuntimeError("power cut")

    copy = moved(message).id
    crash_points.listen(crash)
    try:
        with pytest.raises(RuntimeError):
            operations.retry_dead(copy)
    finally:
        crash_points.listen(None)

    assert seen == [{message.id, copy}]
    assert Message.objects.get().id == copy


def test_a_message_that_is_being_handled_is_refused(clock, dead):
    message = send("mail")
    die(message)
    batch = claim(queues=["dead"])

    found = operations.retry_dead(batch.ids)

    assert found.refused == {
        batch.ids[0]: f"message {batch.ids[0]} is active; wait for its lease to end"
    }
    assert moved(message).id == batch.ids[0]


def test_an_id_that_is_in_use_is_refused(clock, dead):
    message = send("mail")
    die(message)
    copy = moved(message)
    Message.objects.create(id=message.id, queue=Queue.objects.get(name="default"), name="mail")

    found = operations.retry_dead(copy.id)

    text = f"a message with its id {message.id}, or from the same source, is in a queue"
    assert found.refused == {copy.id: text}
    assert Message.objects.count() == 2


def test_an_id_that_a_poison_record_has_is_refused(clock, dead, policy):
    message = send("mail")
    die(message)
    copy = moved(message)
    PoisonRecord.objects.create(
        message_id=message.id,
        queue="default",
        name="mail",
        attempts=1,
        reason=1,
        verdict="",
        fingerprint="f",
        original_created_at=clock.now,
        poisoned_at=clock.now,
        poisoned_by="w",
    )

    found = operations.retry_dead(copy.id)

    assert f"has its id {message.id}; retry or remove that first" in found.refused[copy.id]
    assert Message.objects.get().id == copy.id


def test_a_key_that_is_in_use_is_refused(clock, dead):
    message = send("mail", key="k")
    die(message)
    send("mail", key="k")
    copy = moved(message).id

    found = operations.retry_dead(copy)

    assert "unfinished message with key 'k'" in found.refused[copy]
    assert moved(message).id == copy


def test_a_queue_that_is_gone_is_told(clock, dead):
    message = send("mail")
    die(message)
    copy = moved(message).id
    Queue.objects.filter(name="default").update(dead_queue=None)
    Queue.objects.filter(name="default").delete()

    found = operations.retry_dead(copy)

    assert found.refused == {copy: "queue 'default' does not exist; create it or name another"}


def test_what_was_never_moved_has_no_way_back(clock):
    message = send("mail")

    found = operations.retry_dead(message.id)

    text = "did not come from another queue; it has no original queue to return to"
    assert found.refused == {message.id: f"message {message.id} {text}"}


class TestRowsOfAnOlderRelease:
    """They have a source id, and no death."""

    @pytest.fixture
    def copy(self, clock, dead) -> Message:
        return Message.objects.create(
            queue=dead, name="mail", source_id=4711, available_at=clock.now, error="boom"
        )

    def test_one_source_is_the_source(self, copy):
        operations.retry_dead(copy.id)

        back = Message.objects.get()
        assert (back.id, back.queue.name, back.poison_count) == (4711, "default", 1)

    def test_of_two_sources_the_queue_must_be_named(self, policy, copy, dead):
        policy("other", on_poison="dead_queue", dead_queue=dead)

        found = operations.retry_dead(copy.id)
        assert "2 queues name its dead queue; name the target queue" in found.refused[copy.id]

        operations.retry_dead(copy.id, queue="other")
        assert Message.objects.get().queue.name == "other"

    def test_a_death_in_the_dead_queue_is_not_counted_again(self, copy):
        die(copy, queue="dead", error="still")

        assert PoisonRecord.objects.get().source_id == 4711
        assert poisoned() == {}


def test_a_death_that_was_damaged_is_retried_as_far_as_it_is_known(clock, dead):
    message = send("mail")
    die(message)
    copy = moved(message).id
    damaged = {"queue": 7, "status": "x", "fence": -1, "created_at": "soon", "key": [], "by": None}
    Message.objects.update(death=damaged)

    assert operations.retry_dead(copy).retried == [copy]
    assert Message.objects.get().id == message.id


class TestDeathInTheDeadQueue:
    """It is no second death: the record keeps the facts of the first."""

    @pytest.fixture
    def message(self, clock, dead) -> Message:
        message = send("mail")
        die(message, error="first", reason=FailureReason.TRANSPORT_UNAVAILABLE)
        return message

    def test_it_is_counted_once_and_keeps_its_group(self, clock, message):
        copy, at = moved(message), clock.now
        clock.advance(3600)

        die(copy, queue="dead", error="second")

        record = PoisonRecord.objects.get()
        assert (record.fingerprint, record.poisoned_at) == (copy.fingerprint, at)
        assert (record.moved_at, record.poison_count) == (clock.now, 1)
        assert (record.queue, record.last_error) == ("dead", "second")
        burial = read_original_death(record)
        assert burial is not None
        assert (burial.queue, burial.error) == ("default", "first")
        assert burial.cause == FailureReason.TRANSPORT_UNAVAILABLE
        assert poisoned() == {"default": 1}

    def test_a_retry_of_the_record_gives_the_dead_queue_what_it_had(self, clock, message):
        copy = moved(message)
        die(copy, queue="dead")

        operations.retry_poison(PoisonRecord.objects.get().pk)

        again = moved(message)
        assert (again.id, again.queue.name) == (copy.id, "dead")
        assert (again.death, again.died_at) == (copy.death, copy.died_at)
        assert again.fingerprint == copy.fingerprint
        operations.retry_dead(again.id)
        assert Message.objects.get().id == message.id

    def test_retention_counts_from_when_it_became_a_record(self, clock, policy, message):
        policy("dead", poison_retention=100)
        clock.advance(1000)
        die(moved(message), queue="dead")

        sweep()
        assert PoisonRecord.objects.count() == 1
        clock.advance(100)
        sweep()
        assert PoisonRecord.objects.count() == 0


class TestByMessageId:
    def test_both_ids_lead_to_it(self, clock, dead):
        first, second = send("mail"), send("mail")
        batch = claim()
        fail(batch.token, [Failure(id, permanent=True) for id in batch.ids])

        found = operations.retry_messages([first.id, moved(second).id])

        assert len(found.retried) == 2
        assert set(Message.objects.values_list("id", flat=True)) == {first.id, second.id}

    def test_the_first_id_leads_to_what_died_again_in_the_dead_queue(self, clock, dead):
        message = send("mail")
        die(message)
        copy = moved(message)
        die(copy, queue="dead")

        found = operations.retry_messages([message.id])

        assert (found.retried, found.missing) == ([message.id], [])
        assert Message.objects.get().id == copy.id

    def test_all_of_a_dead_queue_go_back(self, clock, policy, dead):
        policy("other", on_poison="dead_queue", dead_queue=dead)
        here, there = send("mail"), send("bill", queue="other")
        die(here)
        die(there, queue="other")
        wanted = operations.DeadQueueFilter(dead_queue="dead")

        assert operations.retry_dead_queue(wanted, limit=1).done == 1
        total = operations.retry_dead_queue(wanted)

        assert (total.done, total.refused) == (1, 0)
        assert set(Message.objects.values_list("id", "queue__name")) == {
            (here.id, "default"),
            (there.id, "other"),
        }


def test_one_message_is_moved_back_once_however_many_try(clock, dead):
    message = send("mail")
    die(message)
    copy = moved(message).id

    first, second = operations.retry_dead(copy), operations.retry_dead(copy)

    assert (first.retried, second.missing) == ([copy], [copy])
    assert Message.objects.get().id == message.id
