"""
The context of one decision: its time, its rules, and the dead letters that it reads.

Reads only, by index probes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from django.db import connections
from django.db.models import OuterRef, Subquery
from django.db.models.functions import Left

from .. import sql
from ..alert_rules import EACH, AlertPolicy, Rule
from ..lifecycle.dead_queues import as_record, read_original_death
from ..lifecycle.internal_queue import PREFIX, QUEUE
from ..models import Message, PoisonRecord, Queue
from ..patterns import is_pattern, queue_selection
from ..text import storable_text
from .main_groups import Standings

#: Counts stop here unless a threshold is higher; more is shown as "10,000+".
COUNTED = 10_000
#: Bytes of an error that are quoted.
SAMPLE = 600
#: Workers, breakers and new groups found by one decision; the next decision finds the rest.
MOST = 500
#: The key in an alert's detail for the id of a message in a dead queue. Stored and sent to
#: webhooks, so the spelling stays.
MOVED_AS = "buried_as"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A condition that holds now."""

    rule: str
    #: A fingerprint, a queue, a worker or a message name; "": all queues.
    subject: str
    since: datetime
    #: When the condition last held: now, or at the last death.
    last_at: datetime
    count: int = 0
    #: Grows when there is something new to report.
    mark: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def key(self) -> str:
        return f"{self.rule}:{self.subject}"


@dataclass(frozen=True, kw_only=True)
class AlertContext:
    """The database, the time and the rules of one decision."""

    using: str
    now: datetime
    policy: AlertPolicy

    @cached_property
    def standings(self) -> Standings:
        return Standings(self.using)

    @cached_property
    def queues(self) -> list[str]:
        """The names of all queues except the internal one."""
        return list(self._is_dead_queue)

    @cached_property
    def _is_dead_queue(self) -> dict[str, bool]:
        """Whether a queue is a dead queue, by name, for all queues except the internal one."""
        rows = Queue.objects.using(self.using).exclude(name=QUEUE).order_by("name")
        return dict(rows.named_and_dead())

    def scopes(self, kind: str) -> Iterator[tuple[Rule, str]]:
        """Yield each rule of a kind with each queue it is for; "" for all queues together."""
        for rule in self.policy.of_kind(kind):
            if not is_pattern(rule.queue):
                yield rule, rule.queue
                continue
            # A rule for the queue by name comes before a pattern and before the rule for each.
            for name in self.queues:
                if self.rule_for(kind, name) is rule:
                    yield rule, name

    def rule_for(self, kind: str, queue: str) -> Rule | None:
        """Return the rule of a kind for a queue: by its name, by a pattern, or for any queue."""
        rules = {rule.queue: rule for rule in self.policy.of_kind(kind)}
        if queue in rules:
            return rules[queue]
        patterns = tuple(name for name in rules if is_pattern(name) and name != EACH)
        is_dead_queue = self._is_dead_queue.get(queue, False) if patterns else False
        place = queue_selection(patterns).place(queue, is_dead_queue=is_dead_queue)
        if place is not None:
            return rules[patterns[place]]
        return rules.get(EACH) or rules.get("")

    def queues_with_rule(self, kind: str) -> set[str] | None:
        """Return the queues that rules of a kind are for; None: all queues."""
        named = {rule.queue for rule in self.policy.of_kind(kind)}
        if named & {"", EACH}:
            return None
        return named | {name for name in self.queues if self.rule_for(kind, name) is not None}

    def poison(self, queue: str = "") -> Any:
        """Return the poison records of a queue, or of all."""
        return alert_poison(self.using, queue)

    @cached_property
    def dead_queues(self) -> list[int]:
        """The queues with messages that died elsewhere: one index probe for each queue."""
        inside = Message.objects.using(self.using).filter(queue_id=OuterRef("pk"))
        first = inside.filter(died_at__isnull=False).order_by("died_at").values("pk")[:1]
        rows = Queue.objects.using(self.using).annotate(first_dead=Subquery(first))
        return list(rows.filter(first_dead__isnull=False).values_list("pk", flat=True))

    def moved(self, queue: str = "", *, after: datetime | None = None) -> MovedDeaths:
        """
        Summarise the messages in dead queues that died in a queue, or in any, after a time.

        Reads the newest messages of each dead queue, as many as are counted.
        """
        since = after or _BEGINNING
        found = self._moved.get(since)
        if found is None:
            found = self._moved[since] = self._read_moved(since)
        if queue:
            return found.get(queue, MovedDeaths())
        return sum(found.values(), MovedDeaths())

    @cached_property
    def _moved(self) -> dict[datetime, dict[str, MovedDeaths]]:
        return {}

    def _read_moved(self, since: datetime) -> dict[str, MovedDeaths]:
        connection = connections[self.using]
        at = connection.ops.adapt_datetimefield_value(since)
        found: dict[str, MovedDeaths] = {}
        for id in self.dead_queues:
            params = {"queue_id": id, "after": at, "limit": COUNTED + 1}
            for name, count, first, last in sql.run(connection, "read_moved", params):
                here = MovedDeaths(count, sql.as_datetime(first, connection), last)
                found[name or ""] = found.get(name or "", MovedDeaths()) + here
        return found

    def moved_as_records(self, *message_ids: int | None) -> dict[int | None, Any]:
        """Return messages of dead queues as unsaved poison records, by their ids there."""
        ids = [id for id in message_ids if id]
        if not ids:
            return {}
        rows = Message.objects.using(self.using).defer("payload", "headers", "history", "error")
        found = rows.annotate(start=Left("error", SAMPLE)).filter(pk__in=ids)
        return {message.pk: _as_record(message) for message in found}


#: Before every death.
_BEGINNING = datetime(1, 1, 3, tzinfo=UTC)


@dataclass(frozen=True)
class MovedDeaths:
    """Messages in dead queues: their number, the time of the first death, the last id."""

    count: int = 0
    first: datetime | None = None
    last_id: int = 0

    def __add__(self, other: MovedDeaths) -> MovedDeaths:
        times = [time for time in (self.first, other.first) if time is not None]
        last = max(self.last_id, other.last_id)
        return MovedDeaths(self.count + other.count, min(times, default=None), last)


def alert_poison(using: str, queue: str = "") -> Any:
    """
    Return the poison records that alerts are about: of a queue, or of all.

    Records of internal messages are left out: no notice is about a notice.
    """
    rows = PoisonRecord.objects.using(using).exclude(queue=QUEUE)
    rows = rows.exclude(name__startswith=PREFIX)
    return rows.filter(queue=queue) if queue else rows


def _as_record(message: Any) -> Any:
    death = read_original_death(message)
    record = as_record(message, "")
    record.exception = death.exception if death else ""
    record.poisoned_at = message.died_at or message.created_at
    # The attributes that `samples` annotates; `moved_as` tells `identify` that it is no record.
    record.started = (death and death.error) or message.start  # type: ignore[attr-defined]
    record.said = death.verdict if death else ""  # type: ignore[attr-defined]
    record.moved_as = message.pk  # type: ignore[attr-defined]
    return record


def later(record: Any, other: Any) -> Any:
    """Return the dead letter that died last; either may be None."""
    known = [item for item in (record, other) if item is not None]
    return max(known, key=lambda item: item.poisoned_at, default=None)


def newest(records: Any) -> Any:
    """Return the latest of these poison records."""
    return samples(records).order_by("-poisoned_at", "-id").first()


def samples(records: Any) -> Any:
    """Return poison records without their payloads and with the start of their errors."""
    rows = records.without_bodies().defer("last_error", "verdict")
    starts = {"started": Left("last_error", SAMPLE), "said": Left("verdict", SAMPLE)}
    return rows.annotate(**starts)


def identify(record: Any) -> dict[str, Any]:
    """Return the detail of an alert that names the dead letter shown as its example."""
    moved_as = getattr(record, "moved_as", None)
    place = {"record": record.pk} if moved_as is None else {MOVED_AS: moved_as}
    return {
        **place,
        "message_id": record.message_id,
        "queue": record.queue,
        "name": record.name,
        "exception": storable_text(record.exception, limit=200),
    }


def sample_error(record: Any) -> str:
    return storable_text(record.started or record.said or "", limit=SAMPLE)
