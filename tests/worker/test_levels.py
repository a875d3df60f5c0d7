"""A worker keeps the levels it found for a second, and misses none that came since."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle import Levels
from deadletter.models import Message, Queue
from deadletter.worker import exchange, intake

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds after which a test gives up; what it waits for takes about one.
PATIENCE = 60.0


@pytest.fixture
def given(monkeypatch) -> list[tuple[Levels | None, Levels | None]]:
    """The levels that each claim of the worker was given, and those that it found."""
    seen: list[tuple[Levels | None, Levels | None]] = []
    real = exchange.process_batch

    def noting(**options):
        batch = real(**options)
        if options["claim"] is not None:
            seen.append((options["claim"].levels, batch.levels))
        return batch

    monkeypatch.setattr(exchange, "process_batch", noting)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["default", "another"])
def test_a_worker_that_is_never_idle_finds_what_is_more_urgent(run, handles, given, queue):
    """Its batches are always full of what it knows, until it has found the urgent one."""
    Queue.objects.create(name="another")
    began, found = monotonic(), threading.Event()

    def work(message) -> None:
        if not found.is_set() and monotonic() - began < PATIENCE:
            send("job", priority=5)

    handles("job", work)
    handles("urgent", lambda message: found.set())
    send_many([Outgoing("job", priority=5) for _ in range(100)])

    def send_urgent(message) -> None:
        send("urgent", queue=queue, priority=-5)

    handles("first", send_urgent)
    send("first", priority=5)

    run(batch=10, concurrency=2, queues=["another", "default"])

    assert found.is_set()
    assert monotonic() - began < PATIENCE
    assert not Message.objects.exists()
    assert any(known is not None and new is None for known, new in given), "nothing was kept"


@pytest.mark.postgresql_only(reason="SQLite notifies nobody")
def test_a_notification_makes_an_idle_worker_look_for_new_levels(
    running, handles, given, monkeypatch
):
    monkeypatch.setattr(intake, "WHOLE_LOOK", 10_000.0)
    monkeypatch.setattr(intake, "REST", 1e9)
    # On a quick machine messages within a few milliseconds would share a notification.
    monkeypatch.setattr("deadletter.lifecycle.notify.INTERVAL", 0.0)
    handled = {priority: threading.Event() for priority in (3, -50, 100)}
    handles("job", lambda message: handled[message.payload].set())

    with running(poll=PATIENCE) as process:
        while not process._listener or not process._listener.is_listening:
            threading.Event().wait(0.01)
        for priority, event in handled.items():
            send("job", priority, priority=priority)
            assert event.wait(PATIENCE), f"{len(given)} claims did not find priority {priority}"


def test_polling_finds_new_levels_without_a_notification(running, handles, given, monkeypatch):
    monkeypatch.setattr(intake, "WHOLE_LOOK", 10_000.0)
    monkeypatch.setattr("deadletter.lifecycle.enqueue.notify_after_commit", lambda using: None)
    handled = {priority: threading.Event() for priority in (3, -50, 100)}
    handles("job", lambda message: handled[message.payload].set())

    with running(poll=0.05):
        for priority, event in handled.items():
            send("job", priority, priority=priority)
            assert event.wait(PATIENCE), f"{len(given)} claims did not find priority {priority}"


def test_an_idle_worker_rests_between_two_discoveries_that_take_long(
    running, handles, given, monkeypatch
):
    """What was found is used for ten times as long as it took to find it, a second at most."""
    monkeypatch.setattr(intake, "WHOLE_LOOK", 10_000.0)
    monkeypatch.setattr(intake, "REST", 1e9)
    enough = threading.Event()
    real = exchange.process_batch

    def counting(**options):
        batch = real(**options)
        if len(given) > 20:
            enough.set()
        return batch

    monkeypatch.setattr(exchange, "process_batch", counting)

    with running(poll=0.01):
        assert enough.wait(PATIENCE)

    assert sum(known is None for known, _ in given) == 1
    assert sum(new is None or known is new for known, new in given) >= 15


def test_a_drain_looks_for_levels_until_there_are_none(run, handles, given):
    handled = []

    def work(message) -> None:
        handled.append(message.payload)
        if message.payload > -10:
            send("job", message.payload - 1, priority=message.payload - 1)

    handles("job", work)
    send("job", 10, priority=10)

    run(batch=10)

    assert handled == list(range(10, -11, -1))
    assert given[-1][1] is not None
    assert given[-1][1].due == ()
