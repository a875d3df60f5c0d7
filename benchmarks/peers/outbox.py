"""The outbox: deadletter's relay, two packages, and the limits of the database and the brokers."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from .. import work
from ..system import TOPIC, Payload, System, url
from .deadletter import Deadletter

#: Messages whose confirms are open at a time, as in a batch of the relay.
WINDOW = 500
#: Keys that the messages have in turn.
KEYS = 1_000
INSERT = """
INSERT INTO deadletter_outbox (broker, lane, topic, key, payload, created_at)
VALUES ('default', %s, %s, %s, %s, now())
"""
COPY = "COPY deadletter_outbox (broker, lane, topic, key, payload, created_at) FROM STDIN"


class Relay(Deadletter):
    """`publish` and the real `run_worker --relay`; only the transport counts its confirms."""

    settings = "`manage.py run_worker --relay`, no options"
    schema = "deadletter"
    left_sql = "SELECT count(*) FROM deadletter_outbox"
    measures = ("drain-1", "drain-2", "latency", "backlog", "outage")
    rates = {"send-one": 1_500, "send-many": 30_000, "drain": 5_000}
    packages = ("django", "psycopg", "amqp", "redis")

    def open(self) -> None:
        super().open()
        from deadletter import OutgoingEvent, publish, publish_many

        self.publish, self.publish_many, self.event = publish, publish_many, OutgoingEvent

    def send_one(self, name: str, payload: Payload) -> None:
        self.publish(TOPIC, payload, key=_key(payload))

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        self.publish_many([self.event(TOPIC, payload, _key(payload)) for payload in payloads])

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        command = [sys.executable, "manage.py", "run_worker", "--relay"]
        return [[*command, "--drain"] if drain else command for _ in range(processes)]

    def environment(self) -> dict[str, str]:
        kind = self.broker.partition("-")[0]
        settings = {"DJANGO_SETTINGS_MODULE": "benchmarks.outbox_settings", "BENCH_BROKER": kind}
        return super().environment() | settings


class QuorumRelay(Relay):
    name = "outbox-quorum"
    title = "deadletter to a quorum queue"
    broker = "rabbitmq-quorum"
    measures = ("send-one", "send-many", *Relay.measures)


class ClassicRelay(Relay):
    name = "outbox-classic"
    title = "deadletter to a classic queue"
    broker = "rabbitmq-classic"
    measures = ("drain-1", "drain-2", "latency")


class RedisRelay(Relay):
    name = "outbox-redis"
    title = "deadletter to Redis Streams"
    broker = "redis-stream"
    rates = Relay.rates | {"drain": 8_000}


class PlainInsert(System):
    """What the database can do: the same columns by hand, one by one and by COPY."""

    name = "outbox-insert"
    title = "INSERT and COPY by hand"
    settings = "psycopg; one INSERT and its commit, or COPY of 10,000 rows"
    schema = "deadletter"
    rates = {"send-one": 1_500, "send-many": 80_000}
    chunk = 10_000
    measures = ("send-one", "send-many")
    packages = ("psycopg",)

    def open(self) -> None:
        import psycopg

        self.connection = psycopg.connect(url(), autocommit=True)

    def send_one(self, name: str, payload: Payload) -> None:
        self.connection.execute(INSERT, _row(payload))

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        now = datetime.now(UTC)
        with self.connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for payload in payloads:
                copy.write_row(("default", *_row(payload), now))


class Publisher(System):
    """
    What the broker can do: a loop that publishes from memory, never ends and knows no database.

    The messages have the properties and headers of the relay's, and their confirms are counted.
    """

    schema = "deadletter"
    measures = ("drain-1", "drain-2")
    rates = {"drain": 10_000}
    packages = ("amqp",)
    is_collecting = True

    def left(self, url: str) -> int:
        return 0

    def work(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        self.publish_forever()

    def publish_forever(self) -> None:
        """Write many frames at once and read between writes, as our transport: the fastest way."""
        import os

        from deadletter.outbox.transports.amqp_connection import PublisherConnection

        broker = urlsplit(os.environ["BENCH_BROKER_URL"])
        connection = PublisherConnection(
            host=f"127.0.0.1:{broker.port}", userid=broker.username, password=broker.password
        )
        connection.connect()
        channel, unconfirmed = _confirmed_channel(connection)
        if self.is_collecting:
            connection.begin()
        for tag, message in enumerate(_messages(), 1):
            unconfirmed[tag] = None
            channel.basic_publish(message, exchange="amq.topic", routing_key=TOPIC, mandatory=True)
            if not self.is_collecting:
                while len(unconfirmed) >= WINDOW:
                    connection.drain_events(timeout=20)
            elif connection.unsent_bytes >= 64 * 1024:
                connection.flush(time.monotonic() + 20)
                while len(unconfirmed) >= WINDOW:
                    connection.read_some(time.monotonic() + 20)


class QuorumPublisher(Publisher):
    name = "publisher-quorum"
    title = "publisher to a quorum queue"
    settings = f"py-amqp with collected frames, from memory; {WINDOW} confirms open, never empty"
    broker = "rabbitmq-quorum"


class ClassicPublisher(Publisher):
    name = "publisher-classic"
    title = "publisher to a classic queue"
    settings = QuorumPublisher.settings
    broker = "rabbitmq-classic"


class PlainPublisher(Publisher):
    name = "publisher-plain"
    title = "publisher to a quorum queue, py-amqp as it is"
    settings = f"py-amqp's own basic_publish, from memory; {WINDOW} confirms open"
    broker = "rabbitmq-quorum"
    measures = ("drain-1",)
    rates = {"drain": 4_000}
    is_collecting = False


class RedisPublisher(Publisher):
    name = "publisher-redis"
    title = "publisher to Redis Streams"
    settings = f"redis-py, pipelines of {WINDOW} XADD, from memory"
    broker = "redis-stream"
    rates = {"drain": 15_000}
    packages = ("redis",)

    def publish_forever(self) -> None:
        import os

        import redis

        client = redis.Redis.from_url(os.environ["BENCH_BROKER_URL"])
        number = 0
        while True:
            pipeline = client.pipeline(transaction=False)
            for _ in range(WINDOW):
                number += 1
                fields = dict(_attributes(number)) | {"data": json.dumps(work.payload(number))}
                pipeline.xadd(TOPIC, fields)
            pipeline.execute()
            work.add(WINDOW)


class OutboxPackage(System):
    """What the two packages have in common."""

    app = ""
    measures = ("send-one", "send-many", "drain-1", "drain-2")

    def missing(self) -> str | None:
        if importlib.util.find_spec(self.app) is None:
            return f"{self.name} is not installed; it may need a newer Python"
        return None

    def environment(self) -> dict[str, str]:
        settings = "benchmarks.peers.outbox_package_settings"
        return {"DJANGO_SETTINGS_MODULE": settings, "BENCH_APP": self.app}

    def setup(self) -> None:
        self.open()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def open(self) -> None:
        import django

        django.setup()
        from django.db import connection

        connection.ensure_connection()

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        from django.db import transaction

        # Neither has a bulk form: one transaction is what helps.
        with transaction.atomic():
            for payload in payloads:
                self.send_one(name, payload)


class ReliableOutbox(OutboxPackage):
    name = "django-reliable-outbox"
    title = "django-reliable-outbox to Redis Streams"
    settings = "`outbox_worker`, BATCH_SIZE 500; one XADD and one commit for each message"
    app = "reliable_outbox"
    broker = "redis-stream"
    rates = {"send-one": 700, "send-many": 1_500, "drain": 350}
    measures = (*OutboxPackage.measures, "latency")
    left_sql = "SELECT count(*) FROM reliable_outbox_outboxmessage WHERE status = 'pending'"
    packages = ("django-reliable-outbox", "django")

    def send_one(self, name: str, payload: Payload) -> None:
        from reliable_outbox import publish

        publish(TOPIC, payload, key=_key(payload))

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        return [[sys.executable, "manage.py", "outbox_worker"] for _ in range(processes)]


class OutboxPattern(OutboxPackage):
    """It sends by STOMP and asks for no receipts: the broker confirms no message."""

    name = "django-outbox-pattern"
    title = "django-outbox-pattern to a quorum queue, **without confirms**"
    settings = "`publish`, by STOMP without receipts; one transaction for all that is there"
    app = "django_outbox_pattern"
    broker = "rabbitmq-quorum"
    rates = {"send-one": 700, "send-many": 1_500, "drain": 600}
    measures = ("send-one", "send-many", "drain-1")
    # 1 is SCHEDULE
    left_sql = "SELECT count(*) FROM published WHERE status = 1"
    packages = ("django-outbox-pattern", "stomp.py", "django")

    def send_one(self, name: str, payload: Payload) -> None:
        from django_outbox_pattern.models import Published

        Published(destination=f"/amq/queue/{TOPIC}", body=payload).save()

    def work(self) -> None:
        self.open()
        from django.core.management import call_command
        from django_outbox_pattern.producers import Producer

        send: Any = Producer.send

        def counted(producer: Any, message: Any, **options: Any) -> Any:
            attempts = send(producer, message, **options)
            work.nothing()
            return attempts

        Producer.send = counted
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        call_command("publish")


class Beside(Deadletter):
    """A worker of plain messages on a site with an outbox and a broker that has nothing to do."""

    name = "deadletter-relay"
    title = "deadletter with a relay"
    settings = "`manage.py run_worker` with BROKERS: a relay beside an idle broker"
    schema = "deadletter"
    broker = "rabbitmq-quorum"
    measures = ("send-one", "send-many", "beside")
    options: tuple[str, ...] = ()

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        command = [sys.executable, "manage.py", "run_worker", *self.options]
        return [command for _ in range(processes)]

    def environment(self) -> dict[str, str]:
        settings = {
            "DJANGO_SETTINGS_MODULE": "benchmarks.outbox_settings",
            "BENCH_BROKER": "rabbitmq",
        }
        return super().environment() | settings


class BesideNothing(Beside):
    name = "deadletter-no-relay"
    title = "deadletter with --no-relay"
    settings = "`manage.py run_worker --no-relay` with BROKERS"
    measures = ("beside",)
    options = ("--no-relay",)


def _key(payload: Payload) -> str:
    return f"key-{payload['n'] % KEYS}"


def _row(payload: Payload) -> tuple[int, str, str, str]:
    return (payload["n"] % 16, TOPIC, _key(payload), json.dumps(payload))


def _attributes(number: int) -> list[tuple[str, str]]:
    return [
        ("specversion", "1.0"),
        ("id", str(number)),
        ("source", "/deadletter"),
        ("type", TOPIC),
        ("time", "2026-01-01T00:00:00.000000+00:00"),
        ("datacontenttype", "application/json"),
        ("partitionkey", f"key-{number % KEYS}"),
    ]


def _messages() -> Any:
    import amqp

    number = 0
    while True:
        number += 1
        headers = {
            f"cloudEvents:{name}": text
            for name, text in _attributes(number)
            if name != "datacontenttype"
        }
        yield amqp.Message(
            json.dumps(work.payload(number)).encode(),
            content_type="application/json",
            application_headers=headers,
            delivery_mode=2,
            message_id=str(number),
            timestamp=1_767_225_600,
        )


def _confirmed_channel(connection: Any) -> tuple[Any, dict[int, None]]:
    """Return a channel with confirms, and the tags that are not confirmed yet."""
    channel = connection.channel()
    channel.confirm_select()
    unconfirmed: dict[int, None] = {}

    def confirm(tag: int, is_multiple: bool) -> None:
        taken = [tag]
        if is_multiple:
            taken = []
            for first in unconfirmed:
                if first > tag:
                    break
                taken.append(first)
        for one in taken:
            del unconfirmed[one]
        work.add(len(taken))

    def refuse(*_: object) -> None:
        raise RuntimeError("the broker refused a message")

    channel.events["basic_ack"].add(confirm)
    channel.events["basic_nack"].add(refuse)
    channel.events["basic_return"].add(refuse)
    return channel, unconfirmed
