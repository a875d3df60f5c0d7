"""How does a message get in? It joins the caller's transaction: rolled back = never existed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import clock, signals, sql, tracing
from ..conf import NAME, get_settings
from ..durations import Duration, as_timedelta
from ..exceptions import MessageRejected, PayloadRejected, UnknownQueue
from ..failures import shown
from ..models import Kind, Message, Queue
from ..payload import accept
from .announce import announce
from .counting import Counts, Subject, writer
from .notify import notify_after_commit

#: Messages stored by one statement of send_many; bounds memory, not the list.
CHUNK = 5_000
#: And characters of their payloads.
CHUNK_SIZE = 4_000_000
_NOTHING = timedelta(0)


@dataclass(frozen=True)
class Outgoing:
    """One message for `send_many`; the same fields as `send`."""

    name: str
    payload: Any = None
    stream: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    expires_in: Duration | None = None
    key: str | None = None
    priority: int = 0
    headers: Mapping[str, Any] | None = None


def send(
    name: str,
    payload: Any = None,
    *,
    queue: str = "default",
    stream: str | None = None,
    delay: Duration | None = None,
    at: datetime | None = None,
    expires_in: Duration | None = None,
    key: str | None = None,
    priority: int = 0,
    headers: Mapping[str, Any] | None = None,
    using: str | None = None,
) -> Message:
    """
    Store one message and return its row.

    Promises: part of the caller's transaction; with `key`, an unfinished message of the same queue
    and key is returned instead of a second one, also when two senders race.
    Raises: MessageRejected (PayloadRejected, UnknownQueue) with nothing stored.
    """
    if (trace := tracing.context()) is not None:
        headers = tracing.joined(headers, trace)
    item = Outgoing(name, payload, stream, delay, at, expires_in, key, priority, headers)
    values = _checked(item) | {"queue": _name("queue", queue)}
    alias = using or router.db_for_write(Message)
    connection = connections[alias]
    params = values | _UNUSED | {"now": clock.transaction_time(connection), "writer": writer()}
    while True:
        rows = _store(connection, params)
        if rows:
            if not item.delay and item.at is None:
                notify_after_commit(alias)
            _announce(alias, queue, [(rows[0][0], name)])
            return _row(item, rows[0], alias)
        target = _queue(queue, alias)
        taken = key and Message.objects.using(alias).filter(queue=target, key=key).first()
        if taken:
            return taken
        # The holder of the key finished between the two statements: the key is free, try again.


def send_many(
    messages: Iterable[Outgoing], *, queue: str = "default", using: str | None = None
) -> list[int]:
    """
    Store many messages, all or none, and return their ids in order.

    A key that is taken yields the id of the message that holds it.
    """
    _name("queue", queue)
    trace = tracing.context()
    rows = [_checked(message, trace) for message in messages]
    alias = using or router.db_for_write(Message)
    target = _queue(queue, alias)
    connection = connections[alias]
    ids: list[int] = []
    with transaction.atomic(using=alias):
        now = clock.transaction_time(connection)
        for chunk in _chunks(rows):
            if connection.vendor == "sqlite":
                ids += _store_one_by_one(chunk, target, now, alias)
            else:
                ids += _store_together(chunk, target, now, alias)
        if rows:
            notify_after_commit(alias)
    return ids


def _store(connection: BaseDatabaseWrapper, params: dict[str, Any]) -> list[sql.Row]:
    """Store one message, if its queue exists and its key is free, and count it with it."""
    if connection.vendor != "sqlite" or params["writer"] is None:
        return sql.run(connection, "enqueue", params)
    with transaction.atomic(using=connection.alias, savepoint=False):
        rows = sql.run(connection, "enqueue", params)
        if rows:
            counts = Counts()
            counts.add(Subject(params["queue"], params["name"], params["kind"]), "sent")
            counts.write(connection, params["now"])
    return rows


def _announce(alias: str, queue: str, sent: Iterable[tuple[int, str]]) -> None:
    announce(
        alias,
        "message_sent",
        signals.message_sent,
        sender=Message,
        each=lambda: [
            {"message_id": id, "queue": queue, "name": name, "kind": Kind.MESSAGE.value}
            for id, name in sent
        ],
    )


asend = sync_to_async(send)
asend_many = sync_to_async(send_many)


def _chunks(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split by number and by size: PostgreSQL takes 256 MiB of JSON at most, and slowly."""
    chunk: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row["payload"]) + len(row["headers"] or "")
        if len(chunk) >= CHUNK or size >= CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _store_together(
    rows: list[dict[str, Any]], queue: Queue, now: datetime | None, alias: str
) -> list[int]:
    stored = sql.run(
        connections[alias],
        "enqueue_many",
        {
            "now": now,
            "writer": writer(),
            "queue_id": queue.pk,
            "rows": json.dumps([_as_json(row) for row in rows], ensure_ascii=False),
        },
    )
    ids = []
    for (id, is_new, _key), row in zip(stored, rows, strict=True):
        ids.append(id if is_new else _holder(row, queue, now, alias))
    new = ((id, row["name"]) for (id, is_new, _), row in zip(stored, rows, strict=True) if is_new)
    _announce(alias, queue.name, new)
    return ids


def _store_one_by_one(
    rows: list[dict[str, Any]], queue: Queue, now: datetime | None, alias: str
) -> list[int]:
    # SQLite prepares the statement once and has no round trip: nothing is gained by a bulk form.
    connection = connections[alias]
    counts = Counts()
    ids: list[int] = []
    new: list[tuple[int, str]] = []
    for row in rows:
        params = row | _UNUSED | {"now": now, "queue": queue.name, "writer": None}
        stored = sql.run(connection, "enqueue", params)
        if stored:
            counts.add(Subject(queue.name, row["name"], row["kind"]), "sent")
            new.append((stored[0][0], row["name"]))
        ids.append(stored[0][0] if stored else _holder(row, queue, now, alias))
    counts.write(connection, now)
    _announce(alias, queue.name, new)
    return ids


def _holder(row: dict[str, Any], queue: Queue, now: datetime | None, alias: str) -> int:
    """Return the message that holds the key, or store this one when the holder just finished."""
    while True:
        holder = Message.objects.using(alias).filter(queue=queue, key=row["key"])
        for id in holder.values_list("id", flat=True):
            return id
        params = row | _UNUSED | {"now": now, "queue": queue.name, "writer": writer()}
        for stored in _store(connections[alias], params):
            _announce(alias, queue.name, [(stored[0], row["name"])])
            return int(stored[0])


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "at": row["at"] and row["at"].isoformat(),
        "delay": sql.microseconds(row["delay"]),
        "expires_in": None if row["expires_in"] is None else sql.microseconds(row["expires_in"]),
    }


#: Columns that only instances fill.
_UNUSED: dict[str, Any] = {"instance": None, "execution_id": None, "activity_id": None}


def _checked(item: Outgoing, trace: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Refuse bad input at the door, naming the field; what passes, both databases can store."""
    if item.delay is not None and item.at is not None:
        raise MessageRejected("at", "give either delay or at, not both")
    limit = get_settings().payload_limit
    headers = item.headers if trace is None else tracing.joined(item.headers, trace)
    return {
        "name": _name("name", item.name),
        "kind": Kind.MESSAGE.value,
        "payload": accept(item.payload, limit=limit),
        "headers": _headers(headers, limit),
        "stream": _label("stream", item.stream),
        "key": _label("key", item.key),
        "priority": _priority(item.priority),
        "at": _moment(item.at),
        "delay": _NOTHING if item.delay is None else _duration("delay", item.delay),
        "expires_in": None
        if item.expires_in is None
        else _duration("expires_in", item.expires_in, at_least=timedelta(microseconds=1)),
    }


def _name(field: str, value: object) -> str:
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise MessageRejected(
        field,
        f"{shown(value)} is not a name: 1 to 200 letters, digits and _ . : / @ + -, starting with "
        "a letter, digit or underscore",
    )


def _label(field: str, value: object) -> str | None:
    """Streams and keys come from data: any printable text will do."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise MessageRejected(field, f"expected 1 to 200 characters of text, got {shown(value)}")
    if not value.isprintable():
        raise MessageRejected(
            field, f"{shown(value)} contains characters that cannot be shown or stored"
        )
    return value


def _headers(value: object, limit: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise PayloadRejected("headers", f"expected a dict, got {type(value).__name__}")
    return accept(dict(value), field="headers", limit=limit)


def _priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 9:
        raise MessageRejected("priority", f"expected 0 (first) to 9 (last), got {shown(value)}")
    return value


def _moment(value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise MessageRejected("at", f"expected a datetime with a time zone, got {shown(value)}")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise MessageRejected("at", f"{shown(value)} is outside the calendar in UTC") from None


def _duration(field: str, value: Any, *, at_least: timedelta = _NOTHING) -> timedelta:
    try:
        duration = as_timedelta(value, field=field)
    except ValueError as error:
        raise MessageRejected(field, str(error).removeprefix(f"{field}: ")) from None
    if duration < at_least:
        raise MessageRejected(field, "must be longer than nothing")
    return duration


def _queue(name: str, alias: str) -> Queue:
    found = Queue.objects.using(alias).filter(name=name).first()
    if found is None:
        raise UnknownQueue(name, Queue.objects.using(alias).values_list("name", flat=True))
    return found


def _row(item: Outgoing, stored: sql.Row, alias: str) -> Message:
    """Build the row as it was stored, without asking for it again."""
    connection = connections[alias]
    id, queue_id, available_at, expires_at, created_at = stored
    columns: dict[str, Any] = {
        "id": id,
        "queue_id": queue_id,
        "name": item.name,
        "payload": item.payload,
        "headers": None if item.headers is None else dict(item.headers),
        "stream": item.stream,
        "key": item.key,
        "priority": item.priority,
        "available_at": sql.as_datetime(available_at, connection),
        "expires_at": sql.as_datetime(expires_at, connection),
        "created_at": sql.as_datetime(created_at, connection),
    }
    message = Message(**columns)
    message._state.adding = False
    message._state.db = alias
    return message
