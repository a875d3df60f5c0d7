"""
Import of messages of another system: a queue has at most one message of an origin and id.

The identity of an imported message is its origin and the id that it had there. The message keeps it
when it dies and when it is retried. With the completion or removal of the message it is gone.
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
from ..error_details import HISTORY_LIMIT
from ..exceptions import MessageRejected
from ..models import Kind, Message, PoisonRecord, Queue
from ..payload import accept
from ..status import FailureReason, Status
from ..text import short_repr, storable_text
from .counters import CounterKey
from .enqueue import Outgoing, check_label, check_message
from .insert import announce_sent
from .notify import notify_after_commit
from .refusals import Refusal, RefusalReason
from .transaction import Transaction

#: Bytes of JSON that a history may have.
HISTORY_SIZE = 1_048_576
_LARGEST = 2**63 - 1
#: The bits of stages. An import clears FAILED, as a retry does.
_STAGES = 0x7FFF
#: The fields of an attempt in a history, by type.
_TEXTS = ("at", "worker", "error", "traceback", "exception", "frame")
_NUMBERS = ("attempt", "reason", "seconds")
#: Fields that only messages of instances have; instances are not imported.
_OF_INSTANCES = ("instance", "execution_id", "activity_id")


@dataclass(frozen=True)
class ImportedMessage:
    """A checked message of another system, as columns."""

    source_id: int
    columns: dict[str, Any]

    @property
    def size(self) -> int:
        return len(self.columns["payload"]) + len(self.columns["history"])

    @property
    def sent_as(self) -> tuple[str, str]:
        """Its name and kind."""
        return self.columns["name"], self.columns["kind"]


@dataclass
class ImportResult:
    """What became of imported messages, by their ids in the origin."""

    #: The ids of stored messages here.
    stored: dict[int, int] = field(default_factory=dict)
    #: Messages that the queue has already, waiting or dead.
    ignored: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def read_exported(row: Any) -> ImportedMessage:
    """Check a row of an export as `send` checks a message. Raises MessageRejected."""
    if not isinstance(row, Mapping):
        raise MessageRejected("row", f"expected an object, got {short_repr(row)}")
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
    kind = row.get("kind", Kind.MESSAGE.value)
    checked = check_message(item, get_settings().payload_limit, kind=kind)
    columns = ("name", "kind", "payload", "headers", "stream", "key", "priority")
    kept = {key: checked[key] for key in columns}
    error = row.get("last_error")
    return ImportedMessage(
        _source_id(row),
        {
            **kept,
            "status": _status(row.get("status", 1)),
            "failure_reason": _reason(row.get("last_failure_reason")),
            "error": None if error is None else storable_text(error),
            "history": _history(row.get("history")),
            "poison_count": _number("poison_count", row.get("poison_count", 0), 2**31 - 2),
            "created_at": _moment(row.get("original_created_at")),
        },
    )


def check_origin(origin: object) -> str:
    """Return the origin. Raises MessageRejected for one that is no label."""
    return check_label("origin", origin)


def import_in(
    tx: Transaction, messages: Sequence[ImportedMessage], *, queue: str, origin: str
) -> ImportResult:
    """
    Store the messages that the queue has neither waiting nor dead: due now, attempts 0.

    The ids of the messages differ. They are stored in the order of their ids: concurrent imports
    lock rows in the same order, and it is the order in which the messages were sent.
    """
    rows = sorted(messages, key=lambda message: message.source_id)
    ids = [message.source_id for message in rows]
    given = json.dumps([_as_json(tx, message) for message in rows], ensure_ascii=False)
    stored = tx.run("import_messages", queue=queue, origin=origin, rows=given)
    found = ImportResult({source_id: id for id, source_id in stored})
    # Read after the insert, in a statement of its own. A message that was dying while the insert
    # waited for its row has its record by now. One that is being retried still has its record, or
    # its row made the insert ignore ours.
    dead = _find_dead(tx, ids, queue=queue, origin=origin)
    twice = [found.stored.pop(source_id) for source_id in sorted(dead & found.stored.keys())]
    if twice:
        tx.run("delete", ids=twice)
    left = [message for message in rows if message.source_id not in found.stored]
    if left:
        _explain(tx, found, left, dead, queue=queue, origin=origin)
        known = {*found.ignored, *found.refused}
        # Rows that made the insert ignore ours, and are finished by now.
        found.ignored += [a.source_id for a in left if a.source_id not in known]
    _count_and_announce(tx, rows, found.stored, queue)
    return found


def preview_import_in(
    tx: Transaction, messages: Sequence[ImportedMessage], *, queue: str, origin: str
) -> ImportResult:
    """Return what `import_in` would do now, without a change; the ids of stored messages are 0."""
    found = ImportResult()
    ids = [message.source_id for message in messages]
    dead = _find_dead(tx, ids, queue=queue, origin=origin)
    _explain(tx, found, messages, dead, queue=queue, origin=origin)
    known = {*found.ignored, *found.refused}
    found.stored = {id: 0 for id in ids if id not in known}
    return found


def _explain(
    tx: Transaction,
    found: ImportResult,
    left: Sequence[ImportedMessage],
    dead: set[int],
    *,
    queue: str,
    origin: str,
) -> None:
    """Sort messages that were not stored: those the queue has, and those whose key is in use."""
    target = Queue.objects.using(tx.using).filter(name=queue).first()
    if target is None:
        text = Refusal(RefusalReason.IMPORT_QUEUE_MISSING, queue=queue)
        found.refused |= {message.source_id: text for message in left}
        return
    here = Message.objects.using(tx.using).filter(queue=target)
    ids = [message.source_id for message in left]
    same = here.filter(origin=origin, source_id__in=ids).values_list("source_id", flat=True)
    there = dead | {id for id in same if id is not None}
    keys = [a.columns["key"] for a in left if a.columns["key"] is not None]
    holders = dict(here.filter(key__in=keys).values_list("key", "pk")) if keys else {}
    for message in left:
        key = message.columns["key"]
        if message.source_id in there:
            found.ignored.append(message.source_id)
        elif key in holders:
            found.refused[message.source_id] = Refusal(
                RefusalReason.IMPORT_KEY_TAKEN, key=short_repr(key), id=holders[key]
            )


def _find_dead(tx: Transaction, ids: Sequence[int], *, queue: str, origin: str) -> set[int]:
    records = PoisonRecord.objects.using(tx.using).filter(queue=queue, origin=origin)
    found = records.filter(source_id__in=ids).values_list("source_id", flat=True)
    # A message that was moved to a dead queue has its origin in its death.
    moved = tx.run("read_imported", queue=queue, origin=origin, ids=list(ids))
    return {id for id in found if id is not None} | {row[0] for row in moved}


def _count_and_announce(
    tx: Transaction, rows: Sequence[ImportedMessage], stored: Mapping[int, int], queue: str
) -> None:
    """Count and announce stored messages as sent: workers and signals see new messages."""
    new = [message for message in rows if message.source_id in stored]
    if not new:
        return
    for (name, kind), times in Counter(message.sent_as for message in new).items():
        tx.counts.add(CounterKey(queue, name, kind), "sent", times=times)
        sent = [(stored[item.source_id], name) for item in new if item.sent_as == (name, kind)]
        announce_sent(tx.using, queue, sent, kind)
    notify_after_commit(tx.using)


def _as_json(tx: Transaction, message: ImportedMessage) -> dict[str, Any]:
    created = message.columns["created_at"]
    if created is not None:
        adapted = tx.connection.ops.adapt_datetimefield_value(created) if tx.is_sqlite else None
        created = adapted or created.isoformat()
    return message.columns | {
        "source_id": message.source_id,
        "history": json.loads(message.columns["history"]),
        "created_at": created,
    }


def _refuse_instances(row: Mapping[str, Any]) -> None:
    """Refuse a message of an instance: instances are neither exported nor imported."""
    kind = row.get("kind", Kind.MESSAGE.value)
    if kind not in Kind.values:
        raise MessageRejected(
            "kind", f"expected one of {', '.join(Kind.values)}, got {short_repr(kind)}"
        )
    if kind == Kind.EVENT:
        raise MessageRejected(
            "kind", "it is of the outbox, which is not imported: publish it again instead"
        )
    fields = [name for name in _OF_INSTANCES if row.get(name) is not None]
    if kind not in (Kind.MESSAGE.value, Kind.TASK.value) or fields:
        raise MessageRejected(
            fields[0] if fields else "kind",
            "it belongs to an instance, which is not imported: start the flow again instead",
        )


def _source_id(row: Mapping[str, Any]) -> int:
    """Return the id in the origin: `message_id` in an export, `source_id` in other rows."""
    given = row.get("message_id")
    field = "source_id" if given is None else "message_id"
    return _number(field, row.get("source_id") if given is None else given, _LARGEST, least=1)


def _number(field: str, value: object, most: int, *, least: int = 0) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        raise MessageRejected(field, f"expected {least} to {most}, got {short_repr(value)}")
    return value  # type: ignore[return-value]


def _status(value: object) -> int:
    stages = _number("status", value, 0xFFFF) & _STAGES
    if stages & Status.PUBLISHED:
        raise MessageRejected("status", f"{short_repr(value)} says that it is finished (PUBLISHED)")
    return stages | Status.STORED


def _reason(value: object) -> int | None:
    if value is None:
        return None
    try:
        return int(
            FailureReason[value] if isinstance(value, str) else FailureReason(int(str(value)))
        )
    except (KeyError, ValueError):
        raise MessageRejected(
            "last_failure_reason", f"there is no reason {short_repr(value)}"
        ) from None


def _history(value: object) -> str:
    """Return the last attempts as JSON text."""
    if value is None:
        return "[]"
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise MessageRejected("history", f"expected a list of objects, got {short_repr(value)}")
    entries = [dict(entry) for entry in value[-HISTORY_LIMIT:]]
    for place, entry in enumerate(entries):
        _check_entry(f"history[{place}]", entry)
        if "original_payload" in entry and not isinstance(entry["original_payload"], str):
            # Exports show it decoded; it is stored as text.
            original = accept(entry["original_payload"], field="history", limit=HISTORY_SIZE)
            entry["original_payload"] = original
    return accept(entries, field="history", limit=HISTORY_SIZE)


def _check_entry(field: str, entry: Mapping[str, Any]) -> None:
    """Check the fields of an attempt: a death takes its cause from the last one, pages show all."""
    for kind, names, types in (("text", _TEXTS, str), ("a number", _NUMBERS, int | float)):
        for name in names:
            value = entry.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, types)):
                raise MessageRejected(
                    f"{field}.{name}", f"expected {kind}, got {short_repr(value)}"
                )


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
            f"expected a time such as 2026-01-31T12:00:00+00:00, got {short_repr(value)}",
        )
    return moment
