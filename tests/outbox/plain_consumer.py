"""
A consumer that is no Django: `python plain_consumer.py URL TOPIC_OR_QUEUE COUNT`.

Reads CloudEvents with the broker's own client, ignores ids that it has seen, and prints the data of
each as a line, until it has COUNT of them.
"""

from __future__ import annotations

import sys


def from_redis(url: str, stream: str, count: int) -> None:
    import redis

    client = redis.Redis.from_url(url, decode_responses=True)
    seen: set[tuple[str, str]] = set()
    last = "0"
    while len(seen) < count:
        for _, entries in client.xread({stream: last}, count=100, block=1_000) or []:
            for entry, fields in entries:
                last = entry
                handle(seen, fields["source"], fields["id"], fields["data"])


def from_rabbitmq(url: str, queue: str, count: int) -> None:
    from urllib.parse import urlsplit

    import amqp

    parts = urlsplit(url)
    connection = amqp.Connection(
        host=f"{parts.hostname}:{parts.port}",
        userid=parts.username or "guest",
        password=parts.password or "guest",
    )
    connection.connect()
    channel = connection.channel()
    seen: set[tuple[str, str]] = set()
    while len(seen) < count:
        message = channel.basic_get(queue)
        if message is not None:
            headers = message.headers
            handle(seen, headers["cloudEvents:source"], headers["cloudEvents:id"], message.body)
            channel.basic_ack(message.delivery_tag)


def handle(seen: set[tuple[str, str]], source: str, id: str, data: str | bytes) -> None:
    if (source, id) not in seen:
        seen.add((source, id))
        print(data if isinstance(data, str) else data.decode(), flush=True)


if __name__ == "__main__":
    url, name, count = sys.argv[1:]
    read = from_redis if url.startswith("redis") else from_rabbitmq
    read(url, name, int(count))
