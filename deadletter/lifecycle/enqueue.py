"""Send: check a message and store it in the caller's transaction; a rollback undoes the send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections

from .. import clock, crash_points, payload_types, sql, tracing
from ..conf import NAME, get_settings
from ..durations import EARLIEST, LATEST, Duration, as_timedelta, is_readable
from ..exceptions import MessageRejected, PayloadMismatch, PayloadRejected, UnknownQueue
from ..models import Kind, Message, Queue, primary_alias
from ..models.message import FIRST_PRIORITY, LAST_PRIORITY
from ..payload import accept, as_stored
from ..text import short_repr
from .counters import writer
from .insert import PIECE, BulkInsert, announce_sent, insert_one
from .notify import notify_after_commit
from .transaction import UNLIMITED, Transaction, in_transaction

_NOTHING = timedelta(0)
_MESSAGE = Kind.MESSAGE.value
TASK = Kind.TASK.value


def on_names_sent(names: Iterable[str]) -> None:
    """Called with the names sent while DEBUG is on. Replaced by the app, which knows handlers."""


class Outgoing(NamedTuple):
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
    If the handler of the name has a payload class and is imported in this process, the payload must
    match it, and may be an instance of it.
    Raises: MessageRejected (PayloadRejected, UnknownQueue) with nothing stored.
    """
    item = Outgoing(name, payload, stream, delay, at, expires_in, key, priority, headers)
    return store_message(item, queue=queue, using=using).message


class StoredMessage(NamedTuple):
    """A message that was stored, or the message that holds its key."""

    message: Message
    is_new: bool


def store_message(
    item: Outgoing, *, queue: str, kind: str = _MESSAGE, using: str | None = None
) -> StoredMessage:
    """
    Store one message of a kind and return its row: `send` for messages and tasks.

    Raises: MessageRejected if the key of a task is held by a message that is no task.
    """
    if (trace := tracing.context()) is not None:
        item = item._replace(headers=tracing.join_headers(item.headers, trace))
    limit = get_settings().payload_limit
    values = check_message(item, limit, kind=kind) | {"queue": check_name("queue", queue)}
    alias = primary_alias(using)
    connection = connections[alias]
    params = values | {"now": clock.transaction_time(connection), "writer": writer(connection)}
    while True:
        rows = insert_one(connection, params)
        if rows:
            crash_points.reach("send.stored")
            if not item.delay and item.at is None:
                notify_after_commit(alias)
            announce_sent(alias, queue, [(rows[0][0], item.name)], kind)
            if settings.DEBUG and kind == _MESSAGE:
                on_names_sent([item.name])
            return StoredMessage(_row(item, values, rows[0], alias), True)
        target = find_queue(queue, alias)
        taken = item.key and Message.objects.using(alias).filter(queue=target, key=item.key).first()
        if taken:
            if kind == TASK:
                _check_holders([taken])
            return StoredMessage(taken, False)
        # The holder of the key finished between the two statements: the key is free; try again.


def send_many(
    messages: Iterable[Outgoing], *, queue: str = "default", using: str | None = None
) -> list[int]:
    """
    Store many messages, all or none, and return their ids in order.

    A key that is taken yields the id of the message that holds it. A transaction that the database
    undoes for a transient reason, such as a deadlock, is repeated, unless it is the caller's.
    """
    return store_messages(messages, queue=queue, using=using).ids


class StoredMessages(NamedTuple):
    """The ids of many messages, in order, and which of them are new: the others hold keys."""

    ids: list[int]
    new: set[int]


def store_messages(
    messages: Iterable[Outgoing], *, queue: str, kind: str = _MESSAGE, using: str | None = None
) -> StoredMessages:
    """
    Store many messages of a kind: `send_many` for messages and tasks.

    Raises: MessageRejected if the key of a task is held by a message that is no task.
    """
    check_name("queue", queue)
    trace = tracing.context()
    limit = get_settings().payload_limit
    rows = [check_message(message, limit, trace, kind=kind) for message in messages]
    alias = primary_alias(using)

    def work(tx: Transaction) -> StoredMessages:
        insert = BulkInsert(alias, lambda: find_queue(queue, alias))
        ids = insert.insert(rows)
        if kind == TASK:
            holders = sorted(set(ids) - insert.inserted)
            known = Message.objects.using(alias).only("kind", "key")
            for start in range(0, len(holders), PIECE):
                _check_holders(known.filter(pk__in=holders[start : start + PIECE]))
        crash_points.reach("send_many.stored")
        if rows:
            notify_after_commit(alias)
        if settings.DEBUG and kind == _MESSAGE:
            on_names_sent(row["name"] for row in rows)
        return StoredMessages(ids, insert.inserted)

    return in_transaction(work, using=alias, wait=UNLIMITED)


def _check_holders(holders: Iterable[Message]) -> None:
    """Refuse the key of a task that is held by a message of another kind: it has no result."""
    for holder in holders:
        if holder.kind != TASK:
            raise MessageRejected(
                "key", f"message {holder.pk}, which is no task, has the key {holder.key!r}"
            )


asend = sync_to_async(send)
asend_many = sync_to_async(send_many)


def check_message(
    item: Outgoing, limit: int, trace: Mapping[str, str] | None = None, *, kind: str = _MESSAGE
) -> dict[str, Any]:
    """
    Check a message and return its columns, which both databases can store.

    Raises: MessageRejected naming the field.
    """
    if not isinstance(item, Outgoing):
        raise MessageRejected("messages", f"expected an Outgoing for each, got {short_repr(item)}")
    name, payload, stream, delay, at, expires_in, key, priority, headers = item
    if delay is not None and at is not None:
        raise MessageRejected("at", "give either delay or at, not both")
    if trace is not None:
        headers = tracing.join_headers(headers, trace)
    return {
        "name": check_name("name", name),
        "kind": kind,
        # The path of a task may be the name of a handler, whose class says nothing of the task.
        "payload": accept(payload, limit=limit)
        if kind != _MESSAGE or (typed := payload_types.of_handlers.get(name)) is None
        else _typed_payload(typed, payload, limit),
        "headers": None if headers is None else _headers(headers, limit),
        "stream": None if stream is None else check_label("stream", stream),
        "key": None if key is None else check_label("key", key),
        "priority": checked_priority(priority),
        "at": None if at is None else _moment(at),
        "delay": _NOTHING if delay is None else _duration("delay", delay),
        "expires_in": None
        if expires_in is None
        else _duration("expires_in", expires_in, at_least=timedelta(microseconds=1)),
    }


def check_name(field: str, value: object) -> str:
    """Return a name of a queue, message or topic. Raises: MessageRejected."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise MessageRejected(
        field,
        f"{short_repr(value)} is not a name: 1 to 200 letters, digits and _ . : / @ + -, "
        "starting with a letter, digit or underscore",
    )


def _typed_payload(typed: payload_types.PayloadType, payload: Any, limit: int) -> str:
    """Return the text of a payload whose handler expects a class; the error quotes the value."""
    try:
        return typed.accept(payload, limit=limit)
    except PayloadMismatch as error:
        rule = get_settings().redact
        if callable(rule) or any(word.lower() in error.place.lower() for word in rule):
            raise
        raise error.with_value() from error.__cause__


def check_label(field: str, value: object) -> str:
    """Return a stream or key. They come from data: any printable text is accepted."""
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise MessageRejected(
            field, f"expected 1 to 200 characters of text, got {short_repr(value)}"
        )
    if not value.isprintable():
        raise MessageRejected(
            field, f"{short_repr(value)} contains characters that cannot be shown or stored"
        )
    return value


def _headers(value: object, limit: int) -> str:
    if not isinstance(value, Mapping):
        raise PayloadRejected("headers", f"expected a dict, got {type(value).__name__}")
    return accept(dict(value), field="headers", limit=limit)


def checked_priority(value: object) -> int:
    """Return a priority in the range; workers of an older release see 0 to 9 only."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not FIRST_PRIORITY <= value <= LAST_PRIORITY:  # type: ignore[operator]
        raise MessageRejected(
            "priority",
            f"expected {FIRST_PRIORITY} (first) to {LAST_PRIORITY} (last), got {short_repr(value)}",
        )
    return value  # type: ignore[return-value]


def _moment(value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise MessageRejected(
            "at", f"expected a datetime with a time zone, got {short_repr(value)}"
        )
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        raise MessageRejected("at", f"{short_repr(value)} is outside the calendar in UTC") from None
    if not is_readable(moment):
        raise MessageRejected(
            "at",
            f"{short_repr(value)} could not be read back in every time zone; give a time from "
            f"{EARLIEST:%d %B} of the year 1 to {LATEST:%d %B} 9999",
        )
    return moment


def _duration(field: str, value: Any, *, at_least: timedelta = _NOTHING) -> timedelta:
    try:
        duration = as_timedelta(value, field=field)
    except ValueError as error:
        raise MessageRejected(field, str(error).removeprefix(f"{field}: ")) from None
    if duration < at_least:
        raise MessageRejected(field, "must be greater than 0")
    return duration


def find_queue(name: str, alias: str) -> Queue:
    found = Queue.objects.using(alias).filter(name=name).first()
    if found is None:
        raise UnknownQueue(name, Queue.objects.using(alias).values_list("name", flat=True))
    return found


def _row(item: Outgoing, values: dict[str, Any], stored: sql.Row, alias: str) -> Message:
    """Build the row as it was stored, without another query."""
    connection = connections[alias]
    id, queue_id, available_at, expires_at, created_at = stored
    columns: dict[str, Any] = {
        "id": id,
        "queue_id": queue_id,
        "name": item.name,
        "kind": values["kind"],
        "payload": as_stored(item.payload, values["payload"]),
        "headers": None
        if item.headers is None
        else as_stored(dict(item.headers), values["headers"]),
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
