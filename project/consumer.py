"""A consumer that is no Django: it prints the events that arrive at the broker of `make demo`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

#: A queue of its own for everything that the demonstration publishes.
QUEUE, KEYS = "demo", "demo.#"
#: Seconds to wait for the next event before looking again.
LOOK = 1.0

#: id, type, key and data of an event.
Event = tuple[str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", nargs="*", help="streams to read, if the broker is Redis")
    streams = parser.parse_args().streams
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # From the environment: arguments of a process can be read by everybody.
    url = os.environ["DEMO_BROKER_URL"]
    events = from_rabbitmq(url) if url.startswith("amqp") else from_redis(url, streams)
    known: set[str] = set()
    sys.stdout.write("waiting for events\n")
    for id, topic, key, data in events:
        # Delivery is at least once: an id may come again.
        again = " (again: ignored)" if id in known else ""
        known.add(id)
        sys.stdout.write(f"{topic} {id} of {key or 'no key'}{again}: {data}\n")


def from_rabbitmq(url: str) -> Iterator[Event]:
    """Yield the messages of a queue, and acknowledge each when the next one is asked for."""
    from urllib.parse import unquote, urlsplit

    import amqp

    place = urlsplit(url)
    connection = amqp.Connection(
        f"{place.hostname}:{place.port or (5671 if place.scheme == 'amqps' else 5672)}",
        unquote(place.username or "guest"),
        unquote(place.password or "guest"),
        virtual_host=unquote(place.path[1:]) or "/",
        ssl=place.scheme == "amqps",
    )
    connection.connect()
    channel = connection.channel()
    quorum = {"x-queue-type": "quorum"}
    channel.queue_declare(QUEUE, durable=True, auto_delete=False, arguments=quorum)
    channel.queue_bind(QUEUE, "amq.topic", routing_key=KEYS)
    arrived: list[amqp.Message] = []
    channel.basic_consume(QUEUE, callback=arrived.append)
    while True:
        try:
            connection.drain_events(timeout=LOOK)
        except TimeoutError:
            continue
        while arrived:
            message = arrived.pop(0)
            headers = message.headers
            yield (
                headers["cloudEvents:id"],
                headers["cloudEvents:type"],
                headers.get("cloudEvents:partitionkey", ""),
                message.body.decode() if isinstance(message.body, bytes) else message.body,
            )
            channel.basic_ack(message.delivery_tag)


def from_redis(url: str, streams: list[str]) -> Iterator[Event]:
    """Yield the entries of streams that are added from now on."""
    import redis

    client: Any = redis.Redis.from_url(url, decode_responses=True)
    # Not "$", which would mean the end of the stream at each call.
    last = {stream: client.xrevrange(stream, count=1) for stream in streams}
    seen = {stream: entries[0][0] if entries else "0" for stream, entries in last.items()}
    while True:
        for stream, entries in client.xread(seen, block=int(LOOK * 1000)) or []:
            for id, fields in entries:
                seen[stream] = id
                yield fields["id"], fields["type"], fields.get("partitionkey", ""), fields["data"]


if __name__ == "__main__":
    main()
