"""Statistics: exact counts of messages by state, queue, kind and reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Count, Max, Min, Q

from .. import clock
from ..models import Breaker, Instance, Message, PoisonRecord, Queue, primary_alias
from ..status import FailureReason, Status
from .depths import FAILED_BIT, exact_counts
from .queues import matching_queues


@dataclass
class QueueStats:
    pending: int = 0
    scheduled: int = 0
    failed: int = 0
    active: int = 0
    blocked: int = 0
    dead: int = 0
    oldest: datetime | None = None
    next_retry: datetime | None = None


@dataclass
class BacklogStats:
    """Messages that wait for a time: how many, and when the first and the last become due."""

    count: int = 0
    first: datetime | None = None
    last: datetime | None = None


@dataclass
class Stats:
    """Counts per queue and in total; per kind; failed messages by attempts and by reason."""

    queues: dict[str, QueueStats] = field(default_factory=dict)
    total: QueueStats = field(default_factory=QueueStats)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    retries: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    #: Scheduled and failed messages.
    backlog: BacklogStats = field(default_factory=BacklogStats)
    candidates: int = 0
    #: Instances by status.
    instances: dict[str, int] = field(default_factory=dict)
    #: Running instances that wait for a lost message.
    stuck: int = 0
    #: Message names held back by a circuit breaker, and until when.
    breakers: dict[str, datetime] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def stats(*, queue: str | None = None, using: str | None = None) -> Stats:
    """
    Count messages and poison exactly. Every row is read: `depths` is cheaper.

    `queue`: only this queue, or the queues that a pattern matches. Instances and breakers belong to
    no queue and are always counted.
    """
    alias = primary_alias(using)
    now = clock.now(alias)
    messages: Any = Message.objects.using(alias).alias(bit=FAILED_BIT)
    poison: Any = PoisonRecord.objects.using(alias)
    names = dict(Queue.objects.using(alias).values_list("pk", "name"))
    candidates = _candidates(alias, 10)
    if queue is not None:
        matched = matching_queues(queue, or_poison=True, using=alias)
        names = {pk: name for pk, name in names.items() if name in set(matched)}
        messages, candidates = messages.filter(queue__in=names), candidates.filter(queue__in=names)
        poison = poison.filter(queue__in=matched)
    found = Stats(queues={name: QueueStats() for name in sorted(names.values())})
    for row in messages.order_by().values("queue_id").annotate(**_counts(now)):
        queue_id = row.pop("queue_id")
        # A queue that was deleted with SQL has no name any more; its messages still count.
        name = names.get(queue_id, f"#{queue_id}")
        found.queues[name] = QueueStats(**row)
    for row in poison.order_by().values("queue").annotate(dead=Count("pk")):
        found.queues.setdefault(row["queue"], QueueStats()).dead = row["dead"]
    found.total = _sum(list(found.queues.values()))
    _by_kind(found, messages.order_by(), poison.order_by())
    failed = messages.order_by().filter(bit__gt=0)
    for row in failed.values("attempts").annotate(n=Count("pk")).order_by("attempts"):
        found.retries[row["attempts"]] = row["n"]
    for row in failed.values("failure_reason").annotate(n=Count("pk")).order_by("-n"):
        found.reasons[FailureReason.read(row["failure_reason"]).name] = row["n"]
    waiting = messages.order_by().filter(available_at__gt=now, lease_token=None)
    ends = (Count("pk"), Min("available_at"), Max("available_at"))
    found.backlog = BacklogStats(*waiting.aggregate(*ends).values())
    found.candidates = candidates.count()
    by_status = Instance.objects.using(alias).order_by("status").values("status")
    found.instances = {row["status"]: row["n"] for row in by_status.annotate(n=Count("pk"))}
    found.stuck = Instance.objects.using(alias).stuck().count()
    found.breakers = dict(Breaker.objects.using(alias).open(now).values_list("name", "until"))
    return found


def poison_candidates(
    attempts: int = 10, *, limit: int | None = None, using: str | None = None
) -> list[Message]:
    """List failed messages with so many attempts that wait for a retry, most attempts first."""
    alias = primary_alias(using)
    rows = _candidates(alias, attempts).without_bodies().with_error_start().select_related("queue")
    return list(rows.order_by("-attempts", "created_at", "pk")[:limit])


def _candidates(alias: str, attempts: int) -> Any:
    failed = Message.objects.using(alias).alias(bit=FAILED_BIT)
    # The second condition is implied by the bit; unlike the bit, it has an index.
    failed = failed.filter(bit__gt=0, status__gte=int(Status.FAILED))
    return failed.filter(attempts__gte=attempts, available_at__isnull=False)


def _counts(now: datetime) -> dict[str, Any]:
    failed = Q(available_at__gt=now, lease_token=None, bit__gt=0)
    times = {"oldest": Min("created_at"), "next_retry": Min("available_at", filter=failed)}
    return exact_counts(now) | times


def _sum(queues: list[QueueStats]) -> QueueStats:
    total = QueueStats()
    for name in ("pending", "scheduled", "failed", "active", "blocked", "dead"):
        setattr(total, name, sum(getattr(queue, name) for queue in queues))
    total.oldest = min((q.oldest for q in queues if q.oldest), default=None)
    total.next_retry = min((q.next_retry for q in queues if q.next_retry), default=None)
    return total


def _by_kind(found: Stats, messages: Any, poison: Any) -> None:
    for key, rows in (("waiting", messages), ("dead", poison)):
        for row in rows.values("kind").annotate(n=Count("pk")):
            found.kinds.setdefault(row["kind"], {"waiting": 0, "dead": 0})[key] = row["n"]
