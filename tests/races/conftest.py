"""Fixtures for races: actors that stop at named statements, and a count of deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deadletter import sql
from deadletter.lifecycle import transaction
from deadletter.models import Queue

from . import actors
from .actors import Actor


@pytest.fixture
def queue(transactional_db: None) -> Queue:
    return Queue.objects.create(name="q", max_attempts=3)


@pytest.fixture
def stage(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Actor]]:
    """Start an actor: `stage(lambda: claim(["q"]), after="claim")` returns once it stands there."""
    monkeypatch.setattr(sql, "run", actors.run)
    started: list[Actor] = []

    def start(call: Callable[[], Any], **options: Any) -> Actor:
        actor = Actor(call, **options)
        started.append(actor)
        return actor.start()

    yield start
    for actor in started:
        actor.go()
        actor.thread.join(actors.PATIENCE)


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every error for which a transaction was repeated: deadlocks above all."""
    seen: list[str] = []
    is_transient = transaction._is_transient

    def note(error: Any) -> bool:
        seen.append(str(error))
        return is_transient(error)

    monkeypatch.setattr(transaction, "_is_transient", note)
    return seen


@pytest.fixture
def two_streams() -> Callable[[int], tuple[str, str]]:
    """Name two streams of a queue in the order in which PostgreSQL locks them."""
    from django.db import connection

    def names(queue_id: int) -> tuple[str, str]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT s FROM unnest(ARRAY['a', 'b']) AS s ORDER BY hashtextextended(s, %s)",
                [queue_id],
            )
            first, second = (row[0] for row in cursor.fetchall())
        return first, second

    return names
