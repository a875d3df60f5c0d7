"""What waits behind a record in its stream?"""

from __future__ import annotations

from dataclasses import dataclass

from ...models import Message, PoisonRecord, Queue
from ..pages import alias
from .query import Counted

#: Messages that are listed, and counted.
LISTED, COUNTED = 10, 1_000


@dataclass(frozen=True)
class Following:
    """The messages sent to the stream after this one that are still there."""

    counted: Counted
    first: list[Message]


def following(record: PoisonRecord) -> Following:
    """Count and list them in the order they will run. No payloads, one index range."""
    queue = Queue.objects.using(alias()).filter(name=record.queue).first()
    if record.stream is None or queue is None:
        return Following(Counted(0), [])
    rows = Message.objects.using(alias()).without_bodies().filter(queue=queue, stream=record.stream)
    behind = rows.filter(pk__gt=record.message_id)
    n = behind.order_by().values("pk")[: COUNTED + 1].count()
    return Following(Counted(min(n, COUNTED), n > COUNTED), list(behind.order_by("pk")[:LISTED]))
