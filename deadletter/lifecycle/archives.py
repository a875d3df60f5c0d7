"""
The archive of the outbox: messages that a broker has confirmed, kept for a while.

They are kept by the statement that deletes them from the outbox, only if the settings say so, and
can be published again: as new messages with ids of their own, because a consumer ignores ids that
it has seen. The headers name the first message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.db.models import Min, TextField
from django.db.models.functions import Cast

from .. import sql
from ..conf import get_settings
from ..models import PublishedMessage
from ..outbox.brokers import Broker
from ..payload import accept
from .notify import OUTBOX_CHANNEL, notify_after_commit
from .outbox import check_broker, insert_all, lane_of
from .transaction import Transaction

#: Of a message that was published again: the id and the time of the first one.
ORIGINAL_ID, ORIGINAL_TIME = "original-id", "original-time"
_NOT_KEPT = timedelta(0)


def is_archived(broker: Broker) -> bool:
    """True if confirmed messages of a broker are kept."""
    return kept_for(broker.name) != _NOT_KEPT


def kept_for(broker: str) -> timedelta | None:
    """Return how long confirmed messages of a broker are kept; 0: not at all, None: for ever."""
    settings = get_settings()
    found = settings.brokers.get(broker)
    return settings.outbox_kept if found is None or found.kept is ... else found.kept


def publish_archived_in(tx: Transaction, ids: Collection[int]) -> list[int]:
    """
    Store published messages in the outbox again, in the order of their ids; return those that are.

    Each gets a new id and the time of now, and the headers `original-id` and `original-time`.
    Raises: MessageRejected for a broker that is no longer in the settings.
    """
    rows = PublishedMessage.objects.using(tx.using).filter(pk__in=ids).order_by("pk")
    # Published as the text that it was: a decoded value may be written in another way.
    rows = rows.defer("payload").annotate(text=Cast("payload", TextField()))
    by_broker: dict[str, list[Any]] = {}
    for row in rows:
        by_broker.setdefault(row.broker, []).append(row)
    done: list[int] = []
    for broker, some in by_broker.items():
        check_broker(broker)
        insert_all(tx, broker, [_columns(row) for row in some])
        done += [row.pk for row in some]
    if done:
        notify_after_commit(tx.using, OUTBOX_CHANNEL)
    return done


def delete_old_archive(tx: Transaction, *, limit: int) -> int:
    """Delete some published messages that are past their time; return how many."""
    rows = PublishedMessage.objects.using(tx.using)
    for broker in _brokers(tx):
        kept = kept_for(broker)
        if kept is None:
            continue
        old = rows.filter(broker=broker, published_at__lte=tx.time() - kept)
        ids: Sequence[int] = list(
            old.select_for_update(skip_locked=True)
            .order_by("broker", "published_at", "id")
            .values_list("pk", flat=True)[:limit]
        )
        if ids:
            rows.filter(pk__in=ids).delete()
            return len(ids)
    return 0


def _brokers(tx: Transaction) -> Iterator[str]:
    """Yield the brokers of the archive, one look at the index for each."""
    rows = PublishedMessage.objects.using(tx.using)
    name = ""
    while name := rows.filter(broker__gt=name).aggregate(first=Min("broker"))["first"]:
        yield name


def _columns(row: Any) -> dict[str, Any]:
    headers = dict(row.headers) if isinstance(row.headers, dict) else {}
    headers |= {ORIGINAL_ID: str(row.pk), ORIGINAL_TIME: sql.iso(row.created_at)}
    return {
        "topic": row.topic,
        "payload": row.text or "null",
        "key": row.key,
        "headers": accept(headers, field="headers", limit=2**31),
        "lane": lane_of(row.key),
    }
