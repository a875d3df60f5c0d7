"""
Messages in dead queues: where and why each died, and the retry under its original id.

`quarantine` stores the facts of a death in the copy that it makes in the dead queue. A row of an
older release has no facts: only its source id is known, and its source queue only if exactly one
queue names the dead queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.dateparse import parse_datetime

from .. import crash_points, signals, sql
from ..models import Message, PoisonRecord, Queue, State, is_moved
from ..status import FailureReason, Status
from . import retry_outcomes, streams
from .instances import on_retry
from .notify import notify_after_commit
from .refusals import Refusal, RefusalReason
from .retries import RetryBatch, count_and_announce
from .transaction import Stream, Transaction
from .values import ActResult

#: The largest values that the columns of a message hold.
_LARGEST_STATUS, _LARGEST = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class OriginalDeath:
    """The first death of a message that was moved to a dead queue. Only its id is always known."""

    #: The id that the message had, and gets back with a retry.
    message_id: int
    #: The queue that the message died in.
    queue: str | None = None
    reason: FailureReason | None = None
    verdict: str = ""
    #: The last failure before the death.
    failure_reason: FailureReason | None = None
    error: str | None = None
    attempts: int | None = None
    max_attempts: int | None = None
    fingerprint: str = ""
    exception: str = ""
    frame: str = ""
    by: str = ""
    at: datetime | None = None
    key: str | None = None
    status: int = 0
    fence: int = 0
    created_at: datetime | None = None
    #: The origin that the message was imported from, and its id there.
    origin: str | None = None
    source_id: int | None = None

    @property
    def cause(self) -> FailureReason | None:
        """The cause of the death: for a message that used up its attempts, its last failure."""
        if self.reason == FailureReason.POISON_MESSAGE and self.failure_reason is not None:
            return self.failure_reason
        return self.reason or self.failure_reason


def read_original_death(row: Message | PoisonRecord) -> OriginalDeath | None:
    """Return the first death of a message that was moved to a dead queue, or None."""
    if row.source_id is None or row.origin is not None:
        return None
    facts = row.death
    if not isinstance(facts, dict):
        reason = row.failure_reason if isinstance(row, Message) else None
        return OriginalDeath(message_id=row.source_id, failure_reason=_reason(reason))
    return OriginalDeath(
        message_id=row.source_id,
        queue=_text(facts, "queue"),
        reason=_reason(facts.get("reason")),
        verdict=_text(facts, "verdict") or "",
        failure_reason=_reason(facts.get("failure_reason")),
        error=_text(facts, "error"),
        attempts=_number(facts, "attempts", _LARGEST),
        max_attempts=_number(facts, "max_attempts", _LARGEST),
        fingerprint=_text(facts, "fingerprint") or "",
        exception=_text(facts, "exception") or "",
        frame=_text(facts, "frame") or "",
        by=_text(facts, "by") or "",
        at=_moment(facts, "at"),
        key=_text(facts, "key"),
        status=_number(facts, "status", _LARGEST_STATUS) or 0,
        fence=_number(facts, "fence", _LARGEST) or 0,
        created_at=_moment(facts, "created_at"),
        origin=_text(facts, "origin"),
        source_id=_number(facts, "source_id", _LARGEST),
    )


def source_queues(using: str) -> dict[int, list[str]]:
    """Return the names of the queues that name each dead queue, by the id of the dead queue."""
    found: dict[int, list[str]] = {}
    rows = Queue.objects.using(using).filter(dead_queue__isnull=False).order_by("name")
    for target, name in rows.values_list("dead_queue_id", "name"):
        found.setdefault(target, []).append(name)
    return found


def retry_dead_in(
    tx: Transaction,
    message_ids: Iterable[int],
    *,
    queue: str | None = None,
    payload: str | None = None,
    delays: Sequence[timedelta] | None = None,
    by: str = "",
) -> ActResult:
    """
    Move messages of dead queues back to the queue they died in, or to `queue`, under their own ids.

    Attempts 0, FAILED cleared, stages and key as they were. The ids given are the ids in the dead
    queues; `payload` and `delays` as for `retry_in`. The records of the result are the messages as
    the poison records that they would have been.
    """
    ids = list(dict.fromkeys(message_ids))
    waits = dict(zip(ids, delays or [timedelta(0)] * len(ids), strict=True))
    targets = _Targets(tx, queue)
    # The queue, stream and death of a message never change: what is read before the lock holds.
    tx.run_for(targets.streams(_read(tx, ids).values()), "lock_named_streams")
    rows = _read(tx, ids, lock=True)
    refused: dict[int, str] = {
        id: why for id, row in rows.items() if (why := targets.refusal(row)) is not None
    }
    free = {id: row for id, row in rows.items() if id not in refused}
    batch = _DeadQueueRetryBatch(tx, free, waits, targets, payload=payload, by=by)
    batch.restore_all()
    done = sorted(batch.done)
    crash_points.reach("retry.restored")
    if done:
        tx.run("delete", ids=done)
        # An earlier retry of the message in the dead queue ends here too.
        retry_outcomes.mark_removed(tx, done)
        streams.wake(tx, targets.streams(free[id] for id in done))
        notify_after_commit(tx.using)
    records = [batch.records[id] for id in done]
    count_and_announce(tx, "poison_retried", signals.poison_retried, records, by)
    refused |= batch.refused
    left = [id for id in free if id not in batch.done and id not in refused]
    refused |= {id: _conflict(tx, batch.records[id]) for id in left}
    missing = [id for id in ids if id not in rows]
    return ActResult(done, missing, dict(sorted(refused.items())), records=records)


class _Targets:
    """The queues that messages of dead queues go back to."""

    def __init__(self, tx: Transaction, queue: str | None) -> None:
        self.queue = queue
        self.now = tx.time()
        self.using = tx.using
        self.ids = dict(Queue.objects.using(tx.using).values_list("name", "pk"))
        self.sources = source_queues(tx.using)

    def queue_of(self, row: Message) -> str | None:
        """Return the name of the queue that a message goes to, or None if it is not known."""
        if self.queue is not None:
            return self.queue
        death = read_original_death(row)
        if death is not None and death.queue is not None:
            return death.queue
        sources = self.sources.get(row.queue_id, [])
        return sources[0] if len(sources) == 1 else None

    def streams(self, rows: Iterable[Message]) -> set[Stream]:
        """Return the streams that a retry touches: in both queues, and those of the instances."""
        found: set[Stream] = set()
        for row in rows:
            if row.stream is not None:
                found.add((row.queue_id, row.stream))
                if (name := self.queue_of(row)) in self.ids:
                    found.add((self.ids[name], row.stream))
            if row.instance is not None:
                found |= on_retry.streams_to_lock(self.using, row.instance)
        return found

    def refusal(self, row: Message) -> Refusal | None:
        """Return why a message cannot be moved back, or None."""
        if refusal := refuse_retry_dead(row, row.state(self.now)):
            return refusal
        name = self.queue_of(row)
        if name is None:
            if n := len(self.sources.get(row.queue_id, [])):
                return Refusal(RefusalReason.SEVERAL_SOURCE_QUEUES, id=row.pk, n=n)
            return Refusal(RefusalReason.NO_SOURCE_QUEUE, id=row.pk)
        if name not in self.ids:
            return Refusal(RefusalReason.QUEUE_MISSING, queue=name)
        if self.ids[name] == row.queue_id:
            return Refusal(RefusalReason.SAME_QUEUE, id=row.pk, queue=name)
        return None


def refuse_retry_dead(message: Message, state: str) -> Refusal | None:
    """
    Return why a message in this state cannot be moved back to the queue it died in, or None.

    The retry itself also refuses a queue that is missing or unknown, and an id or key in use.
    """
    if not is_moved(message):
        return Refusal(RefusalReason.NOT_MOVED, id=message.pk)
    if state == State.ACTIVE:
        return Refusal(RefusalReason.ACTIVE, id=message.pk)
    return None


class _DeadQueueRetryBatch(RetryBatch):
    """One retry of several messages of dead queues."""

    def __init__(
        self,
        tx: Transaction,
        rows: Mapping[int, Message],
        waits: Mapping[int, timedelta],
        targets: _Targets,
        *,
        payload: str | None,
        by: str,
    ) -> None:
        records = {id: as_record(row, targets.queue_of(row) or "") for id, row in rows.items()}
        super().__init__(tx, records, waits, queue=targets.queue, payload=payload, by=by)
        self.rows = rows
        self.targets = targets

    def restore(self, ids: list[int]) -> bool:
        if not ids:
            return False
        rows = self.tx.run(
            "retry_dead",
            ids=ids,
            rows=json.dumps({id: self._row(id) for id in ids}),
            payload=self.payload,
            entry=json.dumps(self.edit),
        )
        return self.note_restored(ids, {row[0] for row in rows})

    def _row(self, id: int) -> dict[str, Any]:
        row = self.rows[id]
        death = read_original_death(row) or OriginalDeath(message_id=id)
        created_at = death.created_at
        at = created_at and self.tx.connection.ops.adapt_datetimefield_value(created_at)
        return {
            "id": id,
            "queue_id": self.targets.ids[self.targets.queue_of(row) or ""],
            "key": death.key,
            "status": (death.status | row.status) & ~int(Status.FAILED),
            "fence": death.fence,
            "delay": sql.microseconds(self.waits[id]),
            "source_id": death.source_id if death.origin is not None else None,
            "origin": death.origin,
            "created_at": None if at is None else str(at),
        }


def as_record(row: Message, queue: str) -> PoisonRecord:
    """Return the unsaved poison record that a message of a dead queue would have become."""
    death = read_original_death(row) or OriginalDeath(message_id=row.pk)
    return PoisonRecord(
        message_id=death.message_id,
        queue=death.queue or queue,
        name=row.name,
        kind=row.kind,
        stream=row.stream,
        key=death.key,
        fingerprint=row.fingerprint or death.fingerprint,
        instance=row.instance,
        execution_id=row.execution_id,
        activity_id=row.activity_id,
    )


def _read(tx: Transaction, ids: list[int], *, lock: bool = False) -> dict[int, Message]:
    rows = Message.objects.using(tx.using).without_bodies(keep_death=True)
    rows = rows.order_by("pk").filter(pk__in=ids)
    if lock:
        rows = rows.select_for_update()
    return {row.pk: row for row in rows}


def _conflict(tx: Transaction, record: PoisonRecord) -> Refusal:
    """Return why the statement did not put a message back: its id or key is in use."""
    id = record.message_id
    poison = PoisonRecord.objects.using(tx.using).filter(message_id=id)
    if (poison_id := poison.values_list("pk", flat=True).first()) is not None:
        return Refusal(RefusalReason.POISON_HAS_ID, poison_id=poison_id, id=id)
    if record.key is None or Message.objects.using(tx.using).filter(pk=id).exists():
        return Refusal(RefusalReason.ID_TAKEN, id=id)
    return Refusal(RefusalReason.KEY_TAKEN, key=record.key)


def _text(facts: Mapping[str, Any], key: str) -> str | None:
    value = facts.get(key)
    return value if isinstance(value, str) else None


def _number(facts: Mapping[str, Any], key: str, most: int) -> int | None:
    value = facts.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= most else None


def _reason(value: Any) -> FailureReason | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return FailureReason.read(value)


def _moment(facts: Mapping[str, Any], key: str) -> datetime | None:
    try:
        found = parse_datetime(_text(facts, key) or "")
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
