"""Activities and timers: their end is posted as an event to the stream of their instance."""

from __future__ import annotations

from time import monotonic
from typing import Any

from ..exceptions import LeaseLost
from ..instance_events import ActivityCompleted, Event, TimerFired
from ..lifecycle import Claimed, Completion, complete_in
from ..lifecycle.instances.post import event_message, post_or_log
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Instance
from ..status import Status
from . import names


def finish_activity(message: Claimed, result: Any, *, using: str | None = None) -> None:
    """
    Complete an activity and send its result to its flow, in one transaction.

    Raises: PayloadRejected for a result that JSON cannot carry; LeaseLost. Nothing is stored then.
    """
    result = names.checked("result", result)
    done = ActivityCompleted(activity_id=message.activity_id or 0, name=message.name, result=result)

    def work(tx: Transaction) -> None:
        seconds = monotonic() - message.started if message.started else None
        # Not kept: what becomes of the result is the instance's. It may be published, too.
        finished = Completion(
            message.id, Status.PUBLISHED, message.token, seconds, result=message.result
        )
        if message.id not in complete_in(tx, [finished]):
            raise LeaseLost([message.id])
        _post_to_instance(tx, message, done)

    # Only the thread of this handler waits, and not longer than its lease.
    in_transaction(work, using=using, wait=message.lease.total_seconds(), is_last=True)


def fire_timer(message: Claimed) -> None:
    """Send TimerFired to the instance. The handler is atomic: it commits with the completion."""
    fired = TimerFired(activity_id=message.activity_id or 0)
    in_transaction(lambda tx: _post_to_instance(tx, message, fired), using=message.payload["using"])


def _post_to_instance(tx: Transaction, message: Claimed, event: Event) -> None:
    instance = Instance.objects.using(tx.using).without_bodies().filter(pk=message.instance).first()
    if instance is not None:
        news = event_message(
            instance,
            event,
            execution_id=message.execution_id or 0,
            activity_id=message.activity_id,
        )
        post_or_log(tx, news, fallback_queue=message.queue)
