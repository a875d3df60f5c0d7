"""An act meets a lock of another transaction: the page says so, and who may hold it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from deadletter import LockNotAvailable, operations, send
from deadletter.lifecycle import transaction as own
from deadletter.models import BulkJob, Instance, Message, PoisonRecord, Queue
from deadletter.operations import acts as pieces
from deadletter.operations import bulk
from deadletter.sql import planner
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait a moment instead of five seconds; the server still names the holder of the lock."""
    lock_timeout = planner.lock_timeout
    monkeypatch.setattr(planner, "lock_timeout", lambda wait: lock_timeout(min(wait, 0.2)))
    planner._by_index_within.cache_clear()
    real = own.holders
    monkeypatch.setattr(own, "holders", lambda connection, waited=0.0: real(connection))
    yield
    planner._by_index_within.cache_clear()


@pytest.fixture
def root(transactional_db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@contextmanager
def holding(act: Callable[[], Any]) -> Iterator[int]:
    """Keep a transaction open in which `act` was done; yields its process id at the server."""
    done, end = threading.Event(), threading.Event()
    found: list[Any] = []

    def hold() -> None:
        try:
            with transaction.atomic():
                act()
                found.append(connection.connection.info.backend_pid)
                done.set()
                end.wait(PATIENCE)
        finally:
            done.set()
            connection.close()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert done.wait(PATIENCE)
    try:
        yield found[0]
    finally:
        end.set()
        thread.join(PATIENCE)


def lock(*tables: str) -> Callable[[], None]:
    """Lock tables against writing; everybody may read them."""

    def act() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE")

    return act


def poison(**given: Any) -> PoisonRecord:
    message = send("mail", {"a": 1}, **given)
    operations.poison([message.pk], by="me", why="x")
    return PoisonRecord.objects.get(message_id=message.pk)


def everything() -> dict[str, Any]:
    halted = Queue.objects.create(name="halted", stream_policy="halt")
    record = poison()
    halting = poison(queue=halted.name, stream="s")
    waiting = send("mail", delay=3600)
    now = timezone.now()
    Instance.objects.create(id="i", name="flow", queue="default", created_at=now, updated_at=now)
    entry = bulk.start_job(
        "retry", operations.PoisonFilter(name="mail").fixed("default"), total=2, by="me"
    )
    return {
        "record": record.pk,
        "halting": halting.pk,
        "message": waiting.pk,
        "queue": Queue.objects.get(name="default").pk,
        "empty": Queue.objects.create(name="empty").pk,
        "job": entry.pk,
    }


#: Name of the page, its argument, what is sent.
PAGES = [
    ("poisonrecord_retry", ["record"], {"why": "x"}),
    ("poisonrecord_remove", ["record"], {"why": "x"}),
    ("poisonrecord_edit", ["record"], {"payload": '{"a": 2}', "why": "x", "confirmed": "1"}),
    ("poisonrecord_job", ["job"], {"act": "cancel"}),
    ("stream_act", ["=retry", "halting"], {"why": "x"}),
    ("stream_act", ["=remove", "halting"], {"why": "x"}),
    ("message_act", ["=retry-now"], {"ids": "message", "why": "x"}),
    ("message_act", ["=release"], {"ids": "message", "why": "x"}),
    ("message_act", ["=poison"], {"ids": "message", "why": "x"}),
    ("message_act", ["=remove"], {"ids": "message", "why": "x"}),
    ("queue_pause", ["queue"], {"why": "x"}),
    ("queue_delete", ["empty"], {"post": "yes"}),
    ("instance_cancel", ["=i"], {"why": "x"}),
]

TABLES = (
    "deadletter_message",
    "deadletter_poison",
    "deadletter_queue",
    "deadletter_instance",
    "deadletter_audit",
    "deadletter_job",
)


@pytest.mark.parametrize(
    ("page", "args", "data"), PAGES, ids=[f"{page} {args[0]}" for page, args, _ in PAGES]
)
def test_an_act_that_meets_a_lock_says_who_holds_it(root, page, args, data):
    ids = everything()
    path = reverse(
        f"admin:deadletter_{page}",
        args=[a[1:] if a.startswith("=") else ids[a] for a in args],
    )
    data = {key: ids.get(value, value) if key == "ids" else value for key, value in data.items()}

    before = counts()
    with holding(lock(*TABLES)) as pid:
        answer = root.post(path, data)

        assert (path, answer.status_code) == (path, 409)
        text = answer.content.decode()
        assert "Nothing was changed." in text
        assert f"pid {pid} (application" in text
        assert counts() == before
    # The lock is gone: the same act goes through.
    assert root.post(path, data).status_code == 302


def counts() -> list[int]:
    models = (Message, PoisonRecord, Queue, BulkJob.objects.filter(state="running"))
    rows = [getattr(model, "objects", model) for model in models]
    return [row.count() for row in rows]


def test_the_command_line_says_who_holds_it(transactional_db):
    record = poison()

    with holding(lock("deadletter_message")) as pid, pytest.raises(CommandError) as refused:
        call_command("deadletter", "retry", record.pk, "--yes", stdout=StringIO())

    assert f"pid {pid} (application" in str(refused.value)
    assert str(refused.value).startswith("a row or a stream is locked by another transaction")
    assert "Nothing was changed." in str(refused.value)


@pytest.mark.parametrize("how", ["ids", "filter", "waiting"])
def test_an_act_in_pieces_says_what_was_done_before_the_lock(monkeypatch, how):
    monkeypatch.setattr(pieces, "PIECE", 2)
    if how == "waiting":
        sent = [send("mail").pk for _ in range(5)]
        Message.objects.update(available_at="2100-01-01T00:00:00Z", status=32769)
        locked = lambda: Message.objects.select_for_update().get(pk=sent[3])  # noqa: E731
    else:
        records = [poison().pk for _ in range(5)]
        locked = lambda: PoisonRecord.objects.select_for_update().get(pk=records[3])  # noqa: E731
    acts = {
        "ids": lambda: operations.retry_poison(records, by="me"),
        "filter": lambda: operations.retry_matching(operations.PoisonFilter(), by="me"),
        "waiting": lambda: operations.retry_failed(operations.MessageFilter(), by="me"),
    }

    with holding(locked), pytest.raises(LockNotAvailable) as refused:
        acts[how]()

    assert refused.value.done == 2
    assert "2 were done before and stay done, the rest is unchanged." in str(refused.value)
