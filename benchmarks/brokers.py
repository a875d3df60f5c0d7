"""
Where do outboxes publish to? Brokers of our own, empty for each measurement.

RabbitMQ has one durable queue, quorum or classic, bound to amq.topic. Redis has an append-only file
that is written to disk every second.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from project.brokers import BrokerMissing, PrivateBroker, free_port, private_broker

from .system import TOPIC, System

__all__ = ["BrokerMissing", "MeasuredBroker", "started"]


@dataclass
class MeasuredBroker:
    kind: str
    server: PrivateBroker
    stomp_port: int = 0

    @property
    def pid(self) -> int:
        return self.server.pid

    def version(self) -> str:
        if self.kind == "redis":
            import redis

            with redis.Redis.from_url(self.server.url) as client:
                return f"Redis {client.info()['redis_version']}, appendfsync everysec"
        import amqp

        connection = amqp.Connection(
            f"127.0.0.1:{self.server.port}", "deadletter", self.server.password
        )
        connection.connect()
        version = connection.server_properties["version"]
        connection.close()
        return f"RabbitMQ {version}"

    def environment(self) -> dict[str, str]:
        return {"BENCH_BROKER_URL": self.server.url, "BENCH_STOMP_PORT": str(self.stomp_port)}

    def empty(self, system: System) -> None:
        """Remove what was published before; RabbitMQ gets the system's kind of queue."""
        if self.kind == "redis":
            import redis

            with redis.Redis.from_url(self.server.url) as client:
                client.flushall()
            return
        import amqp

        connection = amqp.Connection(
            f"127.0.0.1:{self.server.port}", "deadletter", self.server.password
        )
        connection.connect()
        channel = connection.channel()
        channel.queue_delete(TOPIC)
        queue = {"x-queue-type": system.broker.partition("-")[2]}
        channel.queue_declare(TOPIC, durable=True, auto_delete=False, arguments=queue)
        channel.queue_bind(TOPIC, "amq.topic", routing_key=TOPIC)
        connection.close()

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        self.server.start()


@contextmanager
def started(kind: str) -> Iterator[MeasuredBroker]:
    """Start a broker until the end of the block. Raises: BrokerMissing."""
    options, port = {}, 0
    if kind == "rabbitmq":
        port = free_port()
        # One of the packages speaks STOMP.
        options = {
            "plugins": "rabbitmq_stomp",
            "settings": f"stomp.listeners.tcp.1 = 127.0.0.1:{port}\n",
        }
    try:
        with private_broker(kind, **options) as server:
            yield MeasuredBroker(kind, server, port)
    except (ImportError, subprocess.SubprocessError, OSError) as error:
        raise BrokerMissing(f"{kind}: {error}") from error
