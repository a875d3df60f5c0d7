"""From `publish` to a consumer that is no Django, on real brokers; and brokers that die."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deadletter import OutgoingEvent, publish, publish_many
from deadletter.models import BrokerStatus, OutboxMessage
from deadletter.worker import relay as relays
from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

CONSUMER = Path(__file__).with_name("plain_consumer.py")
TOPIC = "orders.shipped"


def consume(url: str, name: str, count: int) -> list[int]:
    done = subprocess.run(
        [sys.executable, CONSUMER, url, name, str(count)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.splitlines()]


def use(settings, url: str, **options) -> None:
    settings.DEADLETTER = {"BROKERS": {"default": {"url": url, **options}}}


@pytest.fixture
def redis_url(redis_server, settings) -> str:
    redis_server.ensure_running()
    with redis_server.client() as client:
        client.flushall()
    use(settings, redis_server.url)
    return redis_server.url


@pytest.fixture
def rabbitmq_url(rabbitmq_server, settings) -> str:
    rabbitmq_server.ensure_running()
    declare = {"queues": {"shipping": [TOPIC]}}
    use(settings, rabbitmq_server.url, declare=declare)
    return rabbitmq_server.url


def test_a_plain_consumer_reads_what_redis_got(redis_url, new_relay):
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(1_200)])

    new_relay().turn()

    assert consume(redis_url, TOPIC, 1_200) == list(range(1_200))
    assert not OutboxMessage.objects.exists()


def test_a_plain_consumer_reads_what_rabbitmq_got(rabbitmq_url, new_relay):
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(1_200)])

    new_relay().turn()

    assert consume(rabbitmq_url, "shipping", 1_200) == list(range(1_200))
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_broker_that_is_killed_loses_nothing(kind, request, new_relay, monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    url = request.getfixturevalue(f"{kind}_url")
    server = request.getfixturevalue(f"{kind}_server")
    relay = new_relay()
    publish(TOPIC, 0, key="one")
    relay.turn()
    server.kill()
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(1, 700)])

    relay.turn()
    assert BrokerStatus.objects.get().unavailable_since is not None
    assert OutboxMessage.objects.filter(attempts__gt=0).count() == 0
    server.start()
    relay.turn()

    name = TOPIC if kind == "redis" else "shipping"
    assert consume(url, name, 700) == list(range(700))
    assert BrokerStatus.objects.get().unavailable_since is None
