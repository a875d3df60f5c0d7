"""Completions that carry their message need fewer statements."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import Outgoing, Status, send, send_many
from deadletter.lifecycle import Claimed, Completed, Completion, claim, process_batch
from deadletter.models import Count, Message, Queue
from deadletter.signals import message_completed


def finished(message: Claimed, *, token: str | None = None, seconds: float | None = None):
    return Completion(message.id, Status.PUBLISHED, token or message.token, seconds, message)


def counted() -> dict[tuple[str, str], tuple[int, float, float]]:
    rows = Count.objects.filter(completed__gt=0)
    return {
        (row.queue, row.name): (row.completed, pytest.approx(row.seconds), row.longest)
        for row in rows
    }


def test_they_are_gone_and_counted_by_queue_and_name_with_their_times(clock):
    Queue.objects.create(name="other")
    send_many([Outgoing("mail") for _ in range(3)])
    send_many([Outgoing("bill")])
    send_many([Outgoing("mail")], queue="other")
    batch = claim(["default", "other"])

    reports = [finished(message, seconds=n) for n, message in enumerate(batch.messages, 1)]
    done = process_batch(worker="w", completions=reports)

    assert done.outcomes == dict.fromkeys(batch.ids, Completed())
    assert done.lost == []
    assert not Message.objects.exists()
    assert counted() == {
        ("default", "mail"): (3, 1 + 2 + 3, 3),
        ("default", "bill"): (1, 4, 4),
        ("other", "mail"): (1, 5, 5),
    }


def test_what_is_not_the_callers_any_more_is_neither_deleted_nor_counted(clock):
    send_many([Outgoing("mail") for _ in range(3)])
    lost, *kept = claim(limit=3, lease=60).messages
    Message.objects.filter(id=lost.id).update(lease_token="ffffffffffffffff")

    done = process_batch(
        worker="w",
        completions=[finished(lost, seconds=100), *[finished(item, seconds=2) for item in kept]],
    )

    assert done.lost == [lost.id]
    assert set(done.outcomes) == {item.id for item in kept}
    assert Message.objects.get().id == lost.id
    assert counted() == {("default", "mail"): (2, 4, 2)}


@pytest.mark.parametrize("stream", [None, "s"])
def test_tokens_of_the_same_report_do_not_stand_for_each_other(clock, stream):
    send("mail", stream=stream)
    send("mail", stream=stream and "t")
    one, other = claim(limit=1), claim(limit=1)

    done = process_batch(
        worker="w",
        completions=[
            finished(one.messages[0], token=other.token),
            finished(other.messages[0], token=one.token),
        ],
    )

    assert done.lost == sorted([*one.ids, *other.ids])
    assert Message.objects.count() == 2
    assert counted() == {}


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_lease_that_is_over_settles_nothing(clock, stream):
    send("mail", stream=stream)
    batch = claim(lease=60)
    clock.advance(timedelta(seconds=61))

    done = process_batch(worker="w", completions=[finished(batch.messages[0])])

    assert done.lost == batch.ids
    assert Message.objects.count() == 1


def test_streams_go_on_beside_messages_that_have_none(clock):
    send_many([Outgoing("mail"), *[Outgoing("mail", stream="s") for _ in range(3)]])
    batch = claim(limit=2)
    assert [message.stream for message in batch.messages] == [None, "s"]

    process_batch(worker="w", completions=[finished(item, seconds=1) for item in batch.messages])

    assert counted() == {("default", "mail"): (2, 2, 1)}
    assert [message.stream for message in claim(limit=1).messages] == ["s"]


@pytest.mark.parametrize("stream", [None, "s"])
def test_who_listens_hears_of_each(clock, stream, django_capture_on_commit_callbacks):
    heard = []

    def listen(sender, **what):
        heard.append((what["message_id"], what["name"], what["seconds"]))

    message_completed.connect(listen)
    try:
        send_many([Outgoing("mail", stream=stream), Outgoing("bill", stream=stream)])
        batch = claim()
        with django_capture_on_commit_callbacks(execute=True):
            process_batch(
                worker="w", completions=[finished(item, seconds=1) for item in batch.messages]
            )
    finally:
        message_completed.disconnect(listen)

    first, second = batch.ids
    assert sorted(heard) == [(first, "mail", 1), (second, "bill", 1)]
    assert counted() == {("default", "mail"): (1, 1, 1), ("default", "bill"): (1, 1, 1)}
