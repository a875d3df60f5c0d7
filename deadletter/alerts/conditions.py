"""What does a rule find? Values, read in index probes; nothing is written here."""

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
from ..error_details import printable
from ..lifecycle.dead_queues import as_record, read_original_death
from ..lifecycle.internal_queue import PREFIX, QUEUE
from ..models import Message, PoisonRecord, Queue
from ..patterns import is_pattern, wanted

#: Counts stop here unless a threshold is higher; more is shown as "10,000+".
COUNTED = 10_000
#: Bytes of an error that are quoted.
SAMPLE = 600
#: Workers, breakers and new groups found in one look; the rest is found in the next.
MOST = 500


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A condition that holds now."""

    rule: str
    #: What it is about: a fingerprint, a queue, a worker or a message name; "": all queues.
    subject: str
    since: datetime
    #: When it was last true: now, or the last death.
    last_at: datetime
    count: int = 0
    #: Grows when there is something new to tell.
    mark: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def key(self) -> str:
        return f"{self.rule}:{self.subject}"


@dataclass(frozen=True, kw_only=True)
class Look:
    """Where and when is looked, and by which rules."""

    using: str
    now: datetime
    policy: AlertPolicy

    @cached_property
    def queues(self) -> list[str]:
        """The names of all queues but our own."""
        return list(self._dead_queues)

    @cached_property
    def _dead_queues(self) -> dict[str, bool]:
        """Whether a queue is a dead queue, by name, of all queues but our own."""
        rows = Queue.objects.using(self.using).exclude(name=QUEUE).order_by("name")
        return dict(rows.named_and_dead())

    def scopes(self, kind: str) -> Iterator[tuple[Rule, str]]:
        """Return each rule of a kind with a queue it is about; "" for all queues together."""
        for rule in self.policy.of_kind(kind):
            if not is_pattern(rule.queue):
                yield rule, rule.queue
                continue
            # A queue with a rule of its own is not judged by a pattern, nor by the one for each.
            for name in self.queues:
                if self.wants(kind, name) is rule:
                    yield rule, name

    def wants(self, kind: str, queue: str) -> Rule | None:
        """Return the rule of this kind for one queue: its own, a pattern's, or the one for any."""
        rules = {rule.queue: rule for rule in self.policy.of_kind(kind)}
        if queue in rules:
            return rules[queue]
        patterns = tuple(name for name in rules if is_pattern(name) and name != EACH)
        is_dead_queue = self._dead_queues.get(queue, False) if patterns else False
        place = wanted(patterns).place(queue, is_dead_queue=is_dead_queue)
        if place is not None:
            return rules[patterns[place]]
        return rules.get(EACH) or rules.get("")

    def wanted_queues(self, kind: str) -> set[str] | None:
        """Return the queues that rules of a kind are about; None: all of them."""
        named = {rule.queue for rule in self.policy.of_kind(kind)}
        if named & {"", EACH}:
            return None
        return named | {name for name in self.queues if self.wants(kind, name) is not None}

    def poison(self, queue: str = "") -> Any:
        """Dead letters of a queue, or of all; never our own: no notice is about a notice."""
        return dead_letters(self.using, queue)

    @cached_property
    def dead_queues(self) -> list[int]:
        """The queues in which something lies that died elsewhere: one index probe a queue."""
        inside = Message.objects.using(self.using).filter(queue_id=OuterRef("pk"))
        first = inside.filter(died_at__isnull=False).order_by("died_at").values("pk")[:1]
        rows = Queue.objects.using(self.using).annotate(first_dead=Subquery(first))
        return list(rows.filter(first_dead__isnull=False).values_list("pk", flat=True))

    def buried(self, queue: str = "", *, after: datetime | None = None) -> Buried:
        """
        Say what lies in dead queues of those that died in a queue, or in all, after a time.

        Of each dead queue the newest are looked at, as many as are counted.
        """
        since = after or _BEGINNING
        found = self._buried.get(since)
        if found is None:
            found = self._buried[since] = self._read_buried(since)
        if queue:
            return found.get(queue, Buried())
        return sum(found.values(), Buried())

    @cached_property
    def _buried(self) -> dict[datetime, dict[str, Buried]]:
        return {}

    def _read_buried(self, since: datetime) -> dict[str, Buried]:
        connection = connections[self.using]
        at = connection.ops.adapt_datetimefield_value(since)
        found: dict[str, Buried] = {}
        for id in self.dead_queues:
            params = {"queue_id": id, "after": at, "limit": COUNTED + 1}
            for name, count, first, last in sql.run(connection, "read_buried", params):
                here = Buried(count, sql.as_datetime(first, connection), last)
                found[name or ""] = found.get(name or "", Buried()) + here
        return found

    def dead(self, *message_ids: int | None) -> dict[int | None, Any]:
        """Return messages of dead queues as the records that they would be, by their ids there."""
        ids = [id for id in message_ids if id]
        if not ids:
            return {}
        rows = Message.objects.using(self.using).defer("payload", "headers", "history", "error")
        found = rows.annotate(start=Left("error", SAMPLE)).filter(pk__in=ids)
        return {message.pk: _as_record(message) for message in found}


#: Before every death.
_BEGINNING = datetime(1, 1, 3, tzinfo=UTC)


def dead_letters(using: str, queue: str = "") -> Any:
    """Return the dead letters that alerts are about: of a queue, or of all but our own."""
    rows = PoisonRecord.objects.using(using).exclude(queue=QUEUE)
    rows = rows.exclude(name__startswith=PREFIX)
    return rows.filter(queue=queue) if queue else rows


@dataclass(frozen=True)
class Buried:
    """How many lie in dead queues, when the first of them died, and the last of them."""

    count: int = 0
    first: datetime | None = None
    last_id: int = 0

    def __add__(self, other: Buried) -> Buried:
        times = [time for time in (self.first, other.first) if time is not None]
        last = max(self.last_id, other.last_id)
        return Buried(self.count + other.count, min(times, default=None), last)


def _as_record(message: Any) -> Any:
    burial = read_original_death(message)
    record = as_record(message, "")
    record.exception = burial.exception if burial else ""
    record.poisoned_at = message.died_at or message.created_at
    # As `samples` reads them; `about` says that it is no record.
    record.started = (burial and burial.error) or message.start  # type: ignore[attr-defined]
    record.said = burial.verdict if burial else ""  # type: ignore[attr-defined]
    record.buried_as = message.pk  # type: ignore[attr-defined]
    return record


def later(record: Any, other: Any) -> Any:
    """Return which of two dead letters died last; either may be None."""
    known = [item for item in (record, other) if item is not None]
    return max(known, key=lambda item: item.poisoned_at, default=None)


def newest(records: Any) -> Any:
    """Return the latest of these dead letters."""
    return samples(records).order_by("-poisoned_at", "-id").first()


def samples(records: Any) -> Any:
    """Return dead letters without their payloads and with little of their errors."""
    rows = records.light().defer("last_error", "verdict")
    starts = {"started": Left("last_error", SAMPLE), "said": Left("verdict", SAMPLE)}
    return rows.annotate(**starts)


def about(record: Any) -> dict[str, Any]:
    """Say which message stands for the rest."""
    buried_as = getattr(record, "buried_as", None)
    place = {"record": record.pk} if buried_as is None else {"buried_as": buried_as}
    return {
        **place,
        "message_id": record.message_id,
        "queue": record.queue,
        "name": record.name,
        "exception": printable(record.exception, limit=200),
    }


def sample(record: Any) -> str:
    return printable(record.started or record.said or "", limit=SAMPLE)
