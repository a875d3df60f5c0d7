"""What is known of the brokers of the outbox: what waits for them, and who publishes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Sum

from .. import clock
from ..conf import get_settings
from ..lifecycle.lanes import brokers_with_messages, oldest_of_broker
from ..lifecycle.outbox_batches import outbox_name
from ..lifecycle.pauses import Pauses
from ..models import (
    BrokerStatus,
    Count,
    OutboxLane,
    OutboxMessage,
    OutboxPause,
    OutboxRelay,
    Span,
    primary_alias,
)
from ..sql.planner import INDEX_ONLY, by_index

#: Messages of a broker that are counted; there may be more.
COUNTED = 10_000
#: The time over which the rate is taken.
RATED = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class BrokerReport:
    """A broker of the settings, or one that messages are left for."""

    name: str
    #: False: it is not in DEADLETTER["BROKERS"], so nothing is published.
    is_configured: bool
    #: Messages that wait to be published, up to COUNTED and one more.
    waiting: int
    #: Of these, how many were refused, or wait behind one that was or that is paused.
    held: int
    #: When the oldest message that is neither held nor paused was stored; None: there is none.
    oldest_at: datetime | None
    #: Lanes that relays hold, and relays that are alive.
    lanes: int
    relays: int
    #: Since when it accepts nothing, and why; None: it does, as far as is known.
    unavailable_since: datetime | None
    error: str
    confirmed_at: datetime | None
    #: Of those that wait, how many have a topic that is paused; of a paused broker, all.
    paused: int = 0
    #: Topics and patterns that are paused; "": the whole broker.
    pauses: tuple[str, ...] = ()
    #: Messages that it confirmed, each second of the last five minutes; None: nothing is counted.
    rate: float | None = None

    @property
    def is_paused(self) -> bool:
        """True if nothing is published to the broker because a person paused it."""
        return Pauses(self.pauses).is_whole

    @property
    def to_publish(self) -> int:
        """The messages that wait although nothing is paused."""
        return max(self.waiting - self.paused, 0)


def list_brokers(*, using: str | None = None) -> list[BrokerReport]:
    """Report every broker, by name. The cost is bounded, however much waits."""
    alias = primary_alias(using)
    now = clock.now(alias)
    configured = get_settings().brokers
    seen = {row.name: row for row in BrokerStatus.objects.using(alias)}
    pauses: dict[str, list[str]] = {}
    for name, topic in OutboxPause.objects.using(alias).values_list("broker", "topic"):
        pauses.setdefault(name, []).append(topic)
    with by_index(alias, INDEX_ONLY):
        found = [
            _report(
                name,
                seen.get(name),
                is_configured=name in configured,
                pauses=tuple(sorted(pauses.get(name, ()))),
                now=now,
                alias=alias,
            )
            for name in sorted({*configured, *seen, *brokers_with_messages(using=alias)})
        ]
        rates = _rates([broker.name for broker in found], now, alias)
    return [replace(broker, rate=rates.get(broker.name)) for broker in found]


def _rates(names: Sequence[str], now: datetime, alias: str) -> dict[str, float]:
    """Return the messages that each broker confirmed a second, over whole minutes."""
    if not names or not get_settings().counts:
        return {}
    end = now.replace(second=0, microsecond=0)
    rows = Count.objects.using(alias).filter(
        span=Span.MINUTE, at__gte=end - RATED, at__lt=end, queue__in=map(outbox_name, names)
    )
    sums = dict(rows.values_list("queue").annotate(n=Sum("completed")).order_by())
    return {name: sums.get(outbox_name(name), 0) / RATED.total_seconds() for name in names}


def _report(
    name: str,
    status: BrokerStatus | None,
    *,
    is_configured: bool,
    pauses: tuple[str, ...],
    now: datetime,
    alias: str,
) -> BrokerReport:
    rows = OutboxMessage.objects.using(alias).filter(broker=name)
    ready = rows.filter(held=False).order_by()[: COUNTED + 1].count()
    held = rows.filter(held=True).order_by()[: COUNTED + 1].count()
    # Counted in its own index: without them the held ones could not be counted up to a limit.
    paused = rows.filter(paused=True).order_by()[: COUNTED + 1].count()
    waiting = min(ready + held, COUNTED + 1)
    lanes = OutboxLane.objects.using(alias).filter(broker=name).leased(now)
    relays = OutboxRelay.objects.using(alias).filter(broker=name)
    return BrokerReport(
        name=name,
        is_configured=is_configured,
        waiting=waiting,
        held=max(held - paused, 0),
        paused=waiting if "" in pauses else paused,
        pauses=pauses,
        oldest_at=oldest_of_broker(name, using=alias),
        lanes=lanes.count(),
        relays=relays.alive(now).count(),
        unavailable_since=None if status is None else status.unavailable_since,
        error="" if status is None else status.error,
        confirmed_at=None if status is None else status.confirmed_at,
    )
