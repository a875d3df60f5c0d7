"""Signals are sent once, after the commit; a receiver cannot undo it."""

from __future__ import annotations

import logging

import pytest
from django.db import OperationalError, transaction

from deadletter import FailureReason, Outgoing, send, send_many, signals
from deadletter.lifecycle import Failure, claim, complete, fail, notify
from deadletter.models import Message

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def heard():
    """Everything these three signals said, in order."""
    said: list[tuple[str, dict]] = []
    receivers = []
    for name in ("message_sent", "message_completed", "message_failed"):

        def listen(which=name, **arguments):
            arguments.pop("signal")
            assert arguments.pop("sender") is Message
            assert arguments.pop("using") == "default"
            said.append((which, arguments))

        getattr(signals, name).connect(listen, weak=False)
        receivers.append((name, listen))
    yield said
    for name, listen in receivers:
        getattr(signals, name).disconnect(listen)


def about(id: int, **more) -> dict:
    return {"message_id": id, "queue": "default", "name": "mail", "kind": "message", **more}


def test_sending_is_announced_after_the_commit(heard):
    with transaction.atomic():
        first = send("mail").pk
        assert heard == []
    many = send_many([Outgoing("mail"), Outgoing("mail")])

    assert heard == [("message_sent", about(id)) for id in (first, *many)]


@pytest.mark.postgresql_only(reason="SQLite has no NOTIFY")
def test_a_sender_is_not_told_of_a_notification_that_failed(monkeypatch, caplog):
    def refuse(using: str, channel: str) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(notify, "_notify", refuse)

    id = send("mail").pk
    with transaction.atomic():
        other = send("mail").pk

    assert sorted(Message.objects.values_list("pk", flat=True)) == [id, other]
    assert "server closed the connection" in caplog.text


def test_what_is_rolled_back_or_already_there_is_not_announced(heard):
    send("mail", key="k")
    heard.clear()
    send("mail", key="k")
    send_many([Outgoing("mail", key="k")])
    with transaction.atomic():
        send("mail")
        transaction.set_rollback(True)

    assert heard == []


def test_an_end_is_announced_with_how_long_it_took(heard):
    id = send("mail").pk
    complete(claim().token, [id], seconds=1.5)

    assert heard[-1] == ("message_completed", about(id, seconds=1.5))


def test_a_failure_is_announced_with_what_comes_next(heard):
    id = send("mail").pk
    batch = claim()
    failed = {"attempts": 1, "reason": FailureReason.TIMEOUT_EXCEEDED, "error": "too slow"}
    fail(batch.token, [Failure(id, "too slow", FailureReason.TIMEOUT_EXCEEDED, delay=0)])

    retry_at = Message.objects.get().available_at
    assert heard[-1] == ("message_failed", about(id, **failed, retry_at=retry_at))

    fail(claim().token, [Failure(id, "over", FailureReason.TIMEOUT_EXCEEDED, permanent=True)])
    name, said = heard[-1]
    assert (name, said["attempts"], said["error"]) == ("message_failed", 2, "over")
    assert said["retry_at"] is None


def test_a_listener_that_raises_is_logged_and_undoes_nothing(heard, caplog):
    def angry(**arguments):
        raise RuntimeError("not me")

    signals.message_sent.connect(angry)
    try:
        with caplog.at_level(logging.ERROR, logger="deadletter"):
            send("mail")
    finally:
        signals.message_sent.disconnect(angry)

    assert Message.objects.count() == 1
    assert "of message_sent raised RuntimeError: not me" in caplog.text
    assert len(heard) == 1
