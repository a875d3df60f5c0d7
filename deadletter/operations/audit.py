"""Every act is written down: who, when, what, why, how many; and later, what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import router
from django.db.models import F

from ..failures import printable
from ..lifecycle.transaction import Transaction
from ..models import Act, AuditedMessage, AuditEntry, PoisonRecord

#: Ids kept in an entry; the messages of retries and removals have rows of their own.
_IDS = 1_000


def record(
    tx: Transaction,
    act: Act,
    *,
    by: str | None,
    why: str = "",
    selection: Mapping[str, Any] | None = None,
    detail: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Open the entry of an act, in the act's own transaction; `count` adds to it."""
    return AuditEntry.objects.using(tx.using).create(
        at=tx.time(),
        by=printable(by or "", limit=200),
        act=act,
        why=printable(why),
        selection=dict(selection or {}),
        detail=dict(detail or {}),
    )


def count(
    tx: Transaction, entry: AuditEntry, *, done: int = 0, missing: int = 0, refused: int = 0
) -> None:
    AuditEntry.objects.using(tx.using).filter(pk=entry.pk).update(
        done=F("done") + done, missing=F("missing") + missing, refused=F("refused") + refused
    )
    entry.done += done
    entry.missing += missing
    entry.refused += refused


def name_messages(
    tx: Transaction, entry: AuditEntry, records: Sequence[PoisonRecord], *, follow: bool = False
) -> None:
    """Write down which messages were touched; retried ones are followed to their end."""
    AuditedMessage.objects.using(tx.using).bulk_create(
        AuditedMessage(
            entry=entry,
            message_id=record.message_id,
            fingerprint=record.fingerprint,
            is_open=follow,
        )
        for record in records
    )


def name_ids(tx: Transaction, entry: AuditEntry, message_ids: Iterable[int]) -> None:
    AuditedMessage.objects.using(tx.using).bulk_create(
        AuditedMessage(entry=entry, message_id=id) for id in message_ids
    )


def of_ids(ids: Sequence[int]) -> dict[str, Any]:
    """Describe a selection by id."""
    return {"ids": list(ids[:_IDS]), "count": len(ids)}


def trail(message_id: int, *, using: str | None = None) -> list[AuditedMessage]:
    """Return what people did to a message, newest first."""
    rows = AuditedMessage.objects.using(using or router.db_for_write(AuditedMessage))
    return list(rows.filter(message_id=message_id).select_related("entry").order_by("-id")[:100])
