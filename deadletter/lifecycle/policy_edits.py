"""Edits of stream policies: wake streams whose followers no longer wait for a retry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.dispatch import receiver

from ..models import Queue, StreamPolicy
from ..models.queue import stream_policy_changed
from .notify import notify_after_commit
from .transaction import Transaction, in_transaction


@receiver(stream_policy_changed, sender=Queue)
def free_streams(ids: Sequence[int], using: str, **kwargs: Any) -> None:
    """
    Wake the followers of waiting messages, in the transaction that made the policy `release`.

    Other edits wake nothing: `strict` and `halt` both wait for a retry, and a stream that a poison
    record has halted stays halted until the record is retried or removed, whatever the policy.
    """
    in_transaction(lambda tx: wake_released(tx, ids), using=using)


def wake_released(tx: Transaction, ids: Sequence[int] | None = None) -> int:
    """
    Make the first parked message due in each stream of these queues that only waits for a retry.

    Only for queues under `release`. The streams are not locked, there may be many thousands: a
    message that is woken too early is parked again by the next claim, and a message that a claim
    parks at the same moment, by the old policy, is woken by the sweep.
    """
    queues = Queue.objects.using(tx.using).filter(stream_policy=StreamPolicy.RELEASE)
    if ids is not None:
        queues = queues.filter(pk__in=ids)
    woken = 0
    for pk, name in queues.order_by("pk").values_list("pk", "name"):
        woken += len(tx.run("wake_queue", queue_id=pk, queue=name))
    if woken:
        notify_after_commit(tx.using)
    return woken
