"""
How does a message of another system get in? Once: a queue has one message of an origin and id.

The identity of an imported message is where it comes from and the id that it had there. It stays
with it when it dies and when it is retried. Once a message is completed or removed it is forgotten.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from ..conf import get_settings
from ..durations import is_readable
from ..error_details import HISTORY_LIMIT, printable, shown
from ..exceptions import MessageRejected
from ..models import Kind, Message, PoisonRecord, Queue
from ..payload import accept
from ..status import FailureReason, Status
from .counters import Subject
from .enqueue import Outgoing, check_label, check_message
from .insert import announce_sent
from .notify import notify_after_commit
from .refusals import Refusal, RefusalReason
from .transaction import Transaction

#: Bytes of JSON that a history may have.
HISTORY_SIZE = 1_048_576
_LARGEST = 2**63 - 1
#: Bits that stages have; FAILED is cleared by an import as by a retry.
_STAGES = 0x7FFF
#: What an attempt in a history says.
_TEXTS = ("at", "worker", "error", "traceback", "exception", "frame")
_NUMBERS = ("attempt", "reason", "seconds")
#: What belongs to an instance, which is not imported with it.
_OF_INSTANCES = ("instance", "execution_id", "activity_id")


@dataclass(frozen=True)
class Arrival:
    """A message of another system that passed the door, as columns."""

    source_id: int
    columns: dict[str, Any]

    @property
    def size(self) -> int:
        return len(self.columns["payload"]) + len(self.columns["history"])


@dataclass
class Arrived:
    """What became of some arrivals, by the ids in their origin."""

    #: The ids they have here.
    stored: dict[int, int] = field(default_factory=dict)
    #: In the queue already, waiting or dead.
    ignored: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def read_arrival(row: Any) -> Arrival:
    """Check a row of an export as `send` checks a message. Raises MessageRejected."""
    if not isinstance(row, Mapping):
        raise MessageRejected("row", f"expected an object, got {shown(row)}")
    _refuse_instances(row)
    if row.get("damaged"):
        raise MessageRejected("payload", "could not be decoded where it comes from")
    stream, key, headers = row.get("stream"), row.get("key"), row.get("headers")
    item = Outgoing(
        row.get("name"),  # type: ignore[arg-type]
        row.get("payload"),
        stream=stream,
        key=key,
        priority=row.get("priority", 0),
        headers=headers,
    )
    checked = check_message(item, get_settings().payload_limit)
    kept = {
        key: checked[key] for key in ("name", "payload", "headers", "stream", "key", "priority")
    }
    error = row.get("last_error")
    return Arrival(
        _source_id(row),
        {
            **kept,
            "status": _status(row.get("status", 1)),
            "failure_reason": _reason(row.get("last_failure_reason")),
            "error": None if error is None else printable(error),
            "history": _history(row.get("history")),
            "poison_count": _number("poison_count", row.get("poison_count", 0), 2**31 - 2),
            "created_at": _moment(row.get("original_created_at")),
        },
    )


def check_origin(origin: object) -> str:
    """Refuse an origin that is no label. Raises MessageRejected."""
    return check_label("origin", origin)


def import_in(tx: Transaction, arrivals: Sequence[Arrival], *, queue: str, origin: str) -> Arrived:
    """
    Store what the queue has neither waiting nor dead of that origin, due now, attempts 0.

    The arrivals have different ids. In the order of these: two imports wait for each other's rows,
    and that is the order in which the messages were sent.
    """
    rows = sorted(arrivals, key=lambda arrival: arrival.source_id)
    ids = [arrival.source_id for arrival in rows]
    given = json.dumps([_as_json(tx, arrival) for arrival in rows], ensure_ascii=False)
    stored = tx.run("import_messages", queue=queue, origin=origin, rows=given)
    found = Arrived({source_id: id for id, source_id in stored})
    # After storing, in a statement of its own. A message that was dying while its row was in our
    # way has its record by now; one that is being retried still has it, or is in our way itself.
    dead = _buried(tx, ids, queue=queue, origin=origin)
    twice = [found.stored.pop(source_id) for source_id in sorted(dead & found.stored.keys())]
    if twice:
        tx.run("delete", ids=twice)
    left = [arrival for arrival in rows if arrival.source_id not in found.stored]
    if left:
        _explain(tx, found, left, dead, queue=queue, origin=origin)
        known = {*found.ignored, *found.refused}
        # What was in the way a moment ago and is finished by now.
        found.ignored += [a.source_id for a in left if a.source_id not in known]
    _tell(tx, rows, found.stored, queue)
    return found


def look_in(tx: Transaction, arrivals: Sequence[Arrival], *, queue: str, origin: str) -> Arrived:
    """Say what `import_in` would do now, and do nothing; nothing gets an id, so all are 0."""
    found = Arrived()
    ids = [arrival.source_id for arrival in arrivals]
    dead = _buried(tx, ids, queue=queue, origin=origin)
    _explain(tx, found, arrivals, dead, queue=queue, origin=origin)
    known = {*found.ignored, *found.refused}
    found.stored = {id: 0 for id in ids if id not in known}
    return found


def _explain(
    tx: Transaction,
    found: Arrived,
    left: Sequence[Arrival],
    dead: set[int],
    *,
    queue: str,
    origin: str,
) -> None:
    """Say of those that were not stored whether they are there, or what is in their way."""
    target = Queue.objects.using(tx.using).filter(name=queue).first()
    if target is None:
        text = Refusal(RefusalReason.IMPORT_QUEUE_MISSING, queue=queue)
        found.refused |= {arrival.source_id: text for arrival in left}
        return
    here = Message.objects.using(tx.using).filter(queue=target)
    ids = [arrival.source_id for arrival in left]
    same = here.filter(origin=origin, source_id__in=ids).values_list("source_id", flat=True)
    there = dead | {id for id in same if id is not None}
    keys = [a.columns["key"] for a in left if a.columns["key"] is not None]
    holders = dict(here.filter(key__in=keys).values_list("key", "pk")) if keys else {}
    for arrival in left:
        key = arrival.columns["key"]
        if arrival.source_id in there:
            found.ignored.append(arrival.source_id)
        elif key in holders:
            found.refused[arrival.source_id] = Refusal(
                RefusalReason.IMPORT_KEY_TAKEN, key=shown(key), id=holders[key]
            )


def _buried(tx: Transaction, ids: Sequence[int], *, queue: str, origin: str) -> set[int]:
    records = PoisonRecord.objects.using(tx.using).filter(queue=queue, origin=origin)
    found = records.filter(source_id__in=ids).values_list("source_id", flat=True)
    # What was moved to a dead queue has its origin in its death, there and if it dies again.
    moved = tx.run("read_imported", queue=queue, origin=origin, ids=list(ids))
    return {id for id in found if id is not None} | {row[0] for row in moved}


def _tell(tx: Transaction, rows: Sequence[Arrival], stored: Mapping[int, int], queue: str) -> None:
    """Count them as sent and announce them: for everybody else they are new messages."""
    new = [
        (stored[arrival.source_id], arrival.columns["name"])
        for arrival in rows
        if arrival.source_id in stored
    ]
    if not new:
        return
    for name, times in Counter(name for _, name in new).items():
        tx.counts.add(Subject(queue, name, Kind.MESSAGE.value), "sent", times=times)
    announce_sent(tx.using, queue, new)
    notify_after_commit(tx.using)


def _as_json(tx: Transaction, arrival: Arrival) -> dict[str, Any]:
    created = arrival.columns["created_at"]
    if created is not None:
        adapted = tx.connection.ops.adapt_datetimefield_value(created) if tx.is_sqlite else None
        created = adapted or created.isoformat()
    return arrival.columns | {
        "source_id": arrival.source_id,
        "history": json.loads(arrival.columns["history"]),
        "created_at": created,
    }


def _refuse_instances(row: Mapping[str, Any]) -> None:
    """A message of an instance means nothing without it, and instances are not exported."""
    kind = row.get("kind", Kind.MESSAGE.value)
    if kind not in Kind.values:
        raise MessageRejected(
            "kind", f"expected one of {', '.join(Kind.values)}, got {shown(kind)}"
        )
    fields = [name for name in _OF_INSTANCES if row.get(name) is not None]
    if kind != Kind.MESSAGE.value or fields:
        raise MessageRejected(
            fields[0] if fields else "kind",
            "it belongs to an instance, which is not imported: start the flow again instead",
        )


def _source_id(row: Mapping[str, Any]) -> int:
    """What an export calls the message's id; other rows may call it what it becomes here."""
    given = row.get("message_id")
    field = "source_id" if given is None else "message_id"
    return _number(field, row.get("source_id") if given is None else given, _LARGEST, least=1)


def _number(field: str, value: object, most: int, *, least: int = 0) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        raise MessageRejected(field, f"expected {least} to {most}, got {shown(value)}")
    return value  # type: ignore[return-value]


def _status(value: object) -> int:
    stages = _number("status", value, 0xFFFF) & _STAGES
    if stages & Status.PUBLISHED:
        raise MessageRejected("status", f"{shown(value)} says that it is finished (PUBLISHED)")
    return stages | Status.STORED


def _reason(value: object) -> int | None:
    if value is None:
        return None
    try:
        return int(
            FailureReason[value] if isinstance(value, str) else FailureReason(int(str(value)))
        )
    except (KeyError, ValueError):
        raise MessageRejected("last_failure_reason", f"there is no reason {shown(value)}") from None


def _history(value: object) -> str:
    """Return the last attempts as JSON text."""
    if value is None:
        return "[]"
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise MessageRejected("history", f"expected a list of objects, got {shown(value)}")
    entries = [dict(entry) for entry in value[-HISTORY_LIMIT:]]
    for place, entry in enumerate(entries):
        _check_entry(f"history[{place}]", entry)
        if "original_payload" in entry and not isinstance(entry["original_payload"], str):
            # Exports show it decoded; it is kept as the text that it was.
            original = accept(entry["original_payload"], field="history", limit=HISTORY_SIZE)
            entry["original_payload"] = original
    return accept(entries, field="history", limit=HISTORY_SIZE)


def _check_entry(field: str, entry: Mapping[str, Any]) -> None:
    """A death takes its cause from the last attempt, and pages show them all."""
    for kind, names, types in (("text", _TEXTS, str), ("a number", _NUMBERS, int | float)):
        for name in names:
            value = entry.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, types)):
                raise MessageRejected(f"{field}.{name}", f"expected {kind}, got {shown(value)}")


def _moment(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        moment = value if isinstance(value, datetime) else parse_datetime(str(value))
        moment = None if moment is None or moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or not is_readable(moment):
        raise MessageRejected(
            "original_created_at",
            f"expected a time such as 2026-01-31T12:00:00+00:00, got {shown(value)}",
        )
    return moment
