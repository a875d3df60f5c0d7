"""Streams with messages that cannot run, and what holds them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connections
from django.db.models import Value
from django.db.models.functions import Coalesce

from .. import clock, sql
from ..models import Message, PoisonRecord, Queue, State, primary_alias
from ..sql.planner import by_index
from ..text import short_repr

#: The limit up to which waiting messages are counted.
COUNTED = 1_000
#: Streams that are compared to find those blocked the longest.
REACH = 5_000


@dataclass(frozen=True, kw_only=True)
class HeldStream:
    """A stream with messages that cannot run, and the reason."""

    queue: str
    stream: str
    #: "halted" by a poison record, "waiting" for a retry or a time, "active" in a worker, or "due":
    #: a worker will claim its head.
    why: str
    #: The poison record that halts the stream.
    poison_id: int | None
    #: The message that holds the stream: its head, or the message of the poison record.
    message_id: int | None
    message_name: str
    until: datetime | None
    #: Parked messages, at most COUNTED + 1.
    waiting: int
    #: When the first parked message was sent, and its id.
    since: datetime | None
    next_id: int | None
    #: True if the head failed and waits for its retry.
    failed: bool


def list_streams(
    *, limit: int = 50, only: str | None = None, using: str | None = None
) -> list[HeldStream]:
    """
    List halted streams, then the streams that are blocked the longest.

    `only`: "halted" or "blocked", to list the ones or the others.
    """
    alias = primary_alias(using)
    if only not in (None, "halted", "blocked"):
        raise ValueError(f"only: {short_repr(only)} is neither 'halted' nor 'blocked'")
    with by_index(alias):
        if only == "blocked":
            return [stream for stream in _blocked(alias, limit) if stream.why != "halted"]
        halted = _halted(alias, limit)
        if only == "halted" or len(halted) >= limit:
            return halted  # each stream costs several probes; skip streams that would be cut off
        known = {(stream.queue, stream.stream) for stream in halted}
        blocked = [s for s in _blocked(alias, limit) if (s.queue, s.stream) not in known]
        return [*halted, *blocked][:limit]


def get_stream(queue: str, stream: str, *, using: str | None = None) -> HeldStream | None:
    """Return what holds one stream, or None if nothing does."""
    alias = primary_alias(using)
    row = Queue.objects.using(alias).filter(name=queue).first()
    if row is None:
        return None
    with by_index(alias):
        return _held(row, stream, alias, clock.now(alias))


def _halted(alias: str, limit: int) -> list[HeldStream]:
    rows = PoisonRecord.objects.using(alias).halting()
    pairs = rows.order_by("queue", "stream").values_list("queue", "stream").distinct()[:limit]
    queues = {queue.name: queue for queue in Queue.objects.using(alias).all()}
    now = clock.now(alias)
    found = [
        _held(queues[queue], stream, alias, now)
        for queue, stream in pairs
        if queue in queues and stream is not None
    ]
    return [stream for stream in found if stream is not None]


def _blocked(alias: str, limit: int) -> list[HeldStream]:
    rows = sql.run(connections[alias], "read_blocked_streams", {"reach": REACH, "limit": limit})
    queues = {queue.pk: queue for queue in Queue.objects.using(alias).all()}
    now = clock.now(alias)
    found = [_held(queues[row[0]], row[1], alias, now) for row in rows if row[0] in queues]
    return [stream for stream in found if stream is not None]


def _held(queue: Queue, stream: str, alias: str, now: datetime) -> HeldStream | None:
    # A range with equal ends, in the order of the stream indexes: the reason is in the SQL files.
    messages = (
        Message.objects.using(alias)
        .without_bodies()
        .filter(queue=queue, stream__gte=stream, stream__lte=stream)
        .order_by("queue_id", "stream", "pk")
    )
    parked = messages.filter(available_at=None)
    first = parked.first()
    halts = (
        PoisonRecord.objects.using(alias)
        .without_bodies()
        .halting()
        .filter(queue=queue.name, stream=stream)
    )
    halt = halts.order_by("message_id").first()
    if first is None and halt is None:
        return None
    why, head = "halted", None
    if halt is None:
        leased = messages.filter(lease_token__isnull=False).order_by("queue_id", "stream")
        active = leased.alias(end=Coalesce("available_at", Value(now))).filter(end__gt=now).first()
        head = active or messages.filter(available_at__isnull=False).first()
        why = "active" if active else "due"
        if head is not None and active is None and head.available_at and head.available_at > now:
            why = "waiting"
    holder = halt or head
    return HeldStream(
        queue=queue.name,
        stream=stream,
        why=why,
        poison_id=halt.pk if halt else None,
        message_id=halt.message_id if halt else head.pk if head else None,
        message_name=holder.name if holder else "",
        until=head.available_at if why == "waiting" and head else None,
        waiting=parked.values("pk")[: COUNTED + 1].count() if first else 0,
        since=first.created_at if first else None,
        next_id=first.pk if first else None,
        failed=head is not None and head.state(now) == State.FAILED,
    )
