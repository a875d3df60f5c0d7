"""Insert messages: one by one, many with COPY, and messages with keys by INSERT."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import clock, signals, sql
from ..models import Kind, Message, Queue
from ..sql import prepared_statements
from .counters import CounterKey, Counts

#: A checked message, as columns.
Columns = dict[str, Any]
#: A checked message with the id that was drawn for it.
Numbered = tuple[int, Columns]
#: Messages, and characters of their payloads, stored by one statement: bounds the memory.
CHUNK = 5_000
CHUNK_SIZE = 4_000_000
#: Messages sent to the server at a time.
PIECE = 500

#: Columns that only instances fill.
_UNUSED: Columns = {"instance": None, "execution_id": None, "activity_id": None}
_COPY = """
COPY deadletter_message (id, queue_id, name, kind, payload, headers, stream, priority, available_at,
                         expires_at, created_at) FROM STDIN
"""
_NULL = "\\N"


def insert_one(connection: BaseDatabaseWrapper, row: Columns) -> list[sql.Row]:
    """Insert and count one message; no row if its queue does not exist or its key is taken."""
    params = _UNUSED | row
    if connection.vendor != "sqlite":
        # The prepared statement, where its failure undoes nothing else.
        is_alone = prepared_statements.is_alone(connection)
        try:
            return sql.run(connection, "insert", params, keep=is_alone)
        except DatabaseError as error:
            if not (is_alone and prepared_statements.is_stale(error.__cause__)):
                raise
            prepared_statements.give_up(connection)
            return sql.run(connection, "insert", params)
    if params["writer"] is None:
        return sql.run(connection, "insert", params)
    with transaction.atomic(using=connection.alias, savepoint=False):
        rows = sql.run(connection, "insert", params)
        if rows:
            counts = Counts()
            counts.add(CounterKey(params["queue"], params["name"], params["kind"]), "sent")
            counts.write(connection, params["now"])
    return rows


def announce_sent(
    alias: str,
    queue: str,
    sent: Iterable[tuple[int, str]],
    kind: str = Kind.MESSAGE.value,
) -> None:
    """Send the signal for messages given as id and name."""
    signals.announce(
        alias,
        "message_sent",
        signals.message_sent,
        sender=Message,
        each=lambda: [
            {"message_id": id, "queue": queue, "name": name, "kind": kind} for id, name in sent
        ],
    )


class BulkInsert:
    """Inserts many messages into one queue, inside a transaction."""

    def __init__(self, alias: str, find_queue: Callable[[], Queue]) -> None:
        self.alias = alias
        self.connection = connections[alias]
        if self.connection.vendor == "postgresql":
            # The lock of an INSERT, but before the queue is looked up: until the commit the queue
            # cannot be deleted.
            with self.connection.cursor() as cursor:
                cursor.execute("LOCK TABLE deadletter_message IN ROW EXCLUSIVE MODE")
        self.queue = find_queue()
        self.now = clock.transaction_time(self.connection)
        self.counts = Counts()
        #: The ids of the messages that were inserted, without holders of keys.
        self.inserted: set[int] = set()

    def insert(self, rows: Sequence[Columns]) -> list[int]:
        """
        Return the ids in the order of the rows; for a key that is taken, the id of its message.

        Ids are drawn in the order given, which is the order of a stream. Rows with keys are
        inserted in the order of their keys: inserting a key waits for another sender of the same
        key, so two senders with different orders would deadlock.
        """
        is_sqlite = self.connection.vendor == "sqlite"
        ids = self._one_by_one(rows) if is_sqlite else self._in_bulk(rows)
        self.counts.write(self.connection, self.now)
        return ids

    def _in_bulk(self, rows: Sequence[Columns]) -> list[int]:
        ids = [row[0] for row in sql.run(self.connection, "reserve_ids", {"count": len(rows)})]
        every = list(zip(ids, rows, strict=True))
        keyed = sorted(
            (pair for pair in every if pair[1]["key"] is not None),
            key=lambda pair: (pair[1]["key"], pair[0]),
        )
        for chunk in _chunks([pair for pair in every if pair[1]["key"] is None]):
            self._copy(chunk)
        holders: dict[int, int] = {}
        for chunk in _chunks(keyed):
            holders |= self._insert_keyed(chunk)
        self._sent((id, row) for id, row in every if id not in holders)
        return [holders.get(id, id) for id in ids]

    def _copy(self, rows: Sequence[Numbered]) -> None:
        """Insert rows without keys by COPY, the fastest way: there can be no conflict."""
        frozen = self.now
        lines = _CopyLines(
            self.queue, *((frozen, frozen) if frozen else clock.send_times(self.connection))
        )
        with (
            self.connection.wrap_database_errors,
            self.connection.cursor() as cursor,
            cursor.copy(_COPY) as copy,
        ):
            # In pieces: the server reads one while the next is written.
            for start in range(0, len(rows), PIECE):
                piece = rows[start : start + PIECE]
                copy.write("".join([lines.line(id, row) for id, row in piece]))

    def _insert_keyed(self, rows: Sequence[Numbered]) -> dict[int, int]:
        """Insert rows whose keys may be taken; return the holders of taken keys by unused id."""
        found: dict[int, int] = {}
        while rows:
            given = json.dumps([_as_json(id, row) for id, row in rows], ensure_ascii=False)
            params = {"now": self.now, "queue_id": self.queue.pk, "rows": given}
            stored = {row[0] for row in sql.run(self.connection, "insert_many", params)}
            taken = [(id, row) for id, row in rows if id not in stored]
            holders = self._holders([row["key"] for _, row in taken])
            found |= {id: holders[row["key"]] for id, row in taken if row["key"] in holders}
            # The holders of the other keys finished between the two statements: try these again.
            rows = [(id, row) for id, row in taken if id not in found]
        return found

    def _one_by_one(self, rows: Sequence[Columns]) -> list[int]:
        # SQLite prepares the statement once and has no round trips: a bulk form gains nothing.
        ids: list[int] = []
        new: list[Numbered] = []
        for row in rows:
            params = row | _UNUSED | {"now": self.now, "queue": self.queue.name}
            stored = sql.run(self.connection, "insert", params)
            if stored:
                new.append((stored[0][0], row))
            # No other transaction writes meanwhile, so the holder of the key is still there.
            ids.append(stored[0][0] if stored else self._holders([row["key"]])[row["key"]])
        self._sent(new)
        return ids

    def _holders(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the ids of the messages that hold these keys of the queue."""
        if not keys:
            return {}
        rows = Message.objects.using(self.alias).filter(queue=self.queue, key__in=keys)
        return {key: id for key, id in rows.values_list("key", "id") if key is not None}

    def _sent(self, rows: Iterable[Numbered]) -> None:
        """Count and announce the messages that were inserted."""
        new = [(id, row["name"], row["kind"]) for id, row in rows]
        self.inserted.update(id for id, _, _ in new)
        for (name, kind), times in Counter((name, kind) for _, name, kind in new).items():
            self.counts.add(CounterKey(self.queue.name, name, kind), "sent", times=times)
        for kind in dict.fromkeys(kind for _, _, kind in new):
            sent = [(id, name) for id, name, its in new if its == kind]
            announce_sent(self.alias, self.queue.name, sent, kind)


class _CopyLines:
    """Formats rows for COPY. The times that most messages share are formatted once."""

    def __init__(self, queue: Queue, now: datetime, sent: datetime) -> None:
        self._queue = str(queue.pk)
        self._timeout = queue.expire_timeout
        self._now = now
        self._sent = sent
        self._at_once = now.isoformat()
        never = self._timeout is None
        self._usual_end = _NULL if never else (sent + queue.expire_timeout).isoformat()

    def line(self, id: int, row: Columns) -> str:
        at, delay, expires_in = row["at"], row["delay"], row["expires_in"]
        if at is not None:
            begin = at.isoformat()
        else:
            begin = (self._now + delay).isoformat() if delay else self._at_once
        end = self._usual_end if expires_in is None else (self._sent + expires_in).isoformat()
        return (
            f"{id}\t{self._queue}\t{row['name']}\t{row['kind']}\t{_escaped(row['payload'])}\t"
            f"{_escaped(row['headers'])}\t{_escaped(row['stream'])}\t{row['priority']}\t{begin}\t"
            f"{end}\t{self._at_once}\n"
        )


def _escaped(text: str | None) -> str:
    """Double backslashes. Tabs and line ends cannot occur: JSON escapes them, labels have none."""
    if text is None:
        return _NULL
    return text.replace("\\", "\\\\") if "\\" in text else text


def _chunks(rows: Sequence[Numbered]) -> Iterator[list[Numbered]]:
    """Split rows by number and by size, to bound the memory of client and server."""
    chunk: list[Numbered] = []
    size = 0
    for id, row in rows:
        chunk.append((id, row))
        size += len(row["payload"]) + len(row["headers"] or "")
        if len(chunk) >= CHUNK or size >= CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _as_json(id: int, row: Columns) -> Columns:
    return row | {
        "id": id,
        "at": row["at"] and row["at"].isoformat(),
        "delay": sql.microseconds(row["delay"]),
        "expires_in": None if row["expires_in"] is None else sql.microseconds(row["expires_in"]),
    }
