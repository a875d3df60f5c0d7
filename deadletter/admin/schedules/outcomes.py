"""What became of the messages that schedules sent: one look at each table for all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.http import HttpRequest
from django.utils.translation import gettext

from ...models import (
    Message,
    PoisonRecord,
    Result,
    ResultOutcome,
    RunOutcome,
    ScheduleRun,
    State,
    primary_alias,
)
from ...operations.dead_queues import moved
from ...text import page_text
from ...times import lasting
from ..urls import link
from .shown import short

#: From when on a run is said to be late.
LATE = timedelta(minutes=1)
_BADGES = {State.DEAD: "halted", State.FAILED: "waiting"}


@dataclass(frozen=True)
class MessageOutcome:
    """Where a message is now, or how it ended."""

    label: str
    #: The class of its badge.
    kind: str
    url: str = ""


@dataclass(frozen=True)
class ShownRun:
    """A run as pages show it."""

    run: ScheduleRun
    label: str
    kind: str
    message: MessageOutcome | None
    #: The moment, or when a person ran it, without the zone.
    at: str
    #: How long after its moment it was sent; "": at once.
    late: str


def show_runs(
    site_name: str, request: HttpRequest, runs: Collection[ScheduleRun], now: datetime
) -> list[ShownRun]:
    """Return runs with what became of their messages."""
    ids = {run.message_id for run in runs if run.message_id is not None}
    found = outcomes_of(site_name, request, ids, now) if ids else {}
    return [
        ShownRun(
            run,
            page_text(run.get_outcome_display(), limit=50),
            {RunOutcome.SENT.value: "due", RunOutcome.FAILED.value: "halted"}.get(
                run.outcome, "waiting"
            ),
            found.get(run.message_id) if run.message_id is not None else None,
            short(run.moment or run.fired_at, now),
            _late(run),
        )
        for run in runs
    ]


def _late(run: ScheduleRun) -> str:
    """Say how long after its moment a message was sent: after an outage, or put off by jitter."""
    if run.moment is None or run.message_id is None or run.fired_at - run.moment < LATE:
        return ""
    return gettext("sent %(time)s later") % {"time": lasting(run.moment, run.fired_at, depth=1)}


def outcomes_of(
    site_name: str, request: HttpRequest, ids: Collection[int], now: datetime
) -> dict[int, MessageOutcome]:
    """Return the outcome of each message; "completed" for one that has left no trace."""
    alias = primary_alias()
    found: dict[int, MessageOutcome] = {}

    def url(model: str, pk: object) -> str:
        seen = request.user.has_perm(f"deadletter.view_{model}")
        return link(site_name, f"{model}_change", pk) if seen else ""

    columns = Message.objects.using(alias).only("status", "available_at", "lease_token")
    for message in columns.filter(pk__in=ids):
        state = State(message.state(now))
        kind = _BADGES.get(state, "due")
        found[message.pk] = MessageOutcome(str(state.label), kind, url("message", message.pk))
    dead = PoisonRecord.objects.using(alias).filter(message_id__in=ids)
    for id, pk in dead.values_list("message_id", "pk"):
        found[id] = MessageOutcome(str(State.DEAD.label), "halted", url("poisonrecord", pk))
    left = [id for id in ids if id not in found]
    for id, pk in moved(left, using=alias).items() if left else ():
        found[id] = MessageOutcome(str(State.DEAD.label), "halted", url("message", pk))
    results = Result.objects.using(alias).filter(pk__in=[id for id in left if id not in found])
    labels = dict(ResultOutcome.choices)
    for id, outcome in results.values_list("pk", "outcome"):
        kind = "due" if outcome == ResultOutcome.SUCCESSFUL else "waiting"
        label = page_text(labels.get(outcome, outcome), limit=50)
        found[id] = MessageOutcome(label, kind, url("result", id))
    for id in ids:
        # It was handled, or removed by a person: its row is deleted in both cases.
        found.setdefault(id, MessageOutcome(gettext("completed"), "due"))
    return found
