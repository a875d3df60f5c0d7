"""Retention of instances: delete those that ended long ago, with their logs."""

from __future__ import annotations

from ...conf import get_settings
from ...models import Instance, InstanceEvent
from ..transaction import Transaction

#: Instances, and entries of their logs, deleted in one transaction.
CHUNK = 100
LINES = 5_000


def delete_ended(tx: Transaction) -> int:
    """
    Delete some instances past DEADLETTER["INSTANCES_KEPT"]; return how many there were to delete.

    The log of an instance is deleted before its row. A long log takes several transactions.
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
