"""Circuit breakers: list them with what they hold; hold a message name, and reset a breaker."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from .. import clock
from ..backoff import HOLD_WAIT
from ..conf import NAME
from ..durations import Duration, as_text, as_timedelta
from ..lifecycle.internal_queue import PREFIX
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import UNTIL_RESET, Act, Breaker, Message, WorkerProcess, primary_alias
from ..sql.planner import by_index
from ..text import short_repr, storable_text
from . import audit

#: The oldest messages, among which those of held names are counted.
COUNTED = 10_000
#: Breakers that a list reads.
LISTED = 500
#: Workers whose handlers are read to know which names exist.
_WORKERS = 200
#: The longest hold for a time; a longer one ends with a reset.
LONGEST = timedelta(days=366)
#: Released messages return up to a fifth later, so that they do not all return at once.
ASIDE = timedelta(seconds=HOLD_WAIT * 1.2)


@dataclass(frozen=True, kw_only=True)
class BreakerReport:
    """An open breaker, or one whose next message is the probe."""

    name: str
    #: "held" by a person, "open" because of failures, or "probe": the next message is tried.
    state: str
    #: A person, or the worker that opened it.
    by: str
    why: str
    since: datetime
    #: None: until it is reset.
    until: datetime | None
    failures: int
    error: str
    #: Messages of the name that are due, or put aside for half a minute.
    waiting: int
    #: True: there may be more, because only the oldest COUNTED messages were looked at.
    waiting_more: bool


def list_breakers(
    *, names: Collection[str] | None = None, limit: int = LISTED, using: str | None = None
) -> list[BreakerReport]:
    """List the breakers (or those of some names), each with what it holds. The cost is bounded."""
    alias = primary_alias(using)
    now = clock.now(alias)
    # A hold for a time that is over: the next worker to look deletes its row.
    found = Breaker.objects.using(alias).exclude(is_held=True, until__lte=now).order_by("name")
    rows = list((found if names is None else found.filter(name__in=names))[:limit])
    waiting, more = count_waiting([row.name for row in rows], now=now, using=alias)
    return [
        BreakerReport(
            name=row.name,
            state=state_of(row, now),
            by=row.opened_by,
            why=row.why,
            since=row.opened_at,
            until=row.held_until,
            failures=row.failures,
            error=row.error,
            waiting=waiting[row.name],
            waiting_more=more,
        )
        for row in rows
    ]


def state_of(row: Breaker, now: datetime) -> str:
    if row.until <= now:
        return "probe"
    return "held" if row.is_held else "open"


def count_waiting(
    names: Collection[str], *, now: datetime, using: str
) -> tuple[Counter[str], bool]:
    """
    Count the messages of these names that would run now, among the oldest messages.

    Returns the counts, and whether there were more messages than were looked at.
    """
    if not names:
        return Counter(), False
    oldest = Message.objects.using(using).order_by("id")
    columns = ("name", "available_at", "lease_token")
    with by_index(using):
        rows = list(oldest.values_list(*columns)[: COUNTED + 1])
    wanted, end = set(names), now + ASIDE
    counts = Counter(
        name
        for name, at, token in rows[:COUNTED]
        if name in wanted and at is not None and (at <= now or (token is None and at <= end))
    )
    return counts, len(rows) > COUNTED


def hold_breaker(
    name: str,
    *,
    duration: Duration | None = None,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> Breaker:
    """
    Hold a message name for a time, or until it is reset; workers obey within seconds.

    Its messages are put aside uncounted; what runs already is finished. A name that is held already
    is held anew. Raises ValueError for a text that is no message name, or an internal one.
    """
    alias = primary_alias(using)
    check_name(name)
    length = _length(duration)

    def work(tx: Transaction) -> Breaker:
        now = tx.time()
        until = UNTIL_RESET if length is None else now + length
        found = {
            "is_held": True,
            "why": storable_text(why),
            "until": until,
            "opened_at": now,
            "opened_by": audit.person(by),
        }
        # A failing breaker keeps its failures and its error: they are why it is held.
        row, _created = Breaker.objects.using(alias).update_or_create(
            name=name, defaults=found, create_defaults={**found, "failures": 0, "error": ""}
        )
        detail = {"until": "reset" if length is None else until.isoformat()}
        if length is not None:
            detail["duration"] = as_text(length)
        _record(tx, Act.HOLD_BREAKER, name, by, why, detail)
        return row

    return in_transaction(work, using=alias)


def reset_breaker(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> Breaker | None:
    """
    Close the breaker of a name, whoever opened it; return what it was, None if there is none.

    Its messages run again: new ones within seconds, those that were put aside within half a minute.
    """
    alias = primary_alias(using)

    def work(tx: Transaction) -> Breaker | None:
        rows = Breaker.objects.using(alias).filter(name=name)
        row = rows.select_for_update().first()
        if row is None:
            return None
        rows.delete()
        detail = {"was": state_of(row, tx.time()), "by": row.opened_by}
        detail["since"] = row.opened_at.isoformat()
        _record(tx, Act.RESET_BREAKER, name, by, why, detail)
        return row

    return in_transaction(work, using=alias)


def known_names(*, using: str | None = None) -> list[str]:
    """Return the message names that live workers have handlers for, as their rows say."""
    alias = primary_alias(using)
    rows = WorkerProcess.objects.using(alias).alive(clock.now(alias)).order_by("name")
    found: set[str] = set()
    for handlers in rows.values_list("handlers", flat=True)[:_WORKERS]:
        for entry in handlers if isinstance(handlers, list) else []:
            if isinstance(entry, list) and len(entry) >= 2 and entry[0] in ("message", "task"):
                found.add(str(entry[1]))
    return sorted(name for name in found if not name.startswith(PREFIX))


def similar_name(name: str, known: Collection[str]) -> str:
    """Return the known name that was probably meant; "" if there is none."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{short_repr(name)} cannot be a message name: letters, digits and _ . : / @ + -"
        )
    if name.startswith(PREFIX):
        raise ValueError(f"{short_repr(name)} is internal to deadletter and cannot be held")


def _length(duration: Duration | None) -> timedelta | None:
    if duration is None:
        return None
    length = as_timedelta(duration, field="duration")
    if not timedelta(0) < length <= LONGEST:
        raise ValueError(
            f"duration: must be more than 0 and at most {as_text(LONGEST)}; "
            "without one the name is held until it is reset"
        )
    return length


def _record(
    tx: Transaction, act: Act, name: str, by: str | None, why: str, detail: dict[str, str]
) -> None:
    new = audit.NewEntry(act=act, by=by, why=why, selection={"name": name}, detail=detail)
    audit.add(tx, audit.record(tx, new), done=1)
