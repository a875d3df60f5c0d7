"""Outcomes of retried messages, for the audit trail; a quarantine marks the deaths itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from django.db.models import F

from ..models import AuditedMessage, AuditEntry
from .transaction import Transaction

_COLUMNS = {
    AuditedMessage.Outcome.SUCCEEDED: "succeeded",
    AuditedMessage.Outcome.DIED_SAME: "died_same",
    AuditedMessage.Outcome.DIED_OTHER: "died_other",
}


def mark_removed(tx: Transaction, ids: Collection[int]) -> None:
    """Note removals, in the transaction of the removal."""
    if ids:
        tx.run("mark_removed", ids=sorted(ids))


def close(tx: Transaction, *, limit: int) -> int:
    """
    Add known outcomes to the audit entries, and find completed messages; return how many.

    A completion writes nothing here, because it is the hot path. A retried message that neither
    died nor was removed, and is in no queue any more, has been completed.
    """
    tx.run("mark_completed", limit=limit)
    rows = AuditedMessage.objects.using(tx.using).filter(is_open=True, outcome__isnull=False)
    known = list(
        rows.select_for_update(skip_locked=True)
        .order_by("pk")
        .values_list("pk", "entry_id", "outcome")[:limit]
    )
    for (entry, outcome), count in Counter(row[1:] for row in known).items():
        if column := _COLUMNS.get(AuditedMessage.Outcome(outcome or 0)):
            AuditEntry.objects.using(tx.using).filter(pk=entry).update(
                **{column: F(column) + count}
            )
    rows.filter(pk__in=[row[0] for row in known]).update(is_open=False)
    return len(known)
