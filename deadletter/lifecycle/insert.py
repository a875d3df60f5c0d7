"""How do rows get into the queue? One by one, many by COPY, and those with keys by INSERT."""

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
from ..sql import prepared
from .announce import announce
from .counters import Counts, Subject

#: A message that passed the door, as columns.
Columns = dict[str, Any]
#: One with the id that was drawn for it.
Numbered = tuple[int, Columns]
#: Messages stored by one statement; bounds memory, not the list.
CHUNK = 5_000
#: And characters of their payloads.
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


def store_one(connection: BaseDatabaseWrapper, row: Columns) -> list[sql.Row]:
    """Store one message, if its queue exists and its key is free, and count it with it."""
    params = _UNUSED | row
    if connection.vendor != "sqlite":
        return _store_kept(connection, params)
    if params["writer"] is None:
        return sql.run(connection, "insert", params)
    with transaction.atomic(using=connection.alias, savepoint=False):
        rows = sql.run(connection, "insert", params)
        if rows:
            counts = Counts()
            counts.add(Subject(params["queue"], params["name"], params["kind"]), "sent")
            counts.write(connection, params["now"])
    return rows


def _store_kept(connection: BaseDatabaseWrapper, params: Columns) -> list[sql.Row]:
    """Use the statement as the server keeps it, where a failure of that undoes nothing else."""
    is_alone = prepared.is_alone(connection)
    try:
        return sql.run(connection, "insert", params, keep=is_alone)
    except DatabaseError as error:
        if not (is_alone and prepared.is_stale(error.__cause__)):
            raise
        prepared.give_up(connection)
        return sql.run(connection, "insert", params)


def announce_sent(
    alias: str,
    queue: str,
    sent: Iterable[tuple[int, str]],
    kind: str = Kind.MESSAGE.value,
) -> None:
    announce(
        alias,
        "message_sent",
        signals.message_sent,
        sender=Message,
        each=lambda: [
            {"message_id": id, "queue": queue, "name": name, "kind": kind} for id, name in sent
        ],
    )


class Storing:
    """Stores many messages in one queue, inside a transaction."""

    def __init__(self, alias: str, find_queue: Callable[[], Queue]) -> None:
        self.alias = alias
        self.connection = connections[alias]
        if self.connection.vendor == "postgresql":
            # As an INSERT would, but before the queue is looked up: from here on nobody deletes it.
            with self.connection.cursor() as cursor:
                cursor.execute("LOCK TABLE deadletter_message IN ROW EXCLUSIVE MODE")
        self.queue = find_queue()
        self.now = clock.transaction_time(self.connection)
        self.counts = Counts()

    def store(self, rows: Sequence[Columns]) -> list[int]:
        """
        Return the ids in the order of the rows; a key that is taken yields its holder's.

        Ids are drawn in the order given, which is the order of a stream. Rows with keys are stored
        in the order of their keys: storing a key waits for another sender that is storing it, so
        two senders with different orders would wait for each other.
        """
        is_sqlite = self.connection.vendor == "sqlite"
        ids = self._one_by_one(rows) if is_sqlite else self._by_key(rows)
        self.counts.write(self.connection, self.now)
        return ids

    def _by_key(self, rows: Sequence[Columns]) -> list[int]:
        ids = [row[0] for row in sql.run(self.connection, "reserve_ids", {"count": len(rows)})]
        every = list(zip(ids, rows, strict=True))
        keyed = sorted(
            (pair for pair in every if pair[1]["key"] is not None),
            key=lambda pair: (pair[1]["key"], pair[0]),
        )
        for chunk in _chunks([pair for pair in every if pair[1]["key"] is None]):
            self._by_copy(chunk)
        holders: dict[int, int] = {}
        for chunk in _chunks(keyed):
            holders |= self._by_insert(chunk)
        self._sent((id, row) for id, row in every if id not in holders)
        return [holders.get(id, id) for id in ids]

    def _by_copy(self, rows: Sequence[Numbered]) -> None:
        """The fastest way in: nothing can be in the way."""
        frozen = self.now
        lines = _Lines(
            self.queue, *((frozen, frozen) if frozen else clock.send_times(self.connection))
        )
        with (
            self.connection.wrap_database_errors,
            self.connection.cursor() as cursor,
            cursor.copy(_COPY) as copy,
        ):
            # In pieces: the server takes one in while the next one is written.
            for start in range(0, len(rows), PIECE):
                piece = rows[start : start + PIECE]
                copy.write("".join([lines.line(id, row) for id, row in piece]))

    def _by_insert(self, rows: Sequence[Numbered]) -> dict[int, int]:
        """Store rows whose keys may be taken; return who holds those keys, by the unused id."""
        found: dict[int, int] = {}
        while rows:
            given = json.dumps([_as_json(id, row) for id, row in rows], ensure_ascii=False)
            params = {"now": self.now, "queue_id": self.queue.pk, "rows": given}
            stored = {row[0] for row in sql.run(self.connection, "insert_many", params)}
            taken = [(id, row) for id, row in rows if id not in stored]
            holders = self._holders([row["key"] for _, row in taken])
            found |= {id: holders[row["key"]] for id, row in taken if row["key"] in holders}
            # The others' holders finished between the two statements: their keys are free again.
            rows = [(id, row) for id, row in taken if id not in found]
        return found

    def _one_by_one(self, rows: Sequence[Columns]) -> list[int]:
        # SQLite prepares the statement once and has no round trips: a bulk form would gain nothing.
        ids: list[int] = []
        new: list[Numbered] = []
        for row in rows:
            params = row | _UNUSED | {"now": self.now, "queue": self.queue.name}
            stored = sql.run(self.connection, "insert", params)
            if stored:
                new.append((stored[0][0], row))
            # Nobody else writes meanwhile, so the holder is still there.
            ids.append(stored[0][0] if stored else self._holders([row["key"]])[row["key"]])
        self._sent(new)
        return ids

    def _holders(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the messages that hold these keys of the queue."""
        if not keys:
            return {}
        rows = Message.objects.using(self.alias).filter(queue=self.queue, key__in=keys)
        return {key: id for key, id in rows.values_list("key", "id") if key is not None}

    def _sent(self, rows: Iterable[Numbered]) -> None:
        new = [(id, row["name"]) for id, row in rows]
        for name, times in Counter(name for _, name in new).items():
            self.counts.add(Subject(self.queue.name, name, Kind.MESSAGE.value), "sent", times=times)
        announce_sent(self.alias, self.queue.name, new)


class _Lines:
    """Rows as COPY reads them. What most messages have in common is written once."""

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
    """Split by number and by size, so that neither side holds too much at once."""
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
