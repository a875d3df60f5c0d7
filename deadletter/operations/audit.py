"""Every act is written down: who, when, what, why, how many; and later, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F

from ..lifecycle.transaction import Transaction
from ..models import Act, AuditedMessage, AuditEntry, PoisonRecord, primary_alias
from ..text import storable_text
from .retry_outcomes import settle_rows

#: Ids kept in an entry; the messages of retries and removals have rows of their own.
_IDS = 1_000


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What an entry says before anything is done."""

    act: Act
    by: str | None
    why: str = ""
    selection: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    #: The payload that replaces another, as it is stored.
    payload: str | None = None


def record(tx: Transaction, opening: Opening) -> AuditEntry:
    """Write the entry of an act, in the act's own transaction; `count` adds to it."""
    return AuditEntry.objects.using(tx.using).create(
        at=tx.time(),
        by=person(opening.by),
        act=opening.act,
        why=storable_text(opening.why),
        selection=dict(opening.selection),
        detail=dict(opening.detail),
    )


def keep_edit(tx: Transaction, entry: AuditEntry, *, before: str | None, after: str) -> None:
    """Keep both payloads of an edit with its entry, so that it can be proven."""
    AuditEntry.objects.using(tx.using).filter(pk=entry.pk).update(
        payload_before=before, payload_after=after
    )


def count(
    tx: Transaction, entry: AuditEntry, *, done: int = 0, missing: int = 0, refused: int = 0
) -> None:
    AuditEntry.objects.using(tx.using).filter(pk=entry.pk).update(
        done=F("done") + done, missing=F("missing") + missing, refused=F("refused") + refused
    )


def name(
    tx: Transaction, entry: AuditEntry, touched: Sequence[PoisonRecord] | Sequence[int]
) -> None:
    """Write down which messages were touched; those of retried poison are followed to their end."""
    AuditedMessage.objects.using(tx.using).bulk_create(
        AuditedMessage(
            entry=entry,
            message_id=item.message_id,
            fingerprint=item.fingerprint,
            is_open=entry.act == Act.RETRY,
        )
        if isinstance(item, PoisonRecord)
        else AuditedMessage(entry=entry, message_id=item)
        for item in touched
    )


def person(by: str | None) -> str:
    """Return a name that every column, log line and history can take."""
    return storable_text(by or "", limit=200).replace("\n", " ")


def of_ids(ids: Sequence[int]) -> dict[str, Any]:
    """Describe a selection by id."""
    return {"ids": list(ids[:_IDS]), "count": len(ids)}


def trail(message_id: int, *, using: str | None = None) -> list[AuditedMessage]:
    """Return what people did to a message, newest first."""
    alias = primary_alias(using)
    rows = AuditedMessage.objects.using(alias).filter(message_id=message_id)
    large = [f"entry__{name}" for name in AuditEntry.LARGE]
    found = list(rows.select_related("entry").defer(*large).order_by("-id")[:100])
    settle_rows(found, using=alias)
    return found
