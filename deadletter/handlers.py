"""deadletter's own messages: work that operators began, notices on their way, timers."""

from __future__ import annotations

from . import instances
from .alerts import delivery, notice
from .lifecycle import Claimed
from .operations import bulk
from .worker.registry import handler


@handler(bulk.NAME, atomic=True, timeout=300)
def carry_on(message: Claimed) -> None:
    """Do one piece of a bulk job. Atomic: the piece, its count and the next message are one."""
    bulk.step_job(message.payload["job"], using=message.payload.get("using"))


@handler(
    notice.NAME,
    timeout=delivery.TIMEOUT,
    max_attempts=delivery.ATTEMPTS,
    backoff_base=delivery.BASE,
    backoff_cap=delivery.CAP,
    # One channel that is down must not hold back the others.
    breaker=None,
)
def tell(message: Claimed) -> None:
    """Deliver a notice to its channel. At least once: a receiver knows it by its id."""
    delivery.deliver(message.payload)


@handler(instances.TIMER, atomic=True, breaker=None)
def fire(message: Claimed) -> None:
    """Let a timer of an instance fire. Atomic: its event and its end are one."""
    instances.fire_timer(message)
