"""Handlers of the internal messages: bulk jobs, notices of alerts, timers of instances."""

from __future__ import annotations

from . import instances
from .alerts import delivery, notice
from .lifecycle import Claimed
from .operations import bulk
from .worker.registry import handler


@handler(bulk.NAME, atomic=True, timeout=300)
def carry_on(message: Claimed) -> None:
    """Do one piece of a bulk job. Atomic: piece, count and next message are one transaction."""
    bulk.step_job(message.payload["job"], using=message.payload.get("using"))


@handler(
    notice.NAME,
    timeout=delivery.TIMEOUT,
    max_attempts=delivery.ATTEMPTS,
    backoff_base=delivery.BASE,
    backoff_cap=delivery.CAP,
    # One channel that is down must not stop the others.
    breaker=None,
)
def tell(message: Claimed) -> None:
    """Deliver a notice to its channel, at least once: receivers recognise it by its id."""
    delivery.deliver(message.payload)


@handler(instances.TIMER, atomic=True, breaker=None)
def fire(message: Claimed) -> None:
    """Fire a timer of an instance. Atomic: its event and its completion are one transaction."""
    instances.fire_timer(message)
