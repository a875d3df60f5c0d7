"""What is in each queue, how old is it, how fast does it move?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Subquery

from ..models import Message, Queue, State
from ..operations.series import Rates, read_rates
from .counts import IN_A_LIST, PRIORITIES, Capped, count_states
from .dashboard_links import Links

#: Queues on the page, in the order of their names; the others are one link away.
SHOWN = 20


@dataclass(frozen=True)
class Cell:
    """A number and the rows behind it."""

    label: str
    n: Capped
    url: str
    state: str


@dataclass(frozen=True, kw_only=True)
class QueueLine:
    name: str
    url: str
    paused: bool
    #: Whether it only keeps the dead of other queues: nobody need serve it.
    keeps: bool
    cells: list[Cell]
    #: Since when its first message has been due.
    due_since: datetime | None
    due_url: str
    rates: Rates | None
    rows_url: str
    failed_url: str


@dataclass(frozen=True)
class Queues:
    lines: list[QueueLine]
    #: Labels of the states that may be seen.
    states: list[str]
    with_messages: bool
    more: int
    all_url: str


def read_queues(links: Links, now: datetime, using: str) -> Queues | None:
    """Count each queue up to IN_A_LIST a state; the oldest due message of all in one statement."""
    if not (links.queues or links.messages or links.poison):
        return None
    rows = list(_queues(now, using, links.messages)[: SHOWN + 1])
    more = Queue.objects.using(using).count() - SHOWN if len(rows) > SHOWN else 0
    rates = read_rates(now=now, using=using) if links.messages else {}
    lines = [_line(links, queue, rates, now, using) for queue in rows[:SHOWN]]
    return Queues(
        lines,
        [str(state.label) for state in State if _allowed(links, state)],
        links.messages,
        more,
        links.to(Queue, "queue_changelist"),
    )


def _queues(now: datetime, using: str, with_messages: bool) -> Any:
    sources = Queue.objects.using(using).filter(dead_queue=OuterRef("pk"))
    rows = Queue.objects.using(using).order_by("name").annotate(keeps=Exists(sources))
    if not with_messages:
        return rows
    # One index probe a priority: a minimum over all of them would read everything that is due.
    due = Message.objects.using(using).filter(queue=OuterRef("pk"), available_at__lte=now)
    return rows.annotate(
        **{
            f"due_{priority}": Subquery(
                due.filter(priority=priority)
                .order_by("available_at", "id")
                .values("available_at")[:1]
            )
            for priority in PRIORITIES
        }
    )


def _line(links: Links, queue: Any, rates: dict[str, Rates], now: datetime, using: str) -> Any:
    counts = count_states(queue, now=now, limit=IN_A_LIST, using=using)
    due = [at for n in PRIORITIES if (at := getattr(queue, f"due_{n}", None)) is not None]
    return QueueLine(
        name=queue.name,
        url=links.to(Queue, "queue_change", queue.pk),
        paused=queue.paused,
        keeps=queue.keeps,
        cells=[
            Cell(str(State(state).label), n, links.state(queue, state), str(state))
            for state, n in counts.items()
            if _allowed(links, state)
        ],
        due_since=min(due, default=None),
        due_url=links.state(queue, State.PENDING),
        rates=rates.get(queue.name, Rates()) if links.messages else None,
        rows_url=links.to(Message, "message_changelist", queue=queue.pk),
        failed_url=links.state(queue, State.FAILED),
    )


def _allowed(links: Links, state: str) -> bool:
    return links.poison if state == State.DEAD else links.messages
