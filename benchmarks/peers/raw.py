"""
The limit: loops written by hand with psycopg, on deadletter's own table with all its indexes.

They lease and delete as deadletter does, in batches of the same size, and nothing else: no handler,
no JSON, no queues, priorities, streams or policies. What they do is what the database can do.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from .. import work
from ..system import Payload, System, url
from .deadletter import LEFT

#: As `run_worker` without options.
BATCH = 500

CLAIM = """
WITH due AS MATERIALIZED (
    SELECT ctid FROM deadletter_message
     WHERE queue_id = %(queue)s AND priority = 0 AND available_at <= now()
     ORDER BY available_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
UPDATE deadletter_message m
   SET attempts = attempts + 1, fence = fence + 1, lease_token = %(token)s, worker = 'raw',
       available_at = now() + interval '60 seconds'
  FROM due WHERE m.ctid = due.ctid
RETURNING m.id, m.name, m.payload, m.attempts
"""
DELETE = "DELETE FROM deadletter_message WHERE id = ANY(%(ids)s) AND lease_token = %(token)s"
FAIL = """
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, available_at = now() + interval '60 seconds',
       status = status | 32768, failure_reason = 2, error = 'it failed',
       history = history || '[{"attempt": 1, "error": "it failed", "reason": 2}]'::jsonb
 WHERE id = ANY(%(ids)s) AND lease_token = %(token)s
"""
INSERT = """
INSERT INTO deadletter_message (queue_id, name, payload, available_at)
VALUES (%s, %s, %s, now())
"""
COPY = "COPY deadletter_message (queue_id, name, payload, available_at) FROM STDIN"


class Raw(System):
    name = "raw"
    title = "raw limit"
    settings = f"hand-written psycopg loop; settle and claim in one round trip, batch {BATCH}"
    schema = "deadletter"
    rates = {"send-one": 1_500, "send-many": 80_000, "drain": 30_000}
    chunk = 10_000
    measures = ("send-one", "send-many", "drain-1", "drain-2")
    left_sql = LEFT
    packages = ("psycopg",)

    def open(self) -> None:
        self.connection = psycopg.connect(url(), autocommit=True)
        self.queue = _queue(self.connection)

    def send_one(self, name: str, payload: Payload) -> None:
        self.connection.execute(INSERT, (self.queue, f"bench.{name}", json.dumps(payload)))

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        now = self.connection.execute("SELECT now()").fetchone()[0]  # type: ignore[index]
        with self.connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for payload in payloads:
                copy.write_row((self.queue, f"bench.{name}", json.dumps(payload), now))

    def work(self) -> None:
        self.open()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        failing = os.environ.get("BENCH_HANDLER") == "failing"
        done: list[int] = []
        token = secrets.token_hex(8)
        while True:
            handled, failed = len(done), []
            if failing:
                failed = [id for id in done if id % 100 < work.FAILING]
                done = [id for id in done if id % 100 >= work.FAILING]
            rows = self._exchange(done, failed, token)
            work.add(handled)
            done = [row[0] for row in rows]
            if not done and os.environ.get("BENCH_DRAIN"):
                return
            if not done:
                time.sleep(0.001)

    def _exchange(self, done: list[int], failed: list[int], token: str) -> list[Any]:
        """Settle the last batch and claim the next: one commit, one round trip."""
        with self.connection.pipeline(), self.connection.transaction():
            if done:
                self.connection.execute(DELETE, {"ids": done, "token": token})
            if failed:
                self.connection.execute(FAIL, {"ids": failed, "token": token})
            claim = self.connection.execute(CLAIM, self._request(token))
        return claim.fetchall()

    def _request(self, token: str) -> dict[str, Any]:
        return {"queue": self.queue, "limit": BATCH, "token": token}


class TwoCommits(Raw):
    name = "raw-two-commits"
    title = "raw limit, two commits"
    settings = f"the same with a commit after the claim and one after the settle, batch {BATCH}"
    measures = ("drain-1", "drain-2")

    def _exchange(self, done: list[int], failed: list[int], token: str) -> list[Any]:
        if done:
            self.connection.execute(DELETE, {"ids": done, "token": token})
        if failed:
            self.connection.execute(FAIL, {"ids": failed, "token": token})
        return self.connection.execute(CLAIM, self._request(token)).fetchall()


def _queue(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT id FROM deadletter_queue WHERE name = 'default'").fetchone()
    assert row is not None
    return int(row[0])
