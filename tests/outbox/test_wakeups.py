"""A relay is woken by what is committed: it does not wait for its next look."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

from deadletter import publish
from deadletter.conf import get_settings
from deadletter.models import OutboxMessage
from deadletter.worker.relay import Relay
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def idle_relay() -> Relay:
    """Give a relay that looks once an hour."""
    return Relay(get_settings().brokers["default"], using="default", worker="w", poll=3_600.0)


@pytest.mark.postgresql_only("SQLite has no NOTIFY")
def test_a_message_wakes_a_relay_that_would_look_much_later(broker, idle_relay):
    idle_relay.start()
    try:
        wait_until(lambda: _listeners() == 1 and idle_relay._lanes)
        for n in range(3):
            publish("orders.shipped", n)
            wait_until(lambda n=n: [int(event.data) for event in broker.arrived] == [*range(n + 1)])
    finally:
        idle_relay.stop()
        idle_relay.join(PATIENCE)

    assert not idle_relay.is_alive()
    assert OutboxMessage.objects.count() == 0


def test_a_notification_during_the_pause_leads_to_a_pause_and_a_turn_of_its_own(
    idle_relay, monkeypatch
):
    """What is committed just after a notification notifies nobody: it is read after the pause."""
    passed: list[str] = []

    def turn() -> bool:
        passed.append("turn")
        if len(passed) == 1:
            idle_relay.wake()
        return True

    monkeypatch.setattr(idle_relay, "turn", turn)
    # Where no notification arrives, the next look comes soon, or this test would wait for an hour.
    monkeypatch.setattr(idle_relay, "_poll", 0.05)
    monkeypatch.setattr(idle_relay, "_stopping", _Pauses(idle_relay, passed))
    monkeypatch.setattr("deadletter.worker.relay.Listener", _NoListener)

    idle_relay.run()

    assert passed == ["turn", "pause", "turn", "pause", "turn"]


class _Pauses(threading.Event):
    """Notifies the relay in its first pause, and ends it at the third turn."""

    def __init__(self, relay: Relay, passed: list[str]) -> None:
        super().__init__()
        self._relay, self._passed = relay, passed

    def wait(self, timeout: float | None = None) -> bool:
        self._passed.append("pause")
        if self._passed.count("pause") == 1:
            self._relay.wake()
        return False

    def is_set(self) -> bool:
        return self._passed.count("turn") >= 3 or super().is_set()


class _NoListener:
    def __init__(self, *_: object, **__: object) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


def _listeners() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN deadletter_outbox%'"
        )
        return int(cursor.fetchone()[0])
