"""Many processes decide at the same moment: one decision, one alert, one notice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections

from deadletter import alerts
from deadletter.alerts import decisions
from deadletter.models import Alert, AlertState, Message, Queue
from deadletter.testing import frozen_clock
from tests.operations.records import dead
from tests.patience import PATIENCE

from .conftest import told

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def together(count: int, call: Callable[[], Any]) -> list[Any]:
    """Call in so many threads at once, each with a connection of its own."""
    barrier = threading.Barrier(count)
    results: list[Any] = []

    def run() -> None:
        try:
            barrier.wait(PATIENCE)
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            results.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results


def test_the_first_decision_ever_is_made_once(rules):
    rules(poison_depth={"above": 0})
    with frozen_clock():
        dead()

        results = together(6, alerts.decide_when_due)

    made = [result for result in results if result is not None]
    assert [decision.raised for decision in made] == [["poison_depth:"]], results
    assert told() == [[("raised", "poison_depth:")]]


@pytest.mark.parametrize("round", range(3))
def test_deciders_at_the_same_moment_make_one_alert(rules, round):
    rules(new_group=True, poison_depth={"above": 0})
    with frozen_clock() as clock:
        alerts.decide()
        dead()
        clock.advance(60)

        results = together(6, alerts.decide_when_due)

    made = [result for result in results if result is not None]
    assert len(made) == 1, results
    assert Alert.objects.count() == 2
    assert Message.objects.filter(name="deadletter.alert").count() == 1


def test_even_those_that_are_told_to_decide_now_tell_once(rules):
    rules(new_group=True)
    with frozen_clock() as clock:
        alerts.decide()
        key = f"new_group:{dead().fingerprint}"
        clock.advance(60)

        results = together(6, alerts.decide)

    assert not [result for result in results if isinstance(result, BaseException)], results
    assert [raised for result in results if result for raised in result.raised] == [key]
    assert Message.objects.filter(name="deadletter.alert").count() == 1


@pytest.mark.postgresql_only(reason="SQLite waits for its one writer instead")
def test_nobody_waits_for_whoever_decides(rules, monkeypatch):
    rules(poison_depth={"above": 0})
    alerts.decide()
    dead()
    inside, go = threading.Event(), threading.Event()
    announce = decisions.announce

    def slow(*args: Any) -> int:
        inside.set()
        assert go.wait(PATIENCE)
        return announce(*args)

    monkeypatch.setattr(decisions, "announce", slow)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: (results.append(alerts.decide()), connection.close()))
    thread.start()
    assert inside.wait(PATIENCE)

    assert alerts.decide() is None  # at once, while the other holds the row

    go.set()
    thread.join(PATIENCE)
    assert results[0].raised == ["poison_depth:"]
    assert AlertState.objects.count() == 1


def test_a_queue_made_at_the_same_moment_by_another_is_used(rules, monkeypatch):
    """Two make deadletter's own queue: one of them finds it made."""
    from deadletter.lifecycle.internal_queue import ensure_internal_queue

    results = together(4, lambda: ensure_internal_queue("default"))

    assert results == [None] * 4
    assert Queue.objects.filter(name="deadletter").count() == 1
