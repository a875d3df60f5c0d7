"""How much is there now? A bounded number of index entries for each queue, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import Count

from .. import clock
from ..lifecycle.levels import oldest_due, priorities, read_levels
from ..lifecycle.transaction import plan_by_index
from ..models import Breaker, Instance, Kind, Message, PoisonRecord, Queue, State, WorkerProcess
from ..operations import depths
from ..operations.depths import FailedLook, waiting_depths
from ..patterns import Served
from .board import OTHER

#: Messages of a queue counted in a state; a depth that reaches it may be more.
CAP = 100_000
#: Of those that wait for a time, so many are told apart: what they wait for is in no index.
TOLD_APART = depths.LOOK
#: Seconds after which a worker that was not seen no longer counts as alive; it says so every 5.
ALIVE = 30


@dataclass
class Depth:
    """One queue. `states` has every state, counted up to a limit."""

    states: dict[str, int]
    #: For how long the message that waits longest could have been handled; 0: nothing is due.
    oldest: float
    paused: bool
    #: Whether other queues send their dead here; workers leave it alone unless they are told.
    is_dead_queue: bool
    #: Processes that were seen lately and serve it.
    workers: int
    halted: int


@dataclass
class Depths:
    queues: dict[str, Depth] = field(default_factory=dict)
    workers: int = 0
    #: Message names that are held back.
    breakers: list[str] = field(default_factory=list)
    #: Running instances that wait for what was lost.
    stuck: int = 0


def read_depths(using: str) -> Depths:
    with _by_index(using):
        return _read_depths(using)


@contextmanager
def _by_index(using: str) -> Iterator[None]:
    """Keep PostgreSQL from reading a whole table because a tenth of it would be counted."""
    if connections[using].vendor != "postgresql":
        yield
        return
    with transaction.atomic(using=using):
        plan_by_index(connections[using])
        yield


def _read_depths(using: str) -> Depths:
    now = clock.now(using)
    alive = WorkerProcess.objects.using(using).filter(seen_at__gte=now - timedelta(seconds=ALIVE))
    served = list(alive.values_list("queues", flat=True))
    breakers = (
        Breaker.objects.using(using).open(now).order_by("name").values_list("name", flat=True)
    )
    stuck = _count(Instance.objects.using(using).stuck())
    serving = Served(served)
    found = Depths(workers=len(served), breakers=list(breakers), stuck=stuck)
    queues = Queue.objects.using(using).order_by("name")
    dead = set(queues.filter(dead_queue__isnull=False).values_list("dead_queue_id", flat=True))
    levels = read_levels(using)
    oldest, named = oldest_due(levels, now=now), priorities(levels)
    failed = FailedLook(now, using)
    for queue in queues:
        found.queues[queue.name] = Depth(
            states=_states(queue, named.get(queue.name, []), now, failed),
            oldest=(now - oldest.get(queue.name, now)).total_seconds(),
            paused=queue.paused,
            is_dead_queue=queue.pk in dead,
            workers=serving.count(queue.name, is_dead_queue=queue.pk in dead),
            halted=_halted(queue, using),
        )
    return found


def read_poison(using: str) -> dict[str, int]:
    """
    Count poison by kind, exactly. No index knows the kind, so this reads the whole table: about
    0.7 s for a million records. `reading.Rested` keeps it rare.
    """
    found = dict.fromkeys(Kind.values, 0)
    rows = PoisonRecord.objects.using(using).order_by().values_list("kind")
    for kind, n in rows.annotate(n=Count("pk")):
        label = kind if kind in found else OTHER
        found[label] = found.get(label, 0) + n
    return found


def _states(queue: Queue, named: list[int], now: datetime, failed: FailedLook) -> dict[str, int]:
    using = failed.using
    rows = Message.objects.using(using).filter(queue=queue)
    # Naming the priorities lets the claim's index lead to the time, however much else there is.
    awake = rows.filter(priority__in=named)
    waiting = waiting_depths(awake.filter(available_at__gt=now), queue.pk, failed)
    return {
        State.PENDING: _count(awake.filter(available_at__lte=now)),
        **{state: min(depth.n, depths.LOOK) for state, depth in waiting.items()},
        State.BLOCKED: _count(rows.filter(available_at=None)),
        State.DEAD: _count(PoisonRecord.objects.using(using).filter(queue=queue.name)),
    }


def _count(rows: Any) -> int:
    return int(rows.order_by()[:CAP].count())


def _halted(queue: Queue, using: str) -> int:
    """Count streams that stand still until an operator acts."""
    halting = PoisonRecord.objects.using(using).filter(queue=queue.name, halts=True)
    return int(halting.order_by().values("stream").distinct()[:CAP].count())
