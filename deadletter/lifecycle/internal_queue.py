"""deadletter's own queue: background work and notices, which must never be about themselves."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from ..models import Queue
from ..patterns import OWN_QUEUE

QUEUE = OWN_QUEUE
#: What the names of its own messages begin with.
PREFIX = "deadletter."
_POLICY = {"max_attempts": 10, "backoff_base": 1, "backoff_cap": 60}


def own_queue(alias: str) -> None:
    """Make the queue when it is first needed: most installations never see it."""
    queues = Queue.objects.using(alias).filter(name=QUEUE)
    if queues.exists():
        return
    try:
        Queue(name=QUEUE, **_POLICY).save(using=alias, force_insert=True)
    except ValidationError:
        # Saving waits for whoever saves a queue at this moment: the other one has made it.
        if not queues.exists():
            raise
