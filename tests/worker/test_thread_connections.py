"""A thread remembers the state of its connections, so that most messages need no check."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction

from deadletter.worker import thread_connections
from deadletter.worker.thread_connections import after_message, before_message
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Run in a thread of its own, as an executor does, and return the result."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE)
    return results[0]


def use_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note each time that the connections of a thread are gone through."""
    looks: list[bool] = []
    real = connections.all

    def all(initialized_only: bool = False) -> Any:
        looks.append(initialized_only)
        return real(initialized_only)

    monkeypatch.setattr(connections, "all", all)
    return looks


def test_a_thread_without_connections_is_looked_at_once(looks):
    def work() -> int:
        after_message()
        first = len(looks)
        for _ in range(100):
            before_message(time.monotonic())
            assert after_message() == []
        return len(looks) - first

    assert in_a_thread(work) == 0
    assert looks


def test_a_transaction_is_found_however_many_messages_used_no_connection_before(looks):
    def work() -> list[str]:
        after_message()
        after_message()
        transaction.atomic().__enter__()
        use_the_database()
        return after_message()

    assert in_a_thread(work) == ["default"]


def test_a_thread_that_keeps_its_connection_is_looked_at_after_each_message(settings, looks):
    def work() -> list[list[str]]:
        connection.settings_dict["CONN_MAX_AGE"] = None
        use_the_database()
        found = [after_message()]
        # The connection stayed open, so nothing announces what is done with it.
        assert connection.connection is not None
        transaction.set_autocommit(False)
        found.append(after_message())
        return found

    age = connection.settings_dict["CONN_MAX_AGE"]
    try:
        assert in_a_thread(work) == [[], ["default"]]
    finally:
        connection.settings_dict["CONN_MAX_AGE"] = age


def test_a_connection_that_grew_old_while_its_thread_waited_is_closed_before_a_message():
    def work() -> tuple[bool, bool]:
        use_the_database()
        connection.close_at = None
        after_message()
        connection.close_at = time.monotonic() - 1
        before_message(time.monotonic())
        soon = connection.connection is not None
        before_message(time.monotonic() + thread_connections.FRESH + 0.1)
        return soon, connection.connection is None

    assert in_a_thread(work) == (True, True)
