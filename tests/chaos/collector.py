"""
`python -m tests.chaos.collector redis|rabbitmq URL…`: write down what arrives, in order.

No Django and none of the product's code: the broker's own client. It reads until it is told to end
and nothing is left. What it has read and the broker gives it again (because its acknowledgement was
lost) is `redelivered`: that is no duplicate of the publisher.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from tests.sample.journal import write

from .topics import QUEUE, REFUSED, TOPICS

#: Seconds until a silent broker is asked again over a new connection.
SILENCE = 5.0


class RedisReader:
    def __init__(self, urls: list[str]) -> None:
        import redis

        self.errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._client = redis.Redis.from_url(
            urls[0], decode_responses=True, socket_timeout=SILENCE, socket_connect_timeout=SILENCE
        )
        self._last = dict.fromkeys((*TOPICS, REFUSED), "0")

    def read(self) -> int:
        """Write down what is there; return how many."""
        count = 0
        wanted: Any = {topic: last for topic, last in self._last.items() if topic != REFUSED}
        found: Any = self._client.xread(wanted, count=200, block=200)
        for stream, entries in found or []:
            for entry, fields in entries:
                self._last[stream] = entry
                count += 1
                arrived(
                    stream,
                    id=fields["id"],
                    topic=fields["type"],
                    key=fields.get("partitionkey"),
                    data=fields["data"],
                    header=fields.get("header:tag"),
                )
        return count

    def reset(self) -> None:
        self._client.connection_pool.disconnect()


class RabbitMQReader:
    def __init__(self, urls: list[str]) -> None:
        import amqp

        self.errors: tuple[type[Exception], ...] = (amqp.AMQPError, OSError)
        self._urls = urls
        self._connection: Any = None
        self._channel: Any = None

    def read(self) -> int:
        """Write down the next event, then acknowledge it; return how many there were."""
        if self._channel is None:
            self._connect()
        message = self._channel.basic_get(QUEUE)
        if message is None:
            time.sleep(0.05)
            return 0
        headers = message.headers
        arrived(
            QUEUE,
            id=headers["cloudEvents:id"],
            topic=headers["cloudEvents:type"],
            key=headers.get("cloudEvents:partitionkey"),
            data=message.body,
            header=headers.get("tag"),
            redelivered=bool(message.delivery_info["redelivered"]),
        )
        self._channel.basic_ack(message.delivery_tag)
        return 1

    def reset(self) -> None:
        if self._connection is not None:
            self._connection.collect()
        self._connection = self._channel = None
        # The next node of a cluster.
        self._urls = [*self._urls[1:], self._urls[0]]

    def _connect(self) -> None:
        import amqp

        parts = urlsplit(self._urls[0])
        self._connection = amqp.Connection(
            f"{parts.hostname}:{parts.port}",
            userid=parts.username,
            password=parts.password,
            connect_timeout=SILENCE,
            read_timeout=SILENCE,
            write_timeout=SILENCE,
        )
        self._connection.connect()
        self._channel = self._connection.channel()


READERS: dict[str, Any] = {"redis": RedisReader, "rabbitmq": RabbitMQReader}


def arrived(
    place: str,
    *,
    id: str,
    topic: str,
    key: str | None,
    data: str | bytes,
    header: str | None,
    redelivered: bool = False,
) -> None:
    """Write down one event; the `place` is the queue or stream, inside which there is an order."""
    write(
        "arrived",
        place=place,
        id=int(id),
        topic=topic,
        key=key,
        tag=json.loads(data)["tag"],
        header=header,
        redelivered=redelivered,
    )


def collect(kind: str, urls: list[str]) -> None:
    reader = READERS[kind](urls)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    while True:
        try:
            if reader.read() == 0 and told:
                return
        except reader.errors:
            reader.reset()
            time.sleep(0.2)


if __name__ == "__main__":
    collect(sys.argv[1], sys.argv[2:])
