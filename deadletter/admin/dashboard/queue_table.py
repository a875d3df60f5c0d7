"""The queues: messages by state, the age of the oldest due message, and rates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, Exists, OuterRef, When
from django.template.defaultfilters import floatformat
from django.utils.translation import gettext

from ...conf import get_settings
from ...lifecycle import Level
from ...lifecycle.levels import oldest_due, priorities, read_levels
from ...models import Message, PoisonRecord, Queue, State
from ...operations.bounded import CountUpTo
from ...operations.depths import FailedLook
from ...operations.series import Rates, rates_since, read_rates
from ...status import Status
from ..counts import IN_A_LIST, Capped, waiting_counts
from .links import Links

#: Queues listed, in the order of their names; a link leads to the others.
SHOWN = 20
#: What a waiting message does, inside the statement.
_SCHEDULED, _ACTIVE, _FAILED = range(3)


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
    #: True for a dead queue: it needs no worker.
    keeps: bool
    cells: list[StateCell]
    #: Since when the oldest pending message has been due.
    due_since: datetime | None
    due_url: str
    rates: list[RateCell]
    #: True if nothing was completed in the time of the rates; False if that is not known.
    is_idle: bool


@dataclass(frozen=True, kw_only=True)
class QueueTable:
    lines: list[QueueRow]
    #: Labels of the states and rates that the user may see.
    states: list[str]
    rates: list[str]
    with_messages: bool
    more: int
    all_url: str


def read_queue_table(links: Links, now: datetime, using: str) -> QueueTable | None:
    """Count each queue up to IN_A_LIST a state, and find since when its oldest message is due."""
    if not (links.queues or links.messages or links.poison or links.counts):
        return None
    levels = read_levels(using) if links.messages else []
    rows = list(_queues(links, levels, now, using)[: SHOWN + 1])
    if links.messages:
        _look_further(rows[:SHOWN], levels, now, using)
    oldest = oldest_due(levels, now=now)
    more = Queue.objects.using(using).count() - SHOWN if len(rows) > SHOWN else 0
    rated = links.messages or links.counts
    rates = read_rates(now=now, using=using) if rated else None
    labels = {state: str(state.label) for state in State if _allowed(links, state)}
    kinds = _rate_labels() if rated else {}
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
    if links.messages:
        messages = Message.objects.using(using).filter(queue=OuterRef("pk"))
        # With these an index probe per priority finds what is due, however much else there is.
        named = sorted({level.priority for level in levels})
        rows = rows.annotate(**_states(messages.filter(priority__in=named or [0]), messages, now))
    if links.poison:
        dead = PoisonRecord.objects.using(using).filter(queue=OuterRef("name"))
        rows = rows.annotate(n_dead=CountUpTo(dead.values("pk"), IN_A_LIST))
    return rows


def _states(awake: Any, messages: Any, now: datetime) -> dict[str, Any]:
    """
    As `counts.count_states` counts them; `awake` names the priorities that exist.

    Those that wait are told apart among the first; `_look_further` does the rest.
    """
    waiting = awake.filter(available_at__gt=now).values(
        doing=Case(
            When(lease_token__isnull=False, then=_ACTIVE),
            When(status__gte=int(Status.FAILED), then=_FAILED),
            default=_SCHEDULED,
        )
    )
    due = awake.filter(available_at__lte=now).values("pk")
    parked = messages.filter(available_at=None).values("pk")
    return {
        "n_pending": CountUpTo(due, IN_A_LIST),
        "n_waiting": CountUpTo(waiting, IN_A_LIST),
        "n_failed": CountUpTo(waiting, IN_A_LIST, doing=_FAILED),
        "n_active": CountUpTo(waiting, IN_A_LIST, doing=_ACTIVE),
        "n_blocked": CountUpTo(parked, IN_A_LIST),
    }


def _look_further(rows: list[Any], levels: list[Level], now: datetime, using: str) -> None:
    """Count by itself what the first that wait do not tell: of queues with many, one by one."""
    named, failed = priorities(levels), FailedLook(now, using)
    for queue in rows:
        if queue.n_waiting > IN_A_LIST:
            messages = Message.objects.using(using).filter(queue=queue, available_at__gt=now)
            waiting = messages.filter(priority__in=named.get(queue.name, [0]))
            queue.waiting = waiting_counts(waiting, queue.pk, failed, IN_A_LIST)


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
        keeps=queue.keeps,
        cells=[
            StateCell(label, _count(queue, state), links.state(queue, state), state.value)
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


def _count(queue: Any, state: State) -> Capped:
    found: Capped | None = getattr(queue, "waiting", {}).get(state)
    if found is not None:
        return found
    if state == State.SCHEDULED:
        return Capped(queue.n_waiting - queue.n_active - queue.n_failed)
    n = getattr(queue, f"n_{state.value}")
    return Capped(min(n, IN_A_LIST), n > IN_A_LIST)


def _allowed(links: Links, state: str) -> bool:
    return links.poison if state == State.DEAD else links.messages
