"""Groups: poison with the same fingerprint. No function counts the whole table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import Count, F, Q
from django.db.models.functions import Left

from .. import clock, sql
from ..lifecycle.dead_queues import read_original_death
from ..models import Message, PoisonRecord, primary_alias

#: Records of a group are counted up to this limit; more is shown as "10,000+".
COUNTED = 10_000
#: The limit of a cell of the matrix, which has many.
CELL = 1_000
#: Characters of the error of a sample.
SAMPLE = 1_000
WINDOWS: tuple[tuple[str, timedelta | None], ...] = (
    ("1 h", timedelta(hours=1)),
    ("3 h", timedelta(hours=3)),
    ("24 h", timedelta(hours=24)),
    ("3 d", timedelta(days=3)),
    ("7 d", timedelta(days=7)),
    ("all", None),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Poison records, and messages in dead queues, with one fingerprint."""

    fingerprint: str
    name: str
    exception: str
    frame: str
    #: The latest record; 0 if all messages are in dead queues.
    sample_id: int
    sample_error: str
    #: Records and messages in dead queues, at most COUNTED + 1.
    count: int
    #: How many of these are in dead queues, and the id of the last of them, or 0. Public names.
    buried: int
    buried_id: int
    first_seen: datetime
    last_seen: datetime
    #: Streams that the group halts.
    halted: int


@dataclass(frozen=True)
class Row:
    """A line of the matrix: counts per window, each at most CELL + 1."""

    value: str
    counts: tuple[int, ...]


def list_groups(*, limit: int = 50, offset: int = 0, using: str | None = None) -> list[Group]:
    """List groups; the group with the latest death first."""
    alias = primary_alias(using)
    limits = {"limit": limit, "offset": offset, "counted": COUNTED + 1, "halted": CELL + 1}
    rows = sql.run(connections[alias], "read_groups", limits)
    samples = read_samples([(row[5], row[7]) for row in rows], alias)
    found = (_group(row, samples, alias) for row in rows)
    return [group for group in found if group is not None]


def get_group(fingerprint: str, *, using: str | None = None) -> Group | None:
    """Return one group, or None."""
    alias = primary_alias(using)
    rows = PoisonRecord.objects.using(alias).filter(fingerprint=fingerprint).order_by()
    moved = Message.objects.using(alias).filter(fingerprint=fingerprint).order_by()
    times = rows.order_by("poisoned_at").values_list(F("poisoned_at"), "pk")
    moves = moved.order_by("died_at").values_list(F("died_at"), "pk")
    ends = [time for time in (times.first(), moves.first(), times.last(), moves.last()) if time]
    if not ends:
        return None
    record, message = times.last(), moves.last()
    row = (
        fingerprint,
        min(time[0] for time in ends),
        max(time[0] for time in ends),
        rows.values("pk")[: COUNTED + 1].count(),
        rows.halting().values("pk")[: CELL + 1].count(),
        record and record[1],
        moved.values("pk")[: COUNTED + 1].count(),
        message and message[1],
    )
    return _group(row, read_samples([(row[5], row[7])], alias), alias)


def matrix(by: str, *, limit: int = 20, using: str | None = None) -> list[Row]:
    """
    Count poison records per `name` or `exception` and window; one row for each of `limit` values.

    Messages in dead queues are left out: they have no index on these columns.
    """
    statement = {"name": "read_names", "exception": "read_exceptions"}[by]
    alias = primary_alias(using)
    now = clock.now(alias)
    values = [row[0] for row in sql.run(connections[alias], statement, {"limit": limit})]
    lines = [Row(value, _windows(by, value, now, alias)) for value in values]
    return sorted(lines, key=lambda line: line.counts, reverse=True)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The representative of a group: a poison record, or a message in a dead queue."""

    name: str
    exception: str
    frame: str
    fingerprint: str
    error: str
    at: datetime


#: The ids of a record and of a message in a dead queue; at least one is set.
Place = tuple[int | None, int | None]


def read_samples(places: Sequence[Place], alias: str) -> dict[Place, Sample]:
    """Read the samples of groups, with the start of their errors; of two, the later death."""
    rows: Any = PoisonRecord.objects.using(alias).without_bodies().defer("last_error", "verdict")
    starts = {"error": Left("last_error", SAMPLE), "said": Left("verdict", SAMPLE)}
    records = rows.filter(pk__in=[id for id, _ in places if id]).annotate(**starts)
    samples = {
        record.pk: Sample(
            name=record.name,
            exception=record.exception,
            frame=record.frame,
            fingerprint=record.fingerprint,
            error=record.error or record.said,
            at=record.poisoned_at,
        )
        for record in records
    }
    wanted = [id for _, id in places if id]
    moved = read_dead_queue_samples(wanted, alias) if wanted else {}
    found = {}
    for record_id, message_id in places:
        pair = (samples.get(record_id or 0), moved.get(message_id or 0))
        known = [sample for sample in pair if sample is not None]
        if known:
            found[record_id, message_id] = max(known, key=lambda sample: sample.at)
    return found


def read_dead_queue_samples(ids: Sequence[int], alias: str) -> dict[int, Sample]:
    """Read messages of dead queues as samples, by their ids there."""
    rows: Any = Message.objects.using(alias).without_bodies(keep_death=True)
    found = {}
    for message in rows.filter(pk__in=ids).annotate(start=Left("error", SAMPLE)):
        death = read_original_death(message)
        found[message.pk] = Sample(
            name=message.name,
            exception=death.exception if death else "",
            frame=death.frame if death else "",
            fingerprint=message.fingerprint or "",
            error=(death and (death.error or death.verdict)) or message.start or "",
            at=message.died_at or message.created_at,
        )
    return found


def _group(row: sql.Row, samples: Mapping[Place, Sample], alias: str) -> Group | None:
    fingerprint, first, last, count, halted, record_id, moved, message_id = row
    sample = samples.get((record_id, message_id))
    if sample is None:  # retried or removed since the list was read
        return None
    connection = connections[alias]
    return Group(
        fingerprint=fingerprint,
        name=sample.name,
        exception=sample.exception,
        frame=sample.frame,
        sample_id=record_id or 0,
        sample_error=sample.error,
        count=min(count + moved, COUNTED + 1),
        buried=moved,
        buried_id=message_id or 0,
        first_seen=sql.as_datetime(first, connection) or sample.at,
        last_seen=sql.as_datetime(last, connection) or sample.at,
        halted=halted,
    )


def _windows(by: str, value: str, now: datetime, alias: str) -> tuple[int, ...]:
    """Count all windows in one query over the newest CELL + 1 records: more is never shown."""
    rows = PoisonRecord.objects.using(alias).filter(**{by: value}).order_by("-poisoned_at")
    inside = {
        f"window_{n}": Count("died", filter=_since(now, window))
        for n, (_label, window) in enumerate(WINDOWS)
    }
    found = rows.values(died=F("poisoned_at"))[: CELL + 1].aggregate(**inside)
    return tuple(found[f"window_{n}"] for n in range(len(WINDOWS)))


def _since(now: datetime, window: timedelta | None) -> Q | None:
    return None if window is None else Q(died__gte=now - window)
