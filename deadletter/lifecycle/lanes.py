"""
Lanes: which relay publishes which messages of a broker.

A lane is held by one relay at a time, under a lease. Relays share the lanes evenly. A relay that
was stopped for longer than its lease may publish messages that the next holder publishes, too: both
begin with the oldest row that is left, so what arrives for the first time is in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import Min

from .. import sql
from ..models import BrokerStatus, OutboxLane, OutboxMessage, OutboxRelay
from ..text import storable_text
from .outbox import LANES
from .transaction import Transaction

#: Rows of relays that were not seen for so long are deleted.
_RELAYS_KEPT = timedelta(hours=1)


def share_lanes(
    tx: Transaction, broker: str, *, token: str, worker: str, lease: timedelta
) -> list[int]:
    """
    Renew, take or give back lanes, so that the relays which are alive hold as many each.

    Returns the lanes that the relay holds. It has no unconfirmed messages meanwhile.
    """
    now = tx.time()
    relays = _report(tx, broker, token=token, worker=worker, now=now)
    wanted = -(-LANES // relays)
    about = {"broker": broker, "token": token}
    held = sorted(row[0] for row in tx.run("renew_lanes", **about, lease=lease))
    if len(held) > wanted:
        tx.run("give_lanes_back", **about, numbers=held[wanted:])
        return held[:wanted]
    if len(held) < wanted:
        if not held:
            _create_lanes(tx, broker)
        taken = tx.run("take_lanes", **about, worker=worker, lease=lease, wanted=wanted - len(held))
        held += [row[0] for row in taken]
    return sorted(held)


def leave_lanes(tx: Transaction, broker: str, *, token: str) -> None:
    """Give all lanes back: another relay takes them at once."""
    tx.run("give_lanes_back", broker=broker, token=token, numbers=list(range(LANES)))
    OutboxRelay.objects.using(tx.using).filter(broker=broker, token=token).delete()


def report_broker(
    tx: Transaction, broker: str, *, error: str | None, confirmed_at: datetime | None = None
) -> None:
    """Write what a relay sees of its broker: why it accepts nothing, or that it does."""
    rows = BrokerStatus.objects.using(tx.using)
    status, _ = rows.get_or_create(name=broker)
    changes: dict[str, object] = {}
    if error is not None:
        changes["error"] = storable_text(error)
        if status.unavailable_since is None:
            changes["unavailable_since"] = tx.time()
    elif status.unavailable_since is not None:
        changes |= {"unavailable_since": None, "error": ""}
    if confirmed_at is not None:
        changes["confirmed_at"] = confirmed_at
    if changes:
        rows.filter(pk=broker).update(**changes)


def oldest_of_broker(broker: str, *, using: str) -> datetime | None:
    """
    Return when the oldest message of a broker was stored that is neither held nor paused.

    One probe for each lane.
    """
    connection = connections[using]
    params = {"broker": broker, "lanes": list(range(LANES))}
    ((oldest,),) = sql.run(connection, "read_oldest_of_lanes", params)
    return sql.as_datetime(oldest, connection)


def brokers_with_messages(*, using: str) -> Iterator[str]:
    """
    Return the brokers that messages wait for: one look at the index for each.

    A broker that has held messages has its row of BrokerStatus, too.
    """
    rows = OutboxMessage.objects.using(using).filter(held=False)
    name = ""
    while name := rows.filter(broker__gt=name).aggregate(first=Min("broker"))["first"]:
        yield name


def _report(tx: Transaction, broker: str, *, token: str, worker: str, now: datetime) -> int:
    """Write that this relay is alive; return how many are."""
    rows = OutboxRelay.objects.using(tx.using)
    if not rows.filter(broker=broker, token=token).update(seen_at=now):
        rows.filter(broker=broker, seen_at__lt=now - _RELAYS_KEPT).delete()
        rows.create(broker=broker, token=token, worker=worker, seen_at=now)
    return max(rows.alive(now).filter(broker=broker).count(), 1)


def _create_lanes(tx: Transaction, broker: str) -> None:
    rows = OutboxLane.objects.using(tx.using)
    known: Collection[int] = set(rows.filter(broker=broker).values_list("number", flat=True))
    if len(known) < LANES:
        missing = [n for n in range(LANES) if n not in known]
        rows.bulk_create(
            [OutboxLane(broker=broker, number=n) for n in missing], ignore_conflicts=True
        )
