"""Transports that break their promises: nothing is lost, repeated without end, or stuck."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Any

import pytest
from django.db import OperationalError, connection

from deadletter import OutgoingEvent, publish_many, signals
from deadletter.models import BrokerStatus, Count, OutboxLane, OutboxMessage, PoisonRecord
from deadletter.outbox.transports.base import BrokerRefusal
from deadletter.status import FailureReason
from deadletter.worker import relay as relays

pytestmark = pytest.mark.django_db(transaction=True)

TOO_LARGE = BrokerRefusal(FailureReason.VALIDATION_FAILURE, "too large", is_permanent=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)


@pytest.fixture
def misbehave(broker, monkeypatch):
    """Let the transport publish with a function of (events, report); returns its calls."""
    calls: list[int] = []

    def give(work: Any) -> list[int]:
        def publish(self: Any, events: Any, report: Any, *, timeout: float) -> None:
            calls.append(len(events))
            assert len(calls) < 5, "it is published again and again in one turn"
            work(events, report)

        monkeypatch.setattr(broker, "publish", publish)
        return calls

    return give


def store(count: int = 3) -> None:
    publish_many([OutgoingEvent("t", n, f"k{n}") for n in range(count)])


def left() -> list[int]:
    return list(OutboxMessage.objects.order_by("id").values_list("payload", flat=True))


def totals() -> dict[str, int]:
    rows = Count.objects.filter(queue="outbox:default")
    return {
        name: sum(getattr(row, name) for row in rows)
        for name in ("completed", "failed", "poisoned")
    }


@pytest.mark.parametrize("index", [-1, 3, "0", 1.0])
def test_a_report_of_no_event_deletes_none(misbehave, relay, index):
    store()
    misbehave(lambda events, report: report(index))

    relay.turn()

    assert left() == [0, 1, 2]
    assert "the relay failed" in BrokerStatus.objects.get().error


def test_a_second_report_of_an_event_changes_nothing(misbehave, relay):
    store(2)
    heard = []

    def hear(**about):
        heard.append(about["poison"].message_id)

    def twice(events, report):
        for refusal in (TOO_LARGE, TOO_LARGE, None):
            report(0, refusal)
        for refusal in (None, None, TOO_LARGE):
            report(1, refusal)

    misbehave(twice)
    signals.message_poisoned.connect(hear)
    relay.turn()
    signals.message_poisoned.disconnect(hear)

    record = PoisonRecord.objects.get()
    assert heard == [record.message_id]
    assert totals() == {"completed": 1, "failed": 1, "poisoned": 1}
    assert relay.published == 1
    assert left() == []


@pytest.mark.parametrize("error", [RuntimeError("broken"), CancelledError(), SystemExit(1)])
def test_what_was_confirmed_before_an_error_is_not_published_again(misbehave, relay, error):
    store()

    def fail(events, report):
        report(0)
        report(1)
        raise error

    misbehave(fail)

    relay.turn()

    assert left() == [2]
    assert "the relay failed" in BrokerStatus.objects.get().error


def test_events_without_a_report_are_an_outage(misbehave, relay):
    store()
    calls = misbehave(lambda events, report: report(1))

    relay.turn()

    assert calls == [3]
    assert left() == [0, 2]
    status = BrokerStatus.objects.get()
    assert status.unavailable_since is not None
    assert "reported 1 of 3 events" in status.error


@pytest.mark.parametrize(
    "refusal",
    [
        "too large",
        BrokerRefusal(1, "a number for a reason"),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_that_is_none_stops_no_other_event(misbehave, relay, refusal):
    store()

    def refuse(events, report):
        report(0)
        report(1, refusal)

    misbehave(refuse)

    relay.turn()
    relay.turn()

    assert 0 not in left()
    assert "the relay failed" in BrokerStatus.objects.get().error


def test_a_refusal_without_text_is_counted(misbehave, relay):
    store(1)
    refusal = BrokerRefusal(FailureReason.TRANSPORT_UNAVAILABLE, None)  # type: ignore[arg-type]
    misbehave(lambda events, report: report(0, refusal))

    relay.turn()

    assert OutboxMessage.objects.get().attempts == 1


def test_a_transport_that_cannot_close_gives_its_lanes_back(broker, new_relay, monkeypatch):
    store()

    def fail(self):
        raise RuntimeError("cannot close")

    relay = new_relay()
    monkeypatch.setattr(broker, "close", fail)
    broker.away = "connection refused"

    relay.run()
    monkeypatch.undo()

    assert BrokerStatus.objects.get().error == "connection refused"
    assert not OutboxLane.objects.exclude(leased_until=None).exists()


def test_a_confirm_is_remembered_when_the_database_is_away_just_after_it(
    broker, relay, monkeypatch
):
    store(2)
    whole = broker.publish

    def fail(execute, sql, params, many, context):
        raise OperationalError("server closed the connection unexpectedly")

    def publish_and_cut(self, *args, **kwargs):
        whole(self, *args, **kwargs)
        connection.execute_wrappers.append(fail)

    monkeypatch.setattr(broker, "publish", publish_and_cut)
    relay.turn()
    connection.execute_wrappers.remove(fail)
    monkeypatch.undo()

    relay.turn()

    assert [event.data for event in broker.arrived] == ["0", "1"]
    assert left() == []
