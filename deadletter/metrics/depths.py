"""Current depths of the queues, from a bounded number of index entries for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q

from .. import clock
from ..durations import LATEST
from ..lifecycle.levels import oldest_due, priorities, read_levels
from ..models import Breaker, Instance, Kind, Message, PoisonRecord, Queue, WorkerProcess
from ..operations import BrokerReport, depths, list_brokers
from ..operations.depths import FailedLook, count_queue
from ..patterns import ServedQueues
from ..sql.planner import INDEX_ONLY, by_index
from ..status import Status
from .process_counters import OTHER

#: The most messages of a queue that are counted in one state; the real number may be higher.
CAP = 100_000
#: Number of waiting messages whose state is determined: no index has what they wait for.
CLASSIFIED = depths.LOOK
#: Attempts of failed messages in bands, (first, last), as on the dashboard; None: no end.
BANDS = ((0, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 9), (10, None))
#: Attempts after which a failed message is a candidate for poison.
CANDIDATE = 10


@dataclass
class Depth:
    """One queue. `states` has every state, counted up to a limit."""

    states: dict[str, int]
    #: Seconds for which the message that waits longest has been due; 0: nothing is due.
    oldest: float
    paused: bool
    #: Whether this is a dead queue; workers serve it only if it is named in --queues.
    is_dead_queue: bool
    #: Live worker processes that serve it.
    workers: int
    halted: int
    #: Seconds until the first failed message is tried again; None: none waits for that.
    next_retry: float | None = None
    #: Seconds until the first scheduled message is due; None: none is scheduled.
    next_scheduled: float | None = None


@dataclass
class Depths:
    queues: dict[str, Depth] = field(default_factory=dict)
    workers: int = 0
    #: Message names that a circuit breaker holds back.
    breakers: list[str] = field(default_factory=list)
    #: Message names that a person holds.
    held_names: list[str] = field(default_factory=list)
    #: Running instances that wait for a message that no longer exists.
    stuck: int = 0
    #: Failed messages by attempts: the oldest CLASSIFIED, each band by its name.
    attempts: dict[str, int] = field(default_factory=dict)
    #: Of these, those that were tried CANDIDATE times and wait for another try.
    candidates: int = 0
    #: The brokers of the outbox.
    brokers: list[BrokerReport] = field(default_factory=list)
    #: When all this was read.
    at: datetime = LATEST


def read_depths(using: str) -> Depths:
    # Without this PostgreSQL reads a whole table if it expects to count a tenth of it.
    with by_index(using, INDEX_ONLY):
        return _read_depths(using)


def _read_depths(using: str) -> Depths:
    now = clock.now(using)
    alive = WorkerProcess.objects.using(using).alive(now)
    served = list(alive.values_list("queues", flat=True))
    breakers = list(Breaker.objects.using(using).open(now).order_by("name"))
    stuck = _count(Instance.objects.using(using).stuck())
    serving = ServedQueues(served)
    found = Depths(workers=len(served), stuck=stuck, at=now)
    # A name may be in both: a person holds it because its handler keeps failing.
    found.breakers = [row.name for row in breakers if row.failures or not row.is_held]
    found.held_names = [row.name for row in breakers if row.is_held]
    found.brokers = list_brokers(using=using)
    found.attempts, found.candidates = _attempts(using)
    queues = Queue.objects.using(using).order_by("name")
    dead = set(queues.filter(dead_queue__isnull=False).values_list("dead_queue_id", flat=True))
    levels = read_levels(using)
    oldest, named = oldest_due(levels, now=now), priorities(levels)
    failed = FailedLook(now, using)
    for queue in queues:
        # Naming the priorities lets the claim's index lead to the time, however much else there is.
        awake = Message.objects.using(using).filter(
            queue=queue, priority__in=named.get(queue.name, [])
        )
        counts = count_queue(queue, named.get(queue.name, []), failed, CAP)
        next_retry, next_scheduled = _next_times(awake.filter(available_at__gt=now))
        found.queues[queue.name] = Depth(
            states={state: count.n for state, count in counts.items()},
            oldest=(now - oldest.get(queue.name, now)).total_seconds(),
            paused=queue.paused,
            is_dead_queue=queue.pk in dead,
            workers=serving.count(queue.name, is_dead_queue=queue.pk in dead),
            halted=_halted(queue, using),
            next_retry=_seconds_to(next_retry, now),
            next_scheduled=_seconds_to(next_scheduled, now),
        )
    return found


def read_poison(using: str) -> dict[str, int]:
    """
    Count poison by kind, exactly. No index knows the kind, so this reads the whole table: about
    0.7 s for a million records. `cache.CachedQuery` keeps it rare.
    """
    found = dict.fromkeys(Kind.values, 0)
    rows = PoisonRecord.objects.using(using).order_by().values_list("kind")
    for kind, n in rows.annotate(n=Count("pk")):
        label = kind if kind in found else OTHER
        found[label] = found.get(label, 0) + n
    return found


def _count(rows: Any) -> int:
    return int(rows.order_by()[:CAP].count())


def _next_times(rows: Any) -> tuple[datetime | None, datetime | None]:
    """Return when the next retry and the next scheduled message are due, of the first that wait."""
    leased, failed = Q(lease_token__isnull=False), Q(status__gte=int(Status.FAILED))
    # PostgreSQL can store times that Python cannot represent.
    readable = Q(available_at__lt=LATEST)
    found = rows.order_by()[:CLASSIFIED].aggregate(
        next_retry=Min("available_at", filter=readable & ~leased & failed),
        next_scheduled=Min("available_at", filter=readable & ~leased & ~failed),
    )
    return found["next_retry"], found["next_scheduled"]


def _seconds_to(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else (moment - now).total_seconds()


def failed_first(using: str) -> Any:
    """Return the oldest CLASSIFIED failed messages by id; most attempts are among the oldest."""
    rows = Message.objects.using(using).filter(status__gte=int(Status.FAILED))
    return rows.order_by("pk")[:CLASSIFIED]


def _attempts(using: str) -> tuple[dict[str, int], int]:
    counts = {
        f"band_{n}": Count("pk", filter=Q(attempts__gte=low, attempts__lte=high or _MOST))
        for n, (low, high) in enumerate(BANDS)
    }
    candidates = Count("pk", filter=Q(attempts__gte=CANDIDATE, available_at__isnull=False))
    found = failed_first(using).aggregate(candidates=candidates, **counts)
    return {_label(*band): found[f"band_{n}"] for n, band in enumerate(BANDS)}, found["candidates"]


#: The largest number of attempts that the column can store.
_MOST = 2**31 - 1


def _label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low}+"
    return str(high) if low in (0, high) else f"{low}-{high}"


def _halted(queue: Queue, using: str) -> int:
    """Count streams that are halted until an operator acts."""
    halting = PoisonRecord.objects.using(using).halting().filter(queue=queue.name)
    return int(halting.order_by().values("stream").distinct()[:CAP].count())
