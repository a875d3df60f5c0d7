"""The streams that are halted or blocked, the longest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min, Value
from django.db.models.functions import Concat

from ...models import Message, PoisonRecord, Queue, State
from ...operations import HeldStream, list_streams
from ...operations.streams import COUNTED
from ..counts import Capped
from .links import Links

#: Streams listed; each costs a few index probes.
SHOWN = 6
#: Halting poison records read to count the halted streams and to find the oldest halt.
HALTS = 1_000


@dataclass(frozen=True)
class DashboardStream:
    held: HeldStream
    waiting: Capped
    rows_url: str
    holder_url: str


@dataclass(frozen=True, kw_only=True)
class StreamTable:
    lines: list[DashboardStream]
    halted: Capped
    #: The time of the oldest halt.
    since: datetime | None
    all_url: str


def read_stream_table(links: Links, using: str) -> StreamTable | None:
    if not links.messages:
        return None
    halts = PoisonRecord.objects.using(using).halting()
    # In the order of the partial index on halting records.
    rows = halts.order_by("queue", "stream", "message_id")
    found = rows.values("poisoned_at", both=Concat("queue", Value("\n"), "stream"))[
        : HALTS + 1
    ].aggregate(
        every=Count("poisoned_at"), names=Count("both", distinct=True), since=Min("poisoned_at")
    )
    return StreamTable(
        lines=_lines(links, list_streams(limit=SHOWN, using=using), using),
        halted=Capped(found["names"], found["every"] > HALTS),
        since=found["since"],
        all_url=links.to(Message, "streams"),
    )


def _lines(links: Links, streams: list[HeldStream], using: str) -> list[DashboardStream]:
    names = {held.queue for held in streams}
    rows = Queue.objects.using(using).filter(name__in=names) if names else []
    ids = {queue.name: queue.pk for queue in rows}
    return [_line(links, held, ids[held.queue]) for held in streams if held.queue in ids]


def _line(links: Links, held: HeldStream, queue_id: int) -> DashboardStream:
    if held.poison_id is not None:
        holder = links.to(PoisonRecord, "poisonrecord_change", held.poison_id)
    elif held.message_id is not None:
        holder = links.to(Message, "message_change", held.message_id)
    else:
        holder = ""
    return DashboardStream(
        held,
        Capped(min(held.waiting, COUNTED), held.waiting > COUNTED),
        links.to(
            Message, "message_changelist", q=held.stream, queue=queue_id, state=State.BLOCKED.value
        ),
        holder,
    )
