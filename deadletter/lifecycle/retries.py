"""What people decide about messages: retry, remove, hurry, release, poison by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import F
from django.dispatch import Signal

from .. import crash_points, signals, sql
from ..models import Message, PoisonRecord, Queue, State
from ..status import FailureReason, Status
from . import retry_outcomes, streams
from .announce import announce
from .counters import Subject
from .instances import on_retry
from .notify import notify_after_commit
from .quarantine import Death, quarantine
from .transaction import Stream, Transaction


@dataclass(frozen=True)
class Verdicts:
    """What became of each id: done, not there, or refused with the reason."""

    done: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def retry(
    tx: Transaction,
    poison_ids: Iterable[int],
    *,
    queue: str | None = None,
    payload: str | None = None,
    delays: Sequence[timedelta] | None = None,
    by: str = "",
) -> tuple[Verdicts, list[PoisonRecord]]:
    """
    Put poisoned messages back under their own ids: attempts 0, FAILED cleared, stages kept.

    `payload` is JSON text that passed the door; the original stays in the history. `delays` are per
    id, in the order given. Returns also the records as they were.
    """
    ids = list(dict.fromkeys(poison_ids))
    waits = dict(zip(ids, delays or [timedelta(0)] * len(ids), strict=True))
    records = _lock_poison(tx, ids)
    restoring = Restoration(tx, records, waits, queue=queue, payload=payload, by=by)
    restoring.restore([id for id in sorted(records) if records[id].instance is None])
    restoring.restore_owned([id for id in sorted(records) if records[id].instance is not None])
    done = sorted(restoring.done)
    crash_points.reach("retry.restored")
    PoisonRecord.objects.using(tx.using).filter(pk__in=done).delete()
    streams.wake(tx, _streams(tx, (records[id] for id in done)))
    if done:
        notify_after_commit(tx.using)
    tell(tx, "poison_retried", signals.poison_retried, [records[id] for id in done], by)
    known = restoring.done | restoring.refused.keys()
    left = [records[id] for id in sorted(records) if id not in known]
    refused = restoring.refused | _why_not(tx, left, queue)
    verdicts = Verdicts(done, absent(ids, records), refused)
    return verdicts, [records[id] for id in done]


class Restoration:
    """One retry under way: the records by the ids that were given, and what became of each."""

    def __init__(
        self,
        tx: Transaction,
        records: Mapping[int, PoisonRecord],
        waits: Mapping[int, timedelta],
        *,
        queue: str | None,
        payload: str | None,
        by: str,
    ) -> None:
        self.tx = tx
        self.records = records
        self.waits = waits
        self.queue = queue
        self.payload = payload
        self.edit = {
            "reason": int(FailureReason.OPERATOR),
            "error": f"payload edited by {by or '?'}",
        }
        self.done: set[int] = set()
        self.refused: dict[int, str] = {}

    def restore(self, ids: list[int]) -> bool:
        """Put messages back; say whether any could be."""
        rows = self.tx.run(
            "restore",
            ids=ids,
            delays=[sql.microseconds(self.waits[id]) for id in ids],
            queue=self.queue,
            payload=self.payload,
            entry=json.dumps(self.edit),
        )
        back = {row[0] for row in rows}
        self.done |= {id for id in ids if self.records[id].message_id in back}
        return bool(back)

    def restore_owned(self, ids: list[int]) -> None:
        """
        Put back messages of instances, with what their poison did to these undone.

        One at a time, and again as long as it helps: the retry of what failed an instance makes
        that of its other messages possible.
        """
        waiting, helped = list(ids), True
        while waiting and helped:
            helped = False
            for id in list(waiting):
                plan = on_retry.judge(self.tx, self.records[id], queue=self.queue)
                if isinstance(plan, str):
                    self.refused[id] = plan
                    continue
                waiting.remove(id)
                self.refused.pop(id, None)
                if self.restore([id]):
                    on_retry.carry_out(self.tx, plan, self.records[id])
                    helped = True


def remove(
    tx: Transaction, poison_ids: Iterable[int], *, by: str = ""
) -> tuple[Verdicts, list[PoisonRecord]]:
    """Remove poison records for good; a stream one of them halted goes on."""
    ids = list(dict.fromkeys(poison_ids))
    records = _lock_poison(tx, ids)
    PoisonRecord.objects.using(tx.using).filter(pk__in=records).delete()
    crash_points.reach("remove.deleted")
    if streams.wake(tx, _streams(tx, records.values())):
        notify_after_commit(tx.using)
    tell(tx, "poison_removed", signals.poison_removed, records.values(), by)
    return Verdicts(sorted(records), absent(ids, records)), list(records.values())


def hurry(tx: Transaction, message_ids: Iterable[int], *, reset: bool = True) -> Verdicts:
    """
    Retry messages that were tried before, now instead of at the end of their delay.

    With `reset` they count from 0 again, as every retry by a person does unless told otherwise;
    without it the next attempt is the one that would have come later.
    """

    def work(tx: Transaction, message: Message, state: str) -> str:
        if problem := why_not_now(message, state):
            return problem
        changes: dict[str, Any] = {}
        if state != State.PENDING:  # what is due keeps its place in the line
            changes["available_at"] = tx.time()
        if reset:
            changes |= _FRESH
        if changes:
            _rows(tx, message).update(**changes)
        return ""

    return _each_waiting(tx, message_ids, work)


#: Everything that counts failures since the last retry by a person.
_FRESH: dict[str, Any] = {
    "attempts": 0,
    "status": F("status").bitand(~int(Status.FAILED)),
    "reason_counts": None,
    "unregistered_count": None,
    "unregistered_at": None,
}


def why_not_now(message: Message, state: str) -> str:
    """Say why a message cannot be retried now; "": it can."""
    if state == State.ACTIVE:
        return f"message {message.pk} is active; wait for its worker, or for its lease to end"
    if state == State.BLOCKED:
        return (
            f"message {message.pk} is blocked; retry what holds its stream, or release it to let "
            "it pass"
        )
    if not message.was_tried:
        return f"message {message.pk} is {state} and was never tried; there is nothing to retry"
    return ""


def let_pass(tx: Transaction, message_ids: Iterable[int]) -> Verdicts:
    """Release messages by name: each may pass a waiting or poisoned predecessor of its stream."""

    def work(tx: Transaction, message: Message, state: str) -> str:
        if message.stream is None:
            return f"message {message.pk} belongs to no stream, so nothing holds it back"
        if state == "active":
            return f"message {message.pk} is active; only its worker can release it"
        changes: dict[str, Any] = {"released_at": tx.time()}
        if state == "blocked":
            changes["available_at"] = tx.time()
        _rows(tx, message).update(**changes)
        return ""

    return _each_waiting(tx, message_ids, work)


def poison(
    tx: Transaction, message_ids: Iterable[int], *, why: str, by: str = "operator"
) -> Verdicts:
    """Quarantine messages by hand. One that is being handled is refused."""

    def work(tx: Transaction, message: Message, state: str) -> str:
        if state == "active":
            return f"message {message.pk} is active; wait for its lease to end"
        quarantine(tx, [Death(message.pk, FailureReason.OPERATOR, why)], by=by)
        return ""

    return _each_waiting(tx, message_ids, work)


def discard(tx: Transaction, message_ids: Iterable[int]) -> Verdicts:
    """Remove waiting messages for good. One that is being handled is refused."""

    def work(tx: Transaction, message: Message, state: str) -> str:
        if state == "active":
            return f"message {message.pk} is active; wait for its lease to end"
        if message.instance is not None:
            return (
                f"instance {message.instance} waits for message {message.pk}; poison it, so that "
                "its flow is told, or cancel the instance"
            )
        tx.run("delete", ids=[message.pk])
        retry_outcomes.mark_removed(tx, [message.pk])
        return ""

    return _each_waiting(tx, message_ids, work)


def _each_waiting(
    tx: Transaction,
    message_ids: Iterable[int],
    work: Callable[[Transaction, Message, str], str],
) -> Verdicts:
    """Lock streams, then rows; do the work on each, or note why it was refused."""
    ids = list(dict.fromkeys(message_ids))
    streams.lock(tx, ids)
    rows = Message.objects.using(tx.using).without_bodies().select_for_update().order_by("pk")
    found = {message.pk: message for message in rows.filter(pk__in=ids)}
    now = tx.time()
    verdicts = Verdicts(missing=absent(ids, found))
    for id, message in found.items():
        if problem := work(tx, message, message.state(now)):
            verdicts.refused[id] = problem
        else:
            verdicts.done.append(id)
    streams.wake(tx, {(m.queue_id, m.stream) for m in found.values() if m.stream is not None})
    if verdicts.done:
        notify_after_commit(tx.using)
    return verdicts


def _rows(tx: Transaction, message: Message) -> Any:
    return Message.objects.using(tx.using).filter(pk=message.pk)


#: What a decision about poison needs to know; a thousand are read at a time.
_NEEDED = (
    "message_id",
    "queue",
    "name",
    "kind",
    "stream",
    "key",
    "fingerprint",
    "instance",
    "execution_id",
    "activity_id",
    "source_id",
)


def _lock_poison(tx: Transaction, ids: list[int]) -> dict[int, PoisonRecord]:
    tx.run("lock_streams_of_poison", ids=ids)
    rows = PoisonRecord.objects.using(tx.using).only(*_NEEDED).select_for_update().order_by("pk")
    return {record.pk: record for record in rows.filter(pk__in=ids)}


def _streams(tx: Transaction, records: Iterable[PoisonRecord]) -> set[Stream]:
    held = {(record.queue, record.stream) for record in records if record.stream is not None}
    names = {queue for queue, _ in held}
    queues = Queue.objects.using(tx.using).filter(name__in=names)
    ids = dict(queues.values_list("name", "pk"))
    return {(ids[queue], stream) for queue, stream in held if queue in ids}


def _why_not(tx: Transaction, records: Sequence[PoisonRecord], queue: str | None) -> dict[int, str]:
    if not records:
        return {}
    existing = set(Queue.objects.using(tx.using).values_list("name", flat=True))
    return {record.pk: _obstacle(record, queue or record.queue, existing) for record in records}


def _obstacle(record: PoisonRecord, queue: str, existing: set[str]) -> str:
    if queue not in existing:
        return f"queue {queue!r} does not exist; create it or name another"
    if record.key is None:
        return f"a message with the id {record.message_id} or from the same source is in a queue"
    return (
        f"an unfinished message with key {record.key!r} is in the queue; wait for it or "
        "remove it first"
    )


def tell(
    tx: Transaction, name: str, signal: Signal, records: Collection[PoisonRecord], by: str
) -> None:
    """Count the act and announce it."""
    for record in records:
        subject = Subject(record.queue, record.name, record.kind)
        tx.counts.add(subject, name.removeprefix("poison_"))
    announce(
        tx.using,
        name,
        signal,
        sender=PoisonRecord,
        each=lambda: [{"message_id": record.message_id, "by": by} for record in records],
    )


def absent(ids: Iterable[int], found: Any) -> list[int]:
    return [id for id in ids if id not in found]
