"""deadletter's own messages: work that operators began and a worker carries on."""

from __future__ import annotations

from .lifecycle import Claimed
from .operations import bulk
from .worker.registry import handler


@handler(bulk.NAME, atomic=True, timeout=300)
def carry_on(message: Claimed) -> None:
    """Do one piece of a bulk job. Atomic: the piece, its count and the next message are one."""
    bulk.step_job(message.payload["job"], using=message.payload.get("using"))
