"""What is known of the brokers of the outbox: what waits for them, and who publishes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import connections
from django.db.models import Min

from .. import clock, sql
from ..conf import get_settings
from ..lifecycle.outbox import LANES
from ..models import BrokerStatus, OutboxLane, OutboxMessage, OutboxRelay, primary_alias
from ..sql.planner import INDEX_ONLY, by_index

#: Messages of a broker that are counted; there may be more.
COUNTED = 10_000


@dataclass(frozen=True, kw_only=True)
class BrokerReport:
    """A broker of the settings, or one that messages are left for."""

    name: str
    #: False: it is not in DEADLETTER["BROKERS"], so nothing is published.
    is_configured: bool
    #: Messages that wait to be published, up to COUNTED and one more.
    waiting: int
    #: Of these, how many were refused, or wait behind one that was.
    held: int
    #: When the oldest message that is neither was stored; None: there is none.
    oldest_at: datetime | None
    #: Lanes that relays hold, and relays that are alive.
    lanes: int
    relays: int
    #: Since when it accepts nothing, and why; None: it does, as far as is known.
    unavailable_since: datetime | None
    error: str
    confirmed_at: datetime | None


def list_brokers(*, using: str | None = None) -> list[BrokerReport]:
    """Report every broker, by name. The cost is bounded, however much waits."""
    alias = primary_alias(using)
    now = clock.now(alias)
    configured = get_settings().brokers
    seen = {row.name: row for row in BrokerStatus.objects.using(alias)}
    with by_index(alias, INDEX_ONLY):
        return [
            _report(name, seen.get(name), is_configured=name in configured, now=now, alias=alias)
            for name in sorted({*configured, *seen, *_named_in_outbox(alias)})
        ]


def _named_in_outbox(alias: str) -> Iterator[str]:
    """
    Return the brokers that messages wait for: one look at the index for each.

    A broker that has held messages has its row of BrokerStatus, too.
    """
    rows = OutboxMessage.objects.using(alias).filter(held=False)
    name = ""
    while name := rows.filter(broker__gt=name).aggregate(first=Min("broker"))["first"]:
        yield name


def _report(
    name: str, status: BrokerStatus | None, *, is_configured: bool, now: datetime, alias: str
) -> BrokerReport:
    rows = OutboxMessage.objects.using(alias).filter(broker=name)
    ready = rows.filter(held=False).order_by()[: COUNTED + 1].count()
    held = rows.filter(held=True).order_by()[: COUNTED + 1].count()
    lanes = OutboxLane.objects.using(alias).filter(broker=name).leased(now)
    relays = OutboxRelay.objects.using(alias).filter(broker=name)
    return BrokerReport(
        name=name,
        is_configured=is_configured,
        waiting=min(ready + held, COUNTED + 1),
        held=held,
        oldest_at=_oldest_at(name, alias),
        lanes=lanes.count(),
        relays=relays.alive(now).count(),
        unavailable_since=None if status is None else status.unavailable_since,
        error="" if status is None else status.error,
        confirmed_at=None if status is None else status.confirmed_at,
    )


def _oldest_at(broker: str, alias: str) -> datetime | None:
    connection = connections[alias]
    params = {"broker": broker, "lanes": list(range(LANES))}
    ((oldest,),) = sql.run(connection, "read_oldest_of_lanes", params)
    return sql.as_datetime(oldest, connection)
