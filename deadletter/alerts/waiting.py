"""Does a message wait too long, or where nobody comes?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from ..lifecycle.internal_queue import QUEUE
from ..lifecycle.levels import oldest_waiting
from ..models import Alert, WorkerProcess
from .conditions import Look, Observation


def too_old(look: Look) -> Iterator[Observation]:
    """Find queues in which a message has been due for longer than the rule allows."""
    kind = Alert.Rule.OLDEST_AGE.value
    if look.policy.of_kind(kind):
        for queue, due in _oldest_due(look):
            rule = look.wants(kind, queue)
            if rule is not None and look.now - due > rule.after:
                yield _observed(look, kind, queue, due, rule.after)


def unserved(look: Look) -> Iterator[Observation]:
    """Find queues with work that no live worker serves."""
    kind = Alert.Rule.UNSERVED_QUEUE.value
    if not look.policy.of_kind(kind):
        return
    served = WorkerProcess.objects.using(look.using).alive(look.now).served()
    for queue, due in _oldest_due(look):
        rule = look.wants(kind, queue)
        if rule is not None and queue not in served and look.now - due > rule.after:
            yield _observed(look, kind, queue, due, rule.after)


def _observed(look: Look, kind: str, queue: str, due: datetime, after: timedelta) -> Observation:
    return Observation(
        rule=kind,
        subject=queue,
        since=due,
        last_at=look.now,
        detail={
            "queue": queue,
            "after": after.total_seconds(),
            "seconds": (look.now - due).total_seconds(),
        },
    )


def _oldest_due(look: Look) -> list[tuple[str, datetime]]:
    """
    Return when the message came due that waits the longest, per queue: an index probe a level.

    Paused queues and dead queues wait on purpose.
    """
    oldest = oldest_waiting(look.using, now=look.now)
    return [(name, since) for name, since in oldest.items() if name != QUEUE]
