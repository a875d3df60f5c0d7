"""deadletter's internal queue: background work and notices, which are never about themselves."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from ..models import Queue
from ..patterns import OWN_QUEUE

QUEUE = OWN_QUEUE
#: The prefix of the names of its messages.
PREFIX = "deadletter."
_POLICY = {"max_attempts": 10, "backoff_base": 1, "backoff_cap": 60}


def ensure_internal_queue(alias: str) -> None:
    """Create the queue when it is first needed: most installations never use it."""
    queues = Queue.objects.using(alias).filter(name=QUEUE)
    if queues.exists():
        return
    try:
        Queue(name=QUEUE, **_POLICY).save(using=alias, force_insert=True)
    except ValidationError:
        # Another process has created it: saving waits for a transaction that saves a queue.
        if not queues.exists():
            raise
