"""From `publish` to a consumer that is no Django, on real brokers; and brokers that die."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from deadletter import OutgoingEvent, publish, publish_many
from deadletter.models import BrokerStatus, OutboxMessage
from deadletter.worker import relay as relays
from tests.outbox.cut_proxy import CutProxy
from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

CONSUMER = Path(__file__).with_name("plain_consumer.py")
TOPIC = "orders.shipped"


class PlainConsumer:
    """A process that reads a queue or a stream with the broker's own client."""

    def __init__(self, url: str, name: str, file: Path) -> None:
        self._arguments = [url, name]
        self._file = file
        #: Events that the last run ignored.
        self.known = 0

    def run(self, count: int, *, dies: int = 0) -> list[int]:
        """Read until it has handled `count` events, or dies behind one; return their data."""
        done = subprocess.run(
            [sys.executable, CONSUMER, *self._arguments, str(count), self._file],
            env={**os.environ, "DIE_BEFORE_ACK": str(dies)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == (-signal.SIGKILL if dies else 0), done.stderr
        self.known = int(done.stdout or 0)
        with closing(sqlite3.connect(self._file)) as database:
            rows = database.execute("SELECT data FROM handled ORDER BY place").fetchall()
        return [int(data) for (data,) in rows]


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


@pytest.fixture(params=["redis", "rabbitmq"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def consumer(kind, request, tmp_path) -> PlainConsumer:
    url = request.getfixturevalue(f"{kind}_url")
    return PlainConsumer(url, TOPIC if kind == "redis" else "shipping", tmp_path / "handled")


def test_a_plain_consumer_reads_what_arrived(consumer, new_relay):
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(1_200)])

    new_relay().turn()

    assert consumer.run(1_200) == list(range(1_200))
    assert consumer.known == 0
    assert not OutboxMessage.objects.exists()


def test_a_plain_consumer_ignores_what_arrives_twice(
    consumer, kind, request, new_relay, monkeypatch, settings
):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    server = request.getfixturevalue(f"{kind}_server")
    publish(TOPIC, 0, key="one")
    with CutProxy(server.port) as proxy:
        options = settings.DEADLETTER["BROKERS"]["default"]
        use(settings, **options | {"url": server.url.replace(str(server.port), str(proxy.port))})
        relay = new_relay()
        relay.turn()
        publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(1, 21)])
        # The batch arrives, its confirms do not; Redis is asked for a sign of life before.
        proxy.cut_after(len("+PONG\r\n") + 1 if kind == "redis" else 0)
        relay.turn()
        assert OutboxMessage.objects.count() == 20
        relay.turn()
        publish(TOPIC, 21, key="one")
        relay.turn()

    assert consumer.run(22) == list(range(22))
    assert consumer.known == 20


def test_a_plain_consumer_that_is_killed_handles_each_event_once(consumer, new_relay):
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(20)])
    new_relay().turn()

    assert consumer.run(20, dies=5) == list(range(5))
    assert consumer.run(20, dies=5) == list(range(9))
    assert consumer.run(20) == list(range(20))
    # The one that it had handled and not acknowledged.
    assert consumer.known == 1


def test_a_broker_that_is_killed_loses_nothing(consumer, kind, request, new_relay, monkeypatch):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
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

    assert consumer.run(700) == list(range(700))
    assert BrokerStatus.objects.get().unavailable_since is None
