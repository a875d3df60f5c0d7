"""Removal of what is kept for a time: instances, deaths of workers, payloads of edits."""

from __future__ import annotations

from datetime import timedelta

from ...conf import get_settings
from ...models import AuditEntry, Instance, InstanceEvent, WorkerDeath
from ..transaction import Transaction

#: Instances, and lines of timelines, removed in one transaction.
CHUNK = 100
LINES = 5_000
#: How long deaths of workers are kept.
DEATHS_KEPT = timedelta(days=30)


def forget_ended(tx: Transaction) -> int:
    """
    Remove some instances past DEADLETTER["INSTANCES_KEPT"]; return how many there were to remove.

    One with a long timeline loses that first, in pieces, and itself last.
    """
    kept = get_settings().instances_kept
    if kept is None:
        return 0
    rows = Instance.objects.using(tx.using).filter(ended_at__lte=tx.time() - kept)
    ids = list(
        rows.select_for_update(skip_locked=True)
        .order_by("ended_at", "id")
        .values_list("pk", flat=True)[:CHUNK]
    )
    gone = 0
    room = LINES
    for id in ids:
        lines = InstanceEvent.objects.using(tx.using).filter(instance=id).order_by("id")
        some = list(lines.values_list("pk", flat=True)[: room + 1])
        lines.filter(pk__in=some[:room]).delete()
        if len(some) > room:
            return max(gone, 1)
        room -= len(some)
        Instance.objects.using(tx.using).filter(pk=id).delete()
        gone += 1
    return gone


def forget_deaths(tx: Transaction) -> int:
    """Remove some deaths of workers that are older than DEATHS_KEPT; return how many."""
    rows = WorkerDeath.objects.using(tx.using).filter(died_at__lte=tx.time() - DEATHS_KEPT)
    ids = list(
        rows.select_for_update(skip_locked=True)
        .order_by("died_at", "id")
        .values_list("pk", flat=True)[:CHUNK]
    )
    WorkerDeath.objects.using(tx.using).filter(pk__in=ids).delete()
    return len(ids)


def clear_edits(tx: Transaction) -> int:
    """
    Clear the payloads of some edits past DEADLETTER["AUDIT_PAYLOADS_KEPT"]; return how many.

    Their entries stay: who edited what, when and why is kept for good.
    """
    kept = get_settings().audit_payloads_kept
    if kept is None:
        return 0
    rows = AuditEntry.objects.using(tx.using)
    old = rows.filter(payload_after__isnull=False, at__lte=tx.time() - kept)
    ids = list(
        old.select_for_update(skip_locked=True)
        .order_by("at", "id")
        .values_list("pk", flat=True)[:CHUNK]
    )
    rows.filter(pk__in=ids).update(payload_before=None, payload_after=None)
    return len(ids)
