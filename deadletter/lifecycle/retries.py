"""Retry and removal of poison records."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from django.dispatch import Signal

from .. import crash_points, signals, sql
from ..conf import get_settings
from ..models import Kind, PoisonRecord, Queue
from ..status import FailureReason
from . import results, streams
from .counters import CounterKey
from .instances import on_retry
from .notify import OUTBOX_CHANNEL, notify_after_commit
from .outbox_batches import broker_of, publish_again
from .refusals import Refusal, RefusalReason
from .transaction import Stream, Transaction
from .values import ActResult

#: The columns that a retry or removal needs; a thousand records are read at a time.
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


def retry_in(
    tx: Transaction,
    poison_ids: Iterable[int],
    *,
    queue: str | None = None,
    payload: str | None = None,
    delays: Sequence[timedelta] | None = None,
    by: str = "",
) -> ActResult:
    """
    Put poisoned messages back under their own ids: attempts 0, FAILED cleared, stages kept.

    `payload` is checked JSON text; the history keeps the original. `delays` are per id, in the
    order given.
    """
    ids = list(dict.fromkeys(poison_ids))
    waits = dict(zip(ids, delays or [timedelta(0)] * len(ids), strict=True))
    records = _lock_poison(tx, ids)
    batch = RetryBatch(tx, records, waits, queue=queue, payload=payload, by=by)
    batch.restore_all()
    done = sorted(batch.done)
    crash_points.reach("retry.restored")
    PoisonRecord.objects.using(tx.using).filter(pk__in=done).delete()
    streams.wake(tx, _streams(tx, (records[id] for id in done)))
    if done:
        notify_after_commit(tx.using)
        if any(records[id].kind == Kind.EVENT for id in done):
            notify_after_commit(tx.using, OUTBOX_CHANNEL)
    retried = [records[id] for id in done]
    count_and_announce(tx, "poison_retried", signals.poison_retried, retried, by)
    known = batch.done | batch.refused.keys()
    left = [records[id] for id in sorted(records) if id not in known]
    refused = batch.refused | _refusals(tx, left, queue)
    missing = [id for id in ids if id not in records]
    return ActResult(done, missing, refused, records=retried)


def remove_in(tx: Transaction, poison_ids: Iterable[int], *, by: str = "") -> ActResult:
    """Delete poison records for good; streams that they halted go on."""
    ids = list(dict.fromkeys(poison_ids))
    records = _lock_poison(tx, ids)
    tasks = [id for id, record in sorted(records.items()) if record.kind == Kind.TASK]
    results.keep_results_of_poison(tx, tasks)
    PoisonRecord.objects.using(tx.using).filter(pk__in=records).delete()
    crash_points.reach("remove.deleted")
    if streams.wake(tx, _streams(tx, records.values())):
        notify_after_commit(tx.using)
    count_and_announce(tx, "poison_removed", signals.poison_removed, records.values(), by)
    missing = [id for id in ids if id not in records]
    return ActResult(sorted(records), missing, records=list(records.values()))


class RetryBatch:
    """One retry of several poison records: the records by id, and what became of each."""

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

    def restore_all(self) -> None:
        """
        Put every message back that can be put back.

        For messages of instances, undo also what their poison did to the instances: one message at
        a time, repeated as long as it helps, because the retry of the message that failed an
        instance makes the retry of its other messages possible.
        """
        records = self.records
        self.publish([id for id in sorted(records) if records[id].kind == Kind.EVENT])
        self.restore(
            [
                id
                for id in sorted(records)
                if records[id].instance is None and records[id].kind != Kind.EVENT
            ]
        )
        waiting = [id for id in sorted(records) if records[id].instance is not None]
        helped = True
        while waiting and helped:
            helped = False
            for id in list(waiting):
                plan = on_retry.plan_retry(self.tx, records[id], queue=self.queue)
                if isinstance(plan, str):
                    self.refused[id] = plan
                    continue
                waiting.remove(id)
                self.refused.pop(id, None)
                if self.restore([id]):
                    on_retry.apply_plan(self.tx, plan, records[id])
                    helped = True

    def publish(self, ids: list[int]) -> None:
        """Put messages of the outbox back into it: there is no other queue for them."""
        for id in ids:
            record = self.records[id]
            if self.queue not in (None, record.queue):
                self.refused[id] = Refusal(RefusalReason.EVENT_QUEUE, topic=record.name)
            elif (missing := refuse_without_broker(record)) is not None:
                self.refused[id] = missing
            elif publish_again(
                self.tx, record, payload=self.payload, entry=self.edit, delay=self.waits[id]
            ):
                self.done.add(id)
            else:
                self.refused[id] = Refusal(RefusalReason.EVENT_THERE, id=record.source_id)

    def restore(self, ids: list[int]) -> bool:
        """Put messages back; return whether any could be put back."""
        rows = self.tx.run(
            "retry",
            ids=ids,
            delays=[sql.microseconds(self.waits[id]) for id in ids],
            queue=self.queue,
            payload=self.payload,
            entry=json.dumps(self.edit),
        )
        return self.note_restored(ids, {row[0] for row in rows})

    def note_restored(self, ids: list[int], restored: set[int]) -> bool:
        """Note which of the ids are done: `restored` are the message ids that were put back."""
        self.done |= {id for id in ids if self.records[id].message_id in restored}
        return bool(restored)


def refuse_without_broker(record: PoisonRecord) -> Refusal | None:
    """Return why a message of the outbox cannot go back if its broker is not in the settings."""
    broker = broker_of(record.queue)
    if broker in get_settings().brokers:
        return None
    return Refusal(RefusalReason.BROKER_MISSING, broker=broker)


def count_and_announce(
    tx: Transaction, name: str, signal: Signal, records: Collection[PoisonRecord], by: str
) -> None:
    """Add the act to the counters, and send its log event and signal after the commit."""
    for record in records:
        subject = CounterKey(record.queue, record.name, record.kind)
        tx.counts.add(subject, name.removeprefix("poison_"))
    signals.announce(
        tx.using,
        name,
        signal,
        sender=PoisonRecord,
        each=lambda: [{"message_id": record.message_id, "by": by} for record in records],
    )


def _lock_poison(tx: Transaction, ids: list[int]) -> dict[int, PoisonRecord]:
    tx.run("lock_streams_of_poison", ids=ids)
    rows = PoisonRecord.objects.using(tx.using).only(*_NEEDED).select_for_update().order_by("pk")
    return {record.pk: record for record in rows.filter(pk__in=ids)}


def _streams(tx: Transaction, records: Iterable[PoisonRecord]) -> set[Stream]:
    named = {(record.queue, record.stream) for record in records if record.stream is not None}
    queues = Queue.objects.using(tx.using).filter(name__in={queue for queue, _ in named})
    ids = dict(queues.values_list("name", "pk"))
    return {(ids[queue], stream) for queue, stream in named if queue in ids}


def _refusals(
    tx: Transaction, records: Sequence[PoisonRecord], queue: str | None
) -> dict[int, str]:
    """Return why each of these records could not be put back."""
    if not records:
        return {}
    existing = set(Queue.objects.using(tx.using).values_list("name", flat=True))
    return {record.pk: _refusal(record, queue or record.queue, existing) for record in records}


def _refusal(record: PoisonRecord, queue: str, existing: set[str]) -> Refusal:
    if queue not in existing:
        return Refusal(RefusalReason.QUEUE_MISSING, queue=queue)
    if record.key is None:
        return Refusal(RefusalReason.ID_TAKEN, id=record.message_id)
    return Refusal(RefusalReason.KEY_TAKEN, key=record.key)
