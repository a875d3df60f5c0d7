"""
A consumer that is no Django: `python plain_consumer.py URL TOPIC_OR_QUEUE COUNT FILE`.

Reads CloudEvents with the broker's own client until FILE, its SQLite database, has COUNT of them.
What it knows and what it does are one transaction, which it commits before it acknowledges: an
event that arrives again, also after a crash, is ignored. DIE_BEFORE_ACK=n: it kills itself when the
n-th event is handled and not acknowledged.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import suppress

CREATE = """
CREATE TABLE IF NOT EXISTS handled (
    place INTEGER PRIMARY KEY, source TEXT, id TEXT, data TEXT, UNIQUE (source, id)
)
"""


class Ledger:
    """What was handled: here the work is to keep the data."""

    def __init__(self, file: str) -> None:
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.execute(CREATE)
        self._left = int(os.environ.get("DIE_BEFORE_ACK", 0))
        #: Events that were ignored.
        self.known = 0

    def __len__(self) -> int:
        return int(self._database.execute("SELECT COUNT(*) FROM handled").fetchone()[0])

    def handle(self, source: str, id: str, data: str) -> None:
        done = self._database.execute(
            "INSERT OR IGNORE INTO handled (source, id, data) VALUES (?, ?, ?)", (source, id, data)
        )
        self.known += 1 - done.rowcount
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def from_redis(url: str, stream: str, count: int, ledger: Ledger) -> None:
    import redis

    client = redis.Redis.from_url(url, decode_responses=True)
    with suppress(redis.ResponseError):  # it exists
        client.xgroup_create(stream, "plain", id="0", mkstream=True)
    # First what was given to us before and not acknowledged, then what is new.
    last = "0"
    while len(ledger) < count:
        found = client.xreadgroup("plain", "one", {stream: last}, count=100, block=1_000)
        entries = found[0][1] if found else []
        if not entries:
            last = ">"
        for entry, fields in entries:
            ledger.handle(fields["source"], fields["id"], fields["data"])
            client.xack(stream, "plain", entry)


def from_rabbitmq(url: str, queue: str, count: int, ledger: Ledger) -> None:
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
    while len(ledger) < count:
        message = channel.basic_get(queue)
        if message is not None:
            headers = message.headers
            data = message.body
            ledger.handle(
                headers["cloudEvents:source"],
                headers["cloudEvents:id"],
                data if isinstance(data, str) else data.decode(),
            )
            channel.basic_ack(message.delivery_tag)
    connection.close()


if __name__ == "__main__":
    url, name, count, file = sys.argv[1:]
    ledger = Ledger(file)
    (from_redis if url.startswith("redis") else from_rabbitmq)(url, name, int(count), ledger)
    print(ledger.known)
