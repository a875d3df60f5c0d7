"""What becomes of an activity's result, and of a timer? An event in the stream of its instance."""

from __future__ import annotations

from time import monotonic
from typing import Any

from ..exceptions import LeaseLost
from ..instance_events import ActivityCompleted, Event, TimerFired
from ..lifecycle import Claimed, Completion, failures
from ..lifecycle.instances import end
from ..lifecycle.instances.post import event_letter
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
        finished = Completion(message.id, Status.PUBLISHED, message.token, seconds)
        if message.id not in failures.completing(tx, [finished]):
            raise LeaseLost([message.id])
        _tell(tx, message, done)

    # Only this handler's own thread waits, and not longer than the message is its own.
    in_transaction(work, using=using, wait=message.lease.total_seconds(), is_last=True)


def fire_timer(message: Claimed) -> None:
    """Send what a timer waited for; its handler is atomic, so both happen or neither."""
    fired = TimerFired(activity_id=message.activity_id or 0)
    in_transaction(lambda tx: _tell(tx, message, fired), using=message.payload["using"])


def _tell(tx: Transaction, message: Claimed, event: Event) -> None:
    owner = Instance.objects.using(tx.using).without_bodies().filter(pk=message.instance).first()
    if owner is not None:
        letter = event_letter(
            owner,
            event,
            execution_id=message.execution_id or 0,
            activity_id=message.activity_id,
        )
        end.deliver(letter, tx, or_in=message.queue)
