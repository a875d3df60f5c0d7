"""A queue is deleted during a send: no message is left without a queue."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.models import ProtectedError

from deadletter import Outgoing, UnknownQueue, send, send_many
from deadletter.lifecycle import claim, complete, sweep
from deadletter.models import Message, Queue
from deadletter.models import queue as deletion

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


def one() -> int:
    return send("m", queue="q").id


def many() -> int:
    return send_many([Outgoing("m")], queue="q")[0]


def delete() -> None:
    Queue.objects.get(name="q").delete()


ways = pytest.mark.parametrize(("way", "after"), [(one, "insert"), (many, "reserve_ids")])


@ways
def test_a_queue_is_not_deleted_under_a_message_that_is_being_sent(
    queue, stage, monkeypatch, way, after
):
    monkeypatch.setattr(deletion, "SENDERS_WAIT", 60.0)
    sender = stage(transaction.atomic(way), after=after)
    deleter = stage(delete)

    id = sender.result()

    with pytest.raises(ProtectedError):
        deleter.result()
    assert Message.objects.get().id == id
    assert Queue.objects.filter(name="q").exists()


@ways
def test_a_deletion_waits_a_moment_and_then_says_who_may_be_sending(
    queue, stage, monkeypatch, way, after
):
    monkeypatch.setattr(deletion, "SENDERS_WAIT", 0.05)
    sender = stage(transaction.atomic(way), after=after)

    with pytest.raises(ProtectedError, match=rf"in use: a transaction .* by pid {sender.pid}"):
        delete()

    assert Queue.objects.filter(name="q").exists()
    id = sender.result()
    assert Message.objects.get().id == id


def test_a_deletion_locks_nobody_out(queue, stage, monkeypatch):
    """While it waits for a transaction that is open, others send, claim and complete."""
    monkeypatch.setattr(deletion, "SENDERS_WAIT", 60.0)
    Queue.objects.create(name="other")
    sender = stage(transaction.atomic(one), after="insert")
    deleter = stage(delete)

    for _ in range(3):
        message = send("m", queue="other")
        batch = claim(["other"])
        assert batch.ids == [message.id]
        complete(batch.token, batch.ids)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE pid = %s AND mode NOT IN"
            " ('AccessShareLock', 'ExclusiveLock') AND relation = 'deadletter_message'::regclass",
            [deleter.pid],
        )
        assert cursor.fetchone()[0] == 0
    assert deleter.is_running()

    sender.result()
    with pytest.raises(ProtectedError):
        deleter.result()


@pytest.mark.parametrize("way", [one, many])
def test_a_message_sent_before_the_deletion_is_committed_brings_the_queue_back(queue, stage, way):
    policy = {"max_attempts": 7, "stream_policy": "halt"}
    Queue.objects.filter(name="q").update(**policy)

    @transaction.atomic
    def delete_while_somebody_sends() -> None:
        delete()
        stage(way).result()

    with pytest.raises(ProtectedError, match="still has messages"):
        delete_while_somebody_sends()

    back = Queue.objects.get(name="q")
    assert back.pk == queue.pk
    assert {field: getattr(back, field) for field in policy} == policy
    assert claim(["q"]).ids == [Message.objects.get().pk]


@ways
def test_a_transaction_that_is_open_when_the_deletion_is_committed_brings_the_queue_back(
    queue, stage, monkeypatch, way, after
):
    monkeypatch.setattr(deletion, "SENDERS_WAIT", 0.05)

    senders = []

    @transaction.atomic
    def delete_while_somebody_sends() -> None:
        delete()
        senders.append(stage(transaction.atomic(way), after=after))

    with pytest.raises(ProtectedError, match="in use"):
        delete_while_somebody_sends()

    assert Queue.objects.get(name="q").pk == queue.pk
    id = senders[0].result()
    assert claim(["q"]).ids == [id]


@pytest.mark.parametrize("way", [one, many])
def test_a_sender_that_comes_too_late_is_told_that_the_queue_is_gone(queue, stage, way):
    delete()

    with pytest.raises(UnknownQueue):
        stage(way).result()

    assert not Message.objects.exists()


def test_a_name_that_is_taken_by_then_is_not_taken_away(queue, stage):
    def create() -> None:
        Queue.objects.create(name="q")

    @transaction.atomic
    def delete_while_somebody_sends() -> None:
        delete()
        stage(one).result()
        # As somebody would who creates a new queue in the moment after the commit.
        transaction.on_commit(create)
        connection.run_on_commit.reverse()

    with pytest.raises(ProtectedError):
        delete_while_somebody_sends()

    old = Queue.objects.get(pk=queue.pk)
    assert old.name == f"q-{queue.pk}"
    assert Queue.objects.filter(name="q").exists()
    assert Message.objects.get().queue_id == queue.pk


def test_messages_that_lost_their_queue_are_found_by_the_sweep(queue, caplog):
    id = one()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM deadletter_queue WHERE id = %s", [queue.pk])
    assert claim().ids == []

    sweep()
    sweep()

    found = Queue.objects.get(pk=queue.pk)
    assert (found.name, found.paused) == (f"recovered-{queue.pk}", True)
    assert [record.event for record in caplog.records if hasattr(record, "event")].count(
        "queue_recovered"
    ) == 1
    found.paused = False
    found.save()
    assert claim([found.name]).ids == [id]
