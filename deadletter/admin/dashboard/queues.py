"""What is in each queue, how old is it, how fast does it move?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef
from django.template.defaultfilters import floatformat
from django.utils.translation import gettext

from ...conf import get_settings
from ...lifecycle import Level
from ...lifecycle.levels import oldest_due, read_levels
from ...models import Queue, State
from ...operations.depths import annotate_counts, attach_annotated
from ...operations.series import Rates, rates_since, read_rates
from ..counts import IN_A_LIST, Capped
from .links import Links

#: Queues on the page, in the order of their names; the others are one link away.
SHOWN = 20


@dataclass(frozen=True)
class Cell:
    """A number and the rows behind it."""

    label: str
    n: Capped
    url: str
    state: str


@dataclass(frozen=True)
class Rate:
    """So many a minute, and the counters that say so."""

    label: str
    text: str
    url: str
    what: str


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
    rates: list[Rate]
    #: Whether nothing was completed in the time of the rates; not known counts as no.
    is_idle: bool


@dataclass(frozen=True, kw_only=True)
class Queues:
    lines: list[QueueLine]
    #: Labels of the states and rates that may be seen.
    states: list[str]
    rates: list[str]
    with_messages: bool
    more: int
    all_url: str


def read_queues(links: Links, now: datetime, using: str) -> Queues | None:
    """Count each queue up to IN_A_LIST a state, and find since when its oldest message is due."""
    if not (links.queues or links.messages or links.poison or links.counts):
        return None
    levels = read_levels(using) if links.messages else []
    rows = list(_queues(links, levels, now, using)[: SHOWN + 1])
    attach_annotated(rows[:SHOWN], levels, now=now, limit=IN_A_LIST, using=using)
    oldest = oldest_due(levels, now=now)
    more = Queue.objects.using(using).count() - SHOWN if len(rows) > SHOWN else 0
    rated = links.messages or links.counts
    rates = read_rates(now=now, using=using) if rated else None
    labels = {state: str(state.label) for state in State if _allowed(links, state)}
    kinds = _rate_labels() if rated else {}
    return Queues(
        lines=[
            _line(
                links,
                queue,
                oldest.get(queue.name),
                labels,
                _rates(links, queue, kinds, rates, now),
                is_idle=_is_idle(queue, rates),
            )
            for queue in rows[:SHOWN]
        ],
        states=list(labels.values()),
        rates=list(kinds.values()),
        with_messages=links.messages,
        more=more,
        all_url=links.to(Queue, "queue_changelist"),
    )


def _queues(links: Links, levels: list[Level], now: datetime, using: str) -> Any:
    """All queues with all their numbers: one statement, whatever their number."""
    sources = Queue.objects.using(using).filter(dead_queue=OuterRef("pk"))
    rows = Queue.objects.using(using).order_by("name").annotate(keeps=Exists(sources))
    return annotate_counts(
        rows,
        levels,
        now=now,
        limit=IN_A_LIST,
        using=using,
        messages=links.messages,
        poison=links.poison,
    )


def _line(
    links: Links,
    queue: Any,
    due_since: datetime | None,
    labels: dict[State, str],
    rates: list[Rate],
    *,
    is_idle: bool,
) -> QueueLine:
    return QueueLine(
        name=queue.name,
        url=links.to(Queue, "queue_change", queue.pk),
        paused=queue.paused,
        keeps=queue.keeps,
        cells=[
            Cell(label, queue.counts[state], links.state(queue, state), state.value)
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
) -> list[Rate]:
    found = (rates or {}).get(queue.name, Rates())
    since = rates_since(now)
    return [
        Rate(
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
