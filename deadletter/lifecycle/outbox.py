"""
Publish: store a message for another system in the caller's transaction.

A rollback undoes it. After the commit a relay publishes it to its broker (worker/relay.py) and
deletes the row when the broker has confirmed it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.db import connections

from .. import clock, crash_points, sql, tracing
from ..conf import get_settings
from ..durations import LATEST
from ..exceptions import MessageRejected
from ..models import OutboxMessage, primary_alias
from ..payload import accept, as_stored
from ..text import short_repr
from .enqueue import check_label, check_name
from .notify import OUTBOX_CHANNEL, notify_after_commit
from .transaction import UNLIMITED, Transaction, in_transaction
from .values import PreparedEvent

#: Lanes of a broker: the most relays that can publish to it side by side. Never changed: a key
#: would change its lane, and what waits in the old one could be overtaken.
LANES = 16
#: Rows stored by one statement, and characters of their payloads.
PIECE = 2_000
PIECE_SIZE = 64_000_000
#: Characters of the name of a header.
HEADER_NAME = 100
#: What the attributes of CloudEvents begin with in the headers of AMQP.
RESERVED = "cloudevents"


class OutgoingEvent(NamedTuple):
    """One message for `publish_many`; the same fields as `publish`."""

    topic: str
    payload: Any = None
    key: str | None = None
    headers: Mapping[str, str] | None = None


def publish(
    topic: str,
    payload: Any = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    broker: str = "default",
    using: str | None = None,
) -> OutboxMessage:
    """
    Store one message for a broker and return its row.

    Promises: part of the caller's transaction; published at least once after its commit, always
    with the same id; messages of one key in the order in which their transactions stored them.
    Raises: MessageRejected (PayloadRejected) with nothing stored.
    """
    check_broker(broker)
    item = OutgoingEvent(topic, payload, key, headers)
    columns = check_event(item, get_settings().payload_limit, tracing.context())
    alias = primary_alias(using)
    connection = connections[alias]
    params = columns | {"broker": broker, "now": clock.transaction_time(connection)}
    ((id, created_at),) = sql.run(connection, "publish", params)
    crash_points.reach("publish.stored")
    notify_after_commit(alias, OUTBOX_CHANNEL)
    stored = columns | {
        "payload": as_stored(payload, columns["payload"]),
        "headers": None if headers is None else dict(headers),
    }
    row = OutboxMessage(
        id=id, broker=broker, created_at=sql.as_datetime(created_at, connection) or LATEST, **stored
    )
    row._state.adding = False
    row._state.db = alias
    return row


def publish_many(
    events: Iterable[OutgoingEvent], *, broker: str = "default", using: str | None = None
) -> list[int]:
    """Store many messages for a broker, all or none, and return their ids in order."""
    check_broker(broker)
    limit, trace = get_settings().payload_limit, tracing.context()
    rows = [check_event(event, limit, trace) for event in events]
    alias = primary_alias(using)

    def work(tx: Transaction) -> list[int]:
        ids = insert_all(tx, broker, rows)
        crash_points.reach("publish_many.stored")
        if rows:
            notify_after_commit(alias, OUTBOX_CHANNEL)
        return ids

    return in_transaction(work, using=alias, wait=UNLIMITED)


def store_events(tx: Transaction, events: Sequence[PreparedEvent]) -> None:
    """Store what handlers returned: one statement for each broker, in the given order."""
    by_broker: dict[str, list[Mapping[str, Any]]] = {}
    for broker, columns in events:
        by_broker.setdefault(broker, []).append(columns)
    for broker, rows in by_broker.items():
        insert_all(tx, broker, rows)
    if by_broker:
        crash_points.reach("publish_many.stored")
        notify_after_commit(tx.using, OUTBOX_CHANNEL)


apublish = sync_to_async(publish)
apublish_many = sync_to_async(publish_many)


def check_event(
    item: OutgoingEvent, limit: int, trace: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """
    Check a message for a broker and return its columns.

    Raises: MessageRejected naming the field.
    """
    if not isinstance(item, OutgoingEvent):
        raise MessageRejected(
            "events", f"expected an OutgoingEvent for each, got {short_repr(item)}"
        )
    topic, payload, key, headers = item
    checked = None if headers is None else _headers(headers)
    if trace is not None:
        checked = tracing.join_headers(checked, trace)
    return {
        "topic": check_name("topic", topic),
        "payload": accept(payload, limit=limit),
        "key": None if key is None else check_label("key", key),
        "headers": None if checked is None else accept(checked, field="headers", limit=limit),
        "lane": lane_of(key),
    }


def lane_of(key: str | None) -> int:
    """Return the lane of a key. Messages without a key have no order: any lane."""
    if key is None:
        return random.randrange(LANES)  # noqa: S311 - no secret
    return zlib.crc32(key.encode()) % LANES


def insert_all(tx: Transaction, broker: str, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Insert messages in pieces: of so many rows, and of a size that one statement may have."""
    ids: list[int] = []
    piece: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        length = len(row["payload"])
        if piece and (len(piece) == PIECE or size + length > PIECE_SIZE):
            ids += _insert(tx, broker, piece)
            piece, size = [], 0
        piece.append(row)
        size += length
    return ids + _insert(tx, broker, piece) if piece else ids


def _insert(tx: Transaction, broker: str, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    if tx.is_sqlite:
        # Prepared once, no round trips: a bulk form gains nothing.
        return [tx.run("publish", broker=broker, **row)[0][0] for row in rows]
    columns = {f"{name}s": [row[name] for row in rows] for name in rows[0]}
    return [row[0] for row in tx.run("publish_many", broker=broker, **columns)]


def check_broker(broker: object) -> None:
    """Refuse a broker that is not in the settings. Raises: MessageRejected."""
    known = get_settings().brokers
    if not isinstance(broker, str) or broker not in known:
        names = ", ".join(known) or 'none: add it to DEADLETTER["BROKERS"]'
        raise MessageRejected("broker", f"there is no broker {short_repr(broker)} ({names})")


def _headers(value: object) -> dict[str, str]:
    """Check headers: names and values are text, as every broker can carry it."""
    if not isinstance(value, Mapping):
        raise MessageRejected("headers", f"expected a dict, got {type(value).__name__}")
    for name, text in value.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= HEADER_NAME:
            raise MessageRejected(
                "headers",
                f"{short_repr(name)} is not a name: 1 to {HEADER_NAME} printable characters",
            )
        if name.lower().startswith(RESERVED):
            raise MessageRejected(
                "headers", f"{short_repr(name)}: names of this form are those of CloudEvents"
            )
        if not isinstance(text, str):
            raise MessageRejected("headers", f"{name}: expected text, got {type(text).__name__}")
    return dict(value)
