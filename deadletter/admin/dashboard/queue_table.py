"""The queues: messages by state, the age of the oldest due message, and rates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.template.defaultfilters import floatformat
from django.utils.translation import gettext

from ...conf import get_settings
from ...lifecycle import Level
from ...lifecycle.levels import oldest_due, read_levels
from ...models import Message, PoisonRecord, Queue, State
from ...operations.depths import annotate_counts, attach_annotated
from ...operations.series import Rates, rates_since, read_rates
from ..counts import IN_A_LIST, Capped
from .links import Links

#: Queues listed, in the order of their names; a link leads to the others.
SHOWN = 20
#: Queues that are looked at.
READ = 1_000


@dataclass(frozen=True)
class StateCell:
    """A number of messages and the URL of their list."""

    label: str
    n: Capped
    url: str
    state: str


@dataclass(frozen=True)
class RateCell:
    """A number per minute and the URL of the counters behind it."""

    label: str
    text: str
    url: str
    what: str


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    name: str
    url: str
    paused: bool
    #: True for a dead queue, which needs no worker.
    is_dead_queue: bool
    cells: list[StateCell]
    #: Since when the oldest pending message has been due.
    due_since: datetime | None
    due_url: str
    rates: list[RateCell]
    #: True if nothing was completed in the time of the rates; False if that is not known.
    is_idle: bool


@dataclass(frozen=True, kw_only=True)
class WaitingQueue:
    """A queue with a due message, whether it is listed or not."""

    name: str
    since: datetime
    url: str


@dataclass(frozen=True, kw_only=True)
class QueueTable:
    #: Queues with something in them, or with traffic.
    lines: list[QueueRow]
    #: Queues that workers should serve, with due messages; those that wait the longest first.
    waiting: list[WaitingQueue]
    #: Queues with nothing in them, and how many of these are paused.
    empty: Capped
    empty_paused: int
    #: Labels of the states and rates that the user may see.
    states: list[str]
    rates: list[str]
    with_messages: bool
    more: int
    all_url: str


def read_queue_table(links: Links, now: datetime, using: str) -> QueueTable | None:
    """
    Count the queues with something in them up to IN_A_LIST a state.

    Where there are more than SHOWN of them, those whose messages have waited the longest are shown.
    """
    if not (links.queues or links.messages or links.poison or links.counts):
        return None
    levels = read_levels(using) if links.messages else []
    oldest = oldest_due(levels, now=now)
    rated = links.messages or links.counts
    rates = read_rates(now=now, using=using) if rated else None
    every = _queues(links, using)
    busy = [queue for queue in every[:READ] if queue.is_used or queue.name in (rates or {})]
    shown = sorted(busy, key=lambda queue: (oldest.get(queue.name, now), queue.name))[:SHOWN]
    rows = _counted([queue.pk for queue in shown], links, levels, now, using)
    labels = {state: str(state.label) for state in State if _allowed(links, state)}
    kinds = _rate_labels() if rated else {}
    idle = [queue for queue in every[:READ] if queue not in busy]
    return QueueTable(
        lines=[
            _line(
                links,
                queue,
                oldest.get(queue.name),
                labels,
                _rates(links, queue, kinds, rates, now),
                is_idle=_is_idle(queue, rates),
            )
            for queue in rows
        ],
        waiting=_waiting(links, busy, oldest),
        empty=Capped(len(idle), len(every) > READ),
        empty_paused=sum(queue.paused for queue in idle),
        states=list(labels.values()),
        rates=list(kinds.values()),
        with_messages=links.messages,
        more=len(busy) - len(rows),
        all_url=links.to(Queue, "queue_changelist"),
    )


def _queues(links: Links, using: str) -> list[Any]:
    """Return the queues, and of each whether something is in it: three index probes a queue."""
    sources = Queue.objects.using(using).filter(dead_queue=OuterRef("pk"))
    messages = Message.objects.using(using).filter(queue=OuterRef("pk"))
    poison = PoisonRecord.objects.using(using).filter(queue=OuterRef("name"))
    used: Any = Value(1)
    if links.messages or links.poison:
        # No index has the queues of all messages. An EXISTS would become a scan of all rows.
        due, parked = messages.exclude(available_at=None), messages.filter(available_at=None)
        seen = [*((due, parked) if links.messages else ()), *((poison,) if links.poison else ())]
        used = Coalesce(*(Subquery(one.order_by().values("pk")[:1]) for one in seen), Value(0))
    rows = Queue.objects.using(using).annotate(is_dead_queue=Exists(sources), is_used=used)
    return list(rows.order_by("name")[: READ + 1])


def _counted(
    ids: list[int], links: Links, levels: list[Level], now: datetime, using: str
) -> list[Any]:
    """Return queues with all their numbers: one statement, whatever their number."""
    sources = Queue.objects.using(using).filter(dead_queue=OuterRef("pk"))
    rows = Queue.objects.using(using).filter(pk__in=ids).order_by("name")
    counted = annotate_counts(
        rows.annotate(is_dead_queue=Exists(sources)),
        levels,
        now=now,
        limit=IN_A_LIST,
        using=using,
        messages=links.messages,
        poison=links.poison,
    )
    found = list(counted)
    attach_annotated(found, levels, now=now, limit=IN_A_LIST, using=using)
    return found


def _waiting(links: Links, queues: list[Any], oldest: dict[str, datetime]) -> list[WaitingQueue]:
    served = [queue for queue in queues if not (queue.paused or queue.is_dead_queue)]
    due = [queue for queue in served if queue.name in oldest]
    due.sort(key=lambda queue: (oldest[queue.name], queue.name))
    return [
        WaitingQueue(
            name=queue.name,
            since=oldest[queue.name],
            url=links.state(queue, State.PENDING),
        )
        for queue in due
    ]


def _line(
    links: Links,
    queue: Any,
    due_since: datetime | None,
    labels: dict[State, str],
    rates: list[RateCell],
    *,
    is_idle: bool,
) -> QueueRow:
    return QueueRow(
        name=queue.name,
        url=links.to(Queue, "queue_change", queue.pk),
        paused=queue.paused,
        is_dead_queue=queue.is_dead_queue,
        cells=[
            StateCell(label, queue.counts[state], links.state(queue, state), state.value)
            for state, label in labels.items()
        ],
        due_since=due_since,
        due_url=links.state(queue, State.PENDING),
        rates=rates,
        is_idle=is_idle,
    )


def _is_idle(queue: Any, rates: dict[str, Rates] | None) -> bool:
    if rates is None or not get_settings().counts:
        return False
    return not rates.get(queue.name, Rates()).completed


def _rate_labels() -> dict[str, str]:
    return {
        "sent": gettext("sent/min"),
        "completed": gettext("completed/min"),
        "failed": gettext("failed/min"),
    }


def _rates(
    links: Links, queue: Any, labels: dict[str, str], rates: dict[str, Rates] | None, now: datetime
) -> list[RateCell]:
    found = (rates or {}).get(queue.name, Rates())
    since = rates_since(now)
    return [
        RateCell(
            label,
            _per_minute(getattr(found, what)),
            links.counters(what=what, queue=queue.name, since=since),
            what,
        )
        for what, label in labels.items()
    ]


def _per_minute(n: float) -> str:
    return str(floatformat(n, "1g")) if n else "0"


def _allowed(links: Links, state: str) -> bool:
    return links.poison if state == State.DEAD else links.messages
