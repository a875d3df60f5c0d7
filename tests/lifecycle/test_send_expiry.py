"""`expires_in` counts from the send, however long the caller's transaction has been open."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import transaction

from deadletter import Outgoing, lifecycle, send, send_many
from deadletter.clock import now
from deadletter.models import Message, Queue

HOUR = timedelta(hours=1)


def by_send(**options: object) -> Message:
    return send("mail", **options)  # type: ignore[arg-type]


def by_copy(**options: object) -> Message:
    return _stored([Outgoing("mail", **options)])  # type: ignore[arg-type]


def by_insert(**options: object) -> Message:
    # A key sends the whole chunk by INSERT.
    return _stored([Outgoing("mail", key="k", **options)])  # type: ignore[arg-type]


def _stored(messages: list[Outgoing]) -> Message:
    (id,) = send_many(messages)
    return Message.objects.get(pk=id)


WAYS = pytest.mark.parametrize("way", [by_send, by_copy, by_insert])


@WAYS
@pytest.mark.django_db(transaction=True)
def test_a_message_lives_as_long_as_its_sender_said(way: Callable[..., Message]) -> None:
    with transaction.atomic():
        assert Queue.objects.exists()  # the transaction has begun
        before = now("default")
        own = way(expires_in=HOUR)
        after = now("default")

    stored = Message.objects.get(pk=own.pk)
    assert before + HOUR <= stored.expires_at <= after + HOUR
    assert stored.expires_at == own.expires_at


@WAYS
@pytest.mark.django_db(transaction=True)
def test_so_does_one_that_its_queue_limits(way: Callable[..., Message]) -> None:
    Queue.objects.filter(name="default").update(expire_timeout=HOUR)
    with transaction.atomic():
        assert Queue.objects.exists()
        before = now("default")
        own = way()
        after = now("default")

    assert before + HOUR <= Message.objects.get(pk=own.pk).expires_at <= after + HOUR


@WAYS
def test_a_frozen_clock_is_the_moment_of_the_send(way: Callable[..., Message], clock) -> None:
    own = way(expires_in=HOUR)

    assert Message.objects.get(pk=own.pk).expires_at == clock.now + HOUR
    clock.advance(HOUR)
    assert lifecycle.claim(limit=1).ids == []
