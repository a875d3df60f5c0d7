"""A queue may name another queue for its dead messages instead of quarantining them."""

from __future__ import annotations

import logging
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from deadletter import FailureReason, Status, operations, send
from deadletter.lifecycle import Failure, Poisoned, claim, complete, fail, sweep
from deadletter.models import Message, PoisonRecord, Queue
from deadletter.signals import message_poisoned


@pytest.fixture
def dead(policy) -> Queue:
    """The dead queue of "default"."""
    queue = policy("dead")
    policy(on_poison="dead_queue", dead_queue=queue)
    return queue


def die(message: Message, queue: str = "default", **failure):
    batch = claim(queues=[queue])
    return fail(batch.token, [Failure(message.id, permanent=True, **failure)])


def stored_text(id: int) -> tuple:
    with connection.cursor() as cursor:
        cursor.execute("SELECT payload, headers FROM deadletter_message WHERE id = %s", [id])
        return cursor.fetchone()


def test_a_dead_message_is_moved_as_a_new_message(clock, counts, dead):  # B4, B5, rule 6
    message = send("mail", {"to": 1}, headers={"h": 1}, stream="a", priority=4, key="k")
    clock.advance(10)

    outcome = die(message, error="boom", completed=Status.EVENT_STORED)

    moved = Message.objects.get()
    assert outcome == {message.id: Poisoned(attempts=1)}
    assert moved.queue == dead
    assert (moved.source_id, moved.attempts, moved.status) == (message.id, 0, Status.STORED)
    assert moved.id > message.id
    assert (moved.lease_token, moved.worker, moved.released_at) == (None, None, None)
    assert (moved.name, moved.kind, moved.stream, moved.priority) == ("mail", "message", "a", 4)
    assert moved.available_at == moved.created_at == clock.now
    assert counts() == {"pending": 1}


def test_the_payload_is_moved_byte_for_byte(clock, dead):  # B5
    message = send(
        "mail", {"b": 1.50, "a": "ß\u2028", "z": [1e300, -0.0]}, headers={"y": 1, "x": 2}
    )
    before = stored_text(message.id)

    die(message)

    assert stored_text(Message.objects.get().id) == before


def test_a_payload_that_cannot_be_read_is_moved_as_it_is(clock, dead):
    message = send("mail")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_message SET payload = '{broken', headers = ']'")

    die(message)

    assert stored_text(Message.objects.get().id) == ("{broken", "]")


def test_what_is_known_of_the_failure_moves_along(clock, dead):
    message = send("mail")

    die(message, error="boom", reason=FailureReason.TRANSPORT_UNAVAILABLE)

    moved = Message.objects.get()
    assert (moved.error, moved.failure_reason) == ("boom", FailureReason.TRANSPORT_UNAVAILABLE)
    assert [entry["error"] for entry in moved.history] == ["boom"]


def test_a_message_dies_into_the_dead_queue_by_count_too(clock, counts, policy, dead):  # B7, B13
    policy(max_attempts=2)
    message = send("mail")
    for _ in range(2):
        claim(lease=60)
        clock.advance(60)

    assert claim().dead == [message.id]
    assert Message.objects.get().source_id == message.id
    assert counts() == {"pending": 1}


def test_an_expired_message_that_was_never_leased_is_moved_whole(clock, counts, dead):  # B7, B16
    message = send("mail", expires_in=60)
    clock.advance(60)

    assert sweep().expired == 1

    moved = Message.objects.get()
    assert (moved.source_id, moved.queue) == (message.id, dead)
    assert counts() == {"pending": 1}


def test_a_move_repeated_after_a_crash_is_finished_without_a_second_copy(
    clock, counts, dead
):  # B2, B6
    message = send("mail", {"to": 1})
    first_copy = Message.objects.create(
        queue=dead, name="mail", payload={"to": 1}, source_id=message.id, available_at=clock.now
    )

    die(message, error="boom")

    assert list(Message.objects.values_list("id", "source_id")) == [(first_copy.id, message.id)]
    assert counts() == {"pending": 1}


@pytest.mark.parametrize("end", ["complete", "remove", "die"])
def test_when_the_copy_is_gone_its_source_may_be_moved_again(clock, counts, dead, end):  # B3
    message = send("mail")
    Message.objects.create(queue=dead, name="mail", source_id=message.id, available_at=clock.now)
    copy = claim(queues=["dead"])
    if end == "complete":
        complete(copy.token, copy.ids)
    elif end == "die":
        fail(copy.token, [Failure(copy.ids[0], permanent=True)])
    else:
        fail(copy.token, [Failure(copy.ids[0])])
        operations.remove(copy.ids)

    die(message)

    assert Message.objects.get().source_id == message.id


def test_two_queues_may_share_a_dead_queue(clock, counts, policy, dead):
    policy("other", on_poison="dead_queue", dead_queue=dead)
    here, there = send("mail"), send("mail", queue="other")

    die(here)
    die(there, queue="other")

    assert set(Message.objects.values_list("source_id", flat=True)) == {here.id, there.id}
    assert counts() == {"pending": 2}


def test_what_dies_in_a_dead_queue_is_quarantined(clock, counts, dead):  # rule 6, B12
    message = send("mail")
    die(message)
    moved = Message.objects.get()

    die(moved, queue="dead", error="still")

    record = PoisonRecord.objects.get()
    assert (record.queue, record.message_id, record.source_id) == ("dead", moved.id, message.id)
    assert counts() == {"dead": 1}


def test_nothing_leaves_a_dead_queue_by_itself(clock, counts, dead):  # B12
    die(send("mail"))

    clock.advance(1_000_000)

    assert claim().ids == []
    assert sweep().expired == 0
    assert counts() == {"pending": 1}


def test_the_dead_queues_own_expiry_starts_with_the_move(clock, counts, policy, dead):  # B23
    policy("dead", expire_timeout=3600)
    message = send("mail", expires_in=100)
    clock.advance(99)
    die(message)

    clock.advance(3599)
    assert sweep().expired == 0
    clock.advance(1)
    assert sweep().expired == 1

    record = PoisonRecord.objects.get()
    assert (record.queue, record.reason) == ("dead", FailureReason.EXPIRED)
    assert counts() == {"dead": 1}


def test_without_an_expiry_of_its_own_a_dead_queue_keeps_for_ever(clock, dead):  # B23
    message = send("mail", expires_in=100)

    die(message)

    assert Message.objects.get().expires_at is None


def test_the_destination_is_read_at_the_moment_of_death(clock, counts, policy, dead):  # B22
    first, second = send("mail"), send("mail")
    batch = claim()
    fail(batch.token, [Failure(first.id, permanent=True)])

    policy(on_poison="quarantine", dead_queue=None)
    fail(batch.token, [Failure(second.id, permanent=True)])

    assert Message.objects.get().source_id == first.id
    assert PoisonRecord.objects.get().message_id == second.id
    assert counts() == {"pending": 1, "dead": 1}


def test_the_stream_goes_on_when_its_head_is_moved(clock, counts, dead):
    first, second = send("mail", stream="a"), send("mail", stream="a")
    batch = claim(limit=1)
    assert claim().ids == []

    fail(batch.token, [Failure(first.id, permanent=True)])

    assert claim().ids == [second.id]
    assert counts() == {"active": 1, "pending": 1}


def test_listeners_hear_where_it_went(clock, dead, django_capture_on_commit_callbacks):
    heard = []

    def listen(poison, **kwargs):
        heard.append(poison)

    message_poisoned.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            die(send("mail"))
    finally:
        message_poisoned.disconnect(listen)

    assert [event.destination for event in heard] == ["dead"]


@pytest.mark.parametrize("damage", ["no target", "chain"])
def test_a_policy_damaged_behind_our_back_loses_no_message(
    clock, counts, policy, dead, caplog, damage
):  # D23
    caplog.set_level(logging.WARNING, logger="deadletter")
    message = send("mail")
    if damage == "no target":
        Queue.objects.filter(name="default").update(dead_queue=None)
    else:
        Queue.objects.filter(name="dead").update(dead_queue=policy("third"))

    die(message)

    assert PoisonRecord.objects.get().message_id == message.id
    assert counts() == {"dead": 1}
    assert "no usable dead queue" in caplog.text


def test_discard_deletes_with_an_error_that_names_the_message(
    clock, counts, policy, caplog
):  # B8, D8
    caplog.set_level(logging.WARNING, logger="deadletter")
    policy(on_poison="discard")
    doomed, neighbour = send("mail"), send("mail")

    outcome = die(doomed)

    assert outcome == {doomed.id: Poisoned(attempts=1)}
    assert Message.objects.get().id == neighbour.id
    assert counts() == {"active": 1}
    [error] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert f"discarded message mail {doomed.id} of queue default" in error


@pytest.mark.parametrize("value", [5, [1], {"a": 1}, True, 1.5])
@pytest.mark.parametrize("place", ["default", "dead"])
def test_a_damaged_history_does_not_keep_a_message_from_dying(clock, dead, value, place):
    message = send("mail")
    if place == "dead":
        operations.poison([message.pk], why="a test")
        message = Message.objects.get()
        Message.objects.update(death={**message.death, "exception": value, "frame": value})
    facts = dict.fromkeys(("exception", "frame", "error", "traceback", "at", "attempt"), value)
    Message.objects.update(history=[facts])

    assert operations.poison([message.pk], why="a test").done == [message.pk]

    left = PoisonRecord.objects.get() if place == "dead" else Message.objects.get()
    options = [str(left.pk)] if place == "dead" else ["--message", str(left.pk)]
    out = StringIO()
    call_command("deadletter", "show", *options, "--full", stdout=out, stderr=out)
    assert str(left.pk) in out.getvalue()
