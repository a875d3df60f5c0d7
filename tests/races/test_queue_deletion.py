"""A queue is deleted while somebody sends to it: the message is not left without a queue."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.db.models import ProtectedError

from deadletter import Outgoing, UnknownQueue, send, send_many
from deadletter.models import Message, Queue

pytestmark = [
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


def one() -> int:
    return send("m", queue="q").id


def many() -> int:
    return send_many([Outgoing("m")], queue="q")[0]


@pytest.mark.parametrize(("way", "after"), [(one, "enqueue"), (many, "draw_ids")])
def test_a_queue_is_not_deleted_under_a_message_that_is_being_sent(queue, stage, way, after):
    sender = stage(transaction.atomic(way), after=after)
    deleter = stage(lambda: Queue.objects.get(name="q").delete())
    event = deleter.wait_blocked(by=sender)

    id = sender.result()

    assert event == "relation"
    with pytest.raises(ProtectedError, match="still has messages"):
        deleter.result()
    assert Message.objects.get().id == id
    assert Queue.objects.filter(name="q").exists()


@pytest.mark.parametrize("way", [one, many])
def test_a_sender_that_comes_too_late_is_told_that_the_queue_is_gone(queue, stage, way):
    with transaction.atomic():
        Queue.objects.get(name="q").delete()
        sender = stage(way)

    with pytest.raises(UnknownQueue):
        sender.result()

    assert not Message.objects.exists()
