"""Alerts, health and metrics of the outbox: what waits too long, brokers that are away, pauses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deadletter import operations, publish
from deadletter.conf import get_settings
from deadletter.models import BrokerStatus, OutboxMessage
from deadletter.operations import health, list_brokers
from deadletter.worker.relay import Relay
from tests.outbox.memory_transport import PATH, MemoryTransport

from .conftest import notices

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def broker(settings) -> Iterator[type[MemoryTransport]]:
    brokers = {"default": {"transport": PATH}, "other": {"transport": PATH}}
    settings.DEADLETTER = {**settings.DEADLETTER, "BROKERS": brokers}
    MemoryTransport.reset()
    yield MemoryTransport
    MemoryTransport.reset()


@pytest.fixture
def relay(broker) -> Relay:
    return Relay(get_settings().brokers["default"], using="default", worker="w", drain=True)


def test_an_old_message_of_the_outbox_is_an_alert_until_it_is_published(
    clock, rules, decide, relay, broker
):
    rules(outbox_age={"after": 60}, recover_after=30)
    publish("orders", 1)
    assert decide(59).raised == []

    assert decide(2).raised == ["outbox_age:default"]

    (alert,) = notices()[0]["alerts"]
    assert alert["title"] == "broker default: a message of the outbox waits for 61 s"
    relay.turn()
    assert decide(1).recovered == []
    assert decide(30).recovered == ["outbox_age:default"]


def test_messages_of_a_broker_that_is_not_in_the_settings_are_noticed(clock, rules, decide):
    rules(outbox_age={"after": 60})
    publish("orders", 1)
    OutboxMessage.objects.update(broker="gone")

    assert decide(61).raised == ["outbox_age:gone"]


def test_a_broker_that_is_away_is_an_alert_until_it_is_back(
    clock, rules, decide, relay, broker, monkeypatch
):
    rules(broker_unavailable=True, recover_after=30, base_url="https://shop.example.org")
    monkeypatch.setattr(relay, "_pause", lambda: None)
    broker.away = "connection refused"
    publish("orders", 1)
    relay.turn()
    assert decide(60).raised == []

    assert decide(1).raised == ["broker_unavailable:default"]

    (alert,) = notices()[0]["alerts"]
    assert alert["title"] == "broker default has accepted nothing for 61 s; 1 message waits"
    assert alert["error"] == "connection refused"
    assert alert["url"] == "https://shop.example.org/admin/deadletter/brokerstatus/?q=default"
    broker.away = None
    relay.turn()
    assert decide(1).recovered == []
    assert decide(30).recovered == ["broker_unavailable:default"]


def test_a_broker_that_nobody_tries_and_nothing_waits_for_is_no_alert(clock, rules, decide):
    rules(broker_unavailable=True)
    BrokerStatus.objects.create(name="default", error="no", unavailable_since=clock.now)

    assert decide(3600).raised == []

    publish("orders", 1)
    assert decide(1).raised == ["broker_unavailable:default"]


def test_what_a_person_paused_is_neither_an_alert_nor_a_problem(clock, rules, decide, relay):
    rules(broker_unavailable=True, outbox_age={"after": 60})
    BrokerStatus.objects.create(name="default", error="no", unavailable_since=clock.now)
    operations.pause_outbox()
    publish("orders", 1)

    assert decide(3600).raised == []

    found = health(min_workers=0, max_wait=60)
    assert found.problems == []
    assert [(item.waiting, item.paused) for item in found.brokers if item.name == "default"] == [
        (1, 1)
    ]
    operations.resume_outbox()
    assert len(health(min_workers=0, max_wait=60).problems) == 2
    assert sorted(decide(1).raised) == ["broker_unavailable:default", "outbox_age:default"]


def test_a_message_whose_topic_is_paused_counts_as_paused(clock, rules, decide, relay):
    rules(outbox_age={"after": 60})
    operations.pause_outbox("mail")
    publish("mail", 1, key="a")
    publish("orders", 2, key="a")

    relay.turn()

    (report, _other) = list_brokers()
    assert (report.waiting, report.paused, report.held) == (2, 1, 1)
    assert (report.pauses, report.is_paused, report.to_publish) == (("mail",), False, 1)
    assert report.oldest_at is None
    assert health(min_workers=0, max_wait=60).problems == []
    assert decide(3600).raised == []


def test_the_rate_is_taken_over_whole_minutes(clock, relay):
    for n in range(30):
        publish("orders", n)
    relay.turn()
    assert list_brokers()[0].rate == 0.0
    clock.advance(60)

    assert list_brokers()[0].rate == 30 / 300
    clock.advance(600)
    assert list_brokers()[0].rate == 0.0
