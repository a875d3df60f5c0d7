"""Which instances are old enough to be forgotten? Those that ended, a bounded piece at a time."""

from __future__ import annotations

from ..conf import get_settings
from ..models import Instance, InstanceEvent
from .transaction import Transaction

#: Instances, and lines of timelines, removed in one transaction.
CHUNK = 100
LINES = 5_000


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
