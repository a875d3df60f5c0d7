"""The inbox: a consumer of another system's messages handles each of them once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from .. import clock, sql
from ..conf import get_settings
from ..models import InboxMessage, primary_alias
from .enqueue import check_label, check_name
from .transaction import Transaction


@contextmanager
def inbox(consumer: str, message_id: str, *, using: str | None = None) -> Iterator[bool]:
    """
    Open a transaction in which a consumer handles a message; True: it has not been handled before.

        with inbox("billing", event_id) as is_new:
            if is_new:
                charge(data)

    The row that remembers the message is part of the transaction: if the block raises, both are
    undone, and the message can be handled again. A second consumer process that has received the
    same message meanwhile waits for the end of the first one's transaction.
    Raises: MessageRejected for a name or id that cannot be stored.
    """
    check_name("consumer", consumer)
    check_label("message_id", message_id)
    alias = primary_alias(using)
    connection = connections[alias]
    with transaction.atomic(using=alias):
        params = {
            "consumer": consumer,
            "message_id": message_id,
            "now": clock.transaction_time(connection),
        }
        yield bool(sql.run(connection, "enter_inbox", params))


def delete_old_inbox(tx: Transaction, *, limit: int) -> int:
    """Delete some messages of the inbox past DEADLETTER["INBOX_KEPT"]; return how many."""
    kept = get_settings().inbox_kept
    if kept is None:
        return 0
    rows = InboxMessage.objects.using(tx.using).filter(handled_at__lte=tx.time() - kept)
    ids = list(
        rows.select_for_update(skip_locked=True)
        .order_by("handled_at", "id")
        .values_list("pk", flat=True)[:limit]
    )
    InboxMessage.objects.using(tx.using).filter(pk__in=ids).delete()
    return len(ids)
