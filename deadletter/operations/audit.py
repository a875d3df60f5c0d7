"""The audit trail: an entry for each act of a person, and the messages that the act touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import F

from ..lifecycle.transaction import Transaction
from ..models import Act, AuditedMessage, AuditEntry, PoisonRecord, primary_alias
from ..text import short_repr, storable_text
from .filter_values import check_text
from .retry_outcomes import attach_outcomes, settle_rows

#: Ids kept in the entry itself. The messages that an act touched have rows of their own.
_IDS = 1_000


@dataclass(frozen=True, kw_only=True)
class NewEntry:
    """The fields of an audit entry that are known before the act begins."""

    act: Act
    by: str | None
    why: str = ""
    selection: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


def record(tx: Transaction, new: NewEntry) -> AuditEntry:
    """Write the entry of an act, in the transaction of the act; `add` adds the numbers."""
    return AuditEntry.objects.using(tx.using).create(
        at=tx.time(),
        by=person(new.by),
        act=new.act,
        why=storable_text(new.why),
        selection=dict(new.selection),
        detail=dict(new.detail),
    )


def keep_edit(tx: Transaction, entry: AuditEntry, *, before: str | None, after: str) -> None:
    """Keep both payloads of an edit in its entry, as evidence of the change."""
    AuditEntry.objects.using(tx.using).filter(pk=entry.pk).update(
        payload_before=before, payload_after=after
    )


def add(
    tx: Transaction,
    entry: AuditEntry,
    *,
    touched: Sequence[PoisonRecord] | Sequence[int] = (),
    done: int = 0,
    missing: int = 0,
    refused: int = 0,
) -> None:
    """
    Add to an entry the messages that its act touched, and the numbers of done and other ids.

    The sweep follows retried messages to their outcome.
    """
    if touched:
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
    AuditEntry.objects.using(tx.using).filter(pk=entry.pk).update(
        done=F("done") + done, missing=F("missing") + missing, refused=F("refused") + refused
    )


def person(by: str | None) -> str:
    """Return a user name that fits every column, log line and history."""
    return storable_text(by or "", limit=200).replace("\n", " ")


def of_ids(ids: Sequence[int]) -> dict[str, Any]:
    """Return a selection by ids as the audit entry keeps it."""
    return {"ids": list(ids[:_IDS]), "count": len(ids)}


def list_audit(
    *,
    act: str | None = None,
    by: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 50,
    using: str | None = None,
) -> list[AuditEntry]:
    """
    List what people did, the latest first, with the outcomes of retries; no payloads are read.

    Raises ValueError, naming the field, for a value that no entry can have.
    """
    alias = primary_alias(using)
    rows = AuditEntry.objects.using(alias).defer(*AuditEntry.LARGE)
    if act is not None:
        if act not in Act.values:
            raise ValueError(f"act: {short_repr(act)} is none of {', '.join(Act.values)}")
        rows = rows.filter(act=act)
    if by is not None:
        check_text("by", by)
        rows = rows.filter(by=by)
    if since is not None:
        rows = rows.filter(at__gte=since)
    if until is not None:
        rows = rows.filter(at__lt=until)
    found = list(rows.order_by("-pk")[:limit])
    attach_outcomes(found, using=alias)
    return found


def trail(message_id: int, *, using: str | None = None) -> list[AuditedMessage]:
    """Return the acts of people on a message, newest first, at most 100."""
    alias = primary_alias(using)
    rows = AuditedMessage.objects.using(alias).filter(message_id=message_id)
    large = [f"entry__{name}" for name in AuditEntry.LARGE]
    found = list(rows.select_related("entry").defer(*large).order_by("-id")[:100])
    settle_rows(found, using=alias)
    return found
