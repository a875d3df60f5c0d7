"""Batches of the outbox: the next messages of lanes, and what the broker made of them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .. import crash_points, signals, sql
from ..application_release import current_release
from ..durations import LATEST
from ..error_details import HISTORY_LIMIT
from ..fingerprints import cause_of, fingerprint
from ..logs import event
from ..models import Kind, OnPoison, OutboxMessage, PoisonRecord
from ..outbox.brokers import Broker
from ..outbox.transports.base import BrokerRefusal
from ..status import FailureReason, Status
from ..text import storable_text
from .archives import is_archived
from .counters import CounterKey
from .group_changes import GroupCause, GroupKey
from .outbox import lane_of
from .pauses import LaneKey, hold_paused
from .quarantine import Poisoning
from .transaction import Transaction

_EVENT = Kind.EVENT.value


class OutboxRow(NamedTuple):
    """A message as a relay reads it."""

    id: int
    lane: int
    topic: str
    key: str | None
    #: None: the row is damaged, as `publish` stores JSON text.
    payload: str | None
    headers: str | None
    created_at: datetime
    attempts: int
    history: Any
    message_id: int | None
    poison_count: int
    #: It was put off, and its time has come.
    is_due_again: bool

    @property
    def lane_key(self) -> LaneKey | None:
        return None if self.key is None else (self.lane, self.key)


@dataclass
class BatchOutcome:
    """What became of the messages of one batch; the others are published again."""

    published: list[OutboxRow] = field(default_factory=list)
    refused: list[tuple[OutboxRow, BrokerRefusal]] = field(default_factory=list)
    #: Read, but not published: a message of the same key before it was refused, or is paused.
    held: list[OutboxRow] = field(default_factory=list)
    #: Read, but not published: their topic is paused.
    paused: list[OutboxRow] = field(default_factory=list)


@dataclass(frozen=True)
class SettledBatch:
    """The keys that wait for a refused message from now on, and those that no longer do."""

    waiting: Collection[LaneKey] = ()
    free: Collection[LaneKey] = ()
    dead: int = 0


def outbox_name(broker: str) -> str:
    """Return what counters and poison records of a broker have in the place of a queue."""
    return f"outbox:{broker}"


def broker_of(queue: str) -> str:
    return queue.removeprefix("outbox:")


def read_batch(
    tx: Transaction, broker: str, lanes: Sequence[int], *, share: int
) -> list[OutboxRow]:
    """Return the next messages of lanes in the order of ids, at most `share` of each lane."""
    return _read(tx, "read_lanes", broker, lanes, share)


def read_refused(
    tx: Transaction, broker: str, lanes: Sequence[int], *, share: int
) -> list[OutboxRow]:
    """Return refused messages that are to be tried again now, at most `share` of each lane."""
    return _read(tx, "read_refused", broker, lanes, share)


def read_waiting_keys(tx: Transaction, broker: str, lanes: Sequence[int]) -> set[LaneKey]:
    """Return the keys of lanes whose messages wait for a refused one."""
    rows = OutboxMessage.objects.using(tx.using).filter(broker=broker, lane__in=lanes)
    # Without an attempt it was not refused: it is a retry with a delay, and holds nobody.
    # Paused ones have an index of their own: see read_paused_keys.
    refused = rows.filter(retry_at__isnull=False, paused=False, key__isnull=False, attempts__gt=0)
    return {(lane, key) for lane, key in refused.values_list("lane", "key") if key is not None}


def settle_batch(
    tx: Transaction, broker: Broker, outcome: BatchOutcome, *, lanes: Collection[int], by: str
) -> SettledBatch:
    """
    Delete what was published, and put off or quarantine what was refused.

    In one transaction. Messages behind a refused one of their key wait until it has left. A confirm
    is true whoever holds the lane; a refusal is noted only in `lanes`, which the relay holds and
    has locked: the next holder of a lane may have published the message.
    """
    _delete_published(tx, broker, outcome.published)
    left = [row for row in outcome.published if row.is_due_again]
    dying: list[_RefusedEvent] = []
    put_off: list[_RefusedEvent] = []
    waiting: set[LaneKey] = set()
    known = _lock_refused(tx, outcome)
    for row, refusal in outcome.refused:
        if row.lane not in lanes:
            continue
        attempts, poison_count = known.get(row.id, (-1, -1))
        if (attempts, poison_count) != (row.attempts, row.poison_count):
            # It was settled before, and the answer of the commit was lost; or it is published, or
            # it has died and is in the outbox again.
            if poison_count != row.poison_count:
                left.append(row)
            elif row.lane_key is not None:
                waiting.add(row.lane_key)
            continue
        item = _RefusedEvent(row, refusal, row.attempts + 1)
        key = CounterKey(outbox_name(broker.name), row.topic, _EVENT, int(refusal.reason))
        tx.counts.add(key, "failed")
        tx.groups.add_failure(_group_key(broker, item), item.described)
        limit = broker.max_attempts
        if refusal.is_permanent or (limit is not None and item.attempts >= limit):
            dying.append(item)
            if row.is_due_again:
                left.append(row)
        else:
            put_off.append(item)
            if row.lane_key is not None:
                waiting.add(row.lane_key)
    if put_off:
        _put_off(tx, broker, put_off, by=by)
    # Before those behind them, which are held only if there is something to wait for.
    paused = [row.id for row in outcome.paused if row.lane in lanes]
    if paused:
        hold_paused(tx, paused)
    held = [row.id for row in outcome.held if row.lane in lanes]
    if held:
        tx.run("hold", ids=held)
    if dying:
        _quarantine(tx, broker, dying, by=by)
    free = _free(tx, broker, {row.lane_key for row in left if row.lane_key is not None})
    crash_points.reach("outbox.settled")
    return SettledBatch(waiting=waiting, free=free, dead=len(dying))


def free_stranded_keys(tx: Transaction) -> int:
    """Let messages go on that wait behind no refused message; return how many there were."""
    return len(tx.run("free_stranded_keys"))


def publish_again(
    tx: Transaction,
    record: PoisonRecord,
    *,
    payload: str | None,
    entry: Mapping[str, Any],
    delay: timedelta,
) -> bool:
    """
    Store the message of a poison record in the outbox again, under the id that it had.

    With a `payload`, `entry` is added to its history, with the original payload.
    Returns False if the outbox has that id.
    """
    rows = tx.run(
        "publish_again",
        id=record.pk,
        broker=broker_of(record.queue),
        lane=lane_of(record.stream),
        payload=payload,
        entry=json.dumps(entry),
        delay=sql.microseconds(delay),
    )
    return bool(rows)


def _read(
    tx: Transaction, statement: str, broker: str, lanes: Sequence[int], share: int
) -> list[OutboxRow]:
    if not tx.is_sqlite:
        rows = tx.run(statement, broker=broker, lanes=list(lanes), share=share)
        return [OutboxRow(*row) for row in rows]
    found = (
        OutboxRow(*row)
        for lane in lanes
        for row in tx.run(statement, broker=broker, lane=lane, share=share)
    )
    return [
        row._replace(created_at=sql.as_datetime(row.created_at, tx.connection) or LATEST)
        for row in sorted(found, key=lambda row: row.id)
    ]


def _lock_refused(tx: Transaction, outcome: BatchOutcome) -> dict[int, tuple[int, int]]:
    """
    Lock the refused messages that are still there, and return their attempts and poison counts.

    Locked, because another relay may have a confirm of one: it would be published, and be poison.
    """
    ids = [row.id for row, _refusal in outcome.refused]
    if not ids:
        return {}
    rows = OutboxMessage.objects.using(tx.using).filter(pk__in=ids).order_by("pk")
    found = rows.select_for_update().values_list("pk", "attempts", "poison_count")
    return {id: (attempts, poison_count) for id, attempts, poison_count in found}


def _free(tx: Transaction, broker: Broker, keys: Collection[LaneKey]) -> set[LaneKey]:
    """Let the messages of keys go on, unless another message of the key was refused, too."""
    refused = OutboxMessage.objects.using(tx.using).filter(
        broker=broker.name, held=True, attempts__gt=0
    )
    free = {
        (lane, text)
        for lane, text in sorted(keys)
        if not refused.filter(lane=lane, key=text).exists()
    }
    for lane, text in sorted(free):
        tx.run("free_key", broker=broker.name, lane=lane, key=text)
    return free


def _delete_published(tx: Transaction, broker: Broker, rows: Sequence[OutboxRow]) -> None:
    if not rows:
        return
    statement = "archive_published" if is_archived(broker) else "delete_published"
    deleted = _delete(tx, rows, statement=statement)
    crash_points.reach("outbox.deleted")
    for topic, times in Counter(topic for _id, topic in deleted).items():
        key = CounterKey(outbox_name(broker.name), topic, _EVENT)
        tx.counts.add(key, "completed", times=times)


def _delete(
    tx: Transaction, rows: Sequence[OutboxRow], *, statement: str = "delete_published"
) -> list[sql.Row]:
    """Delete rows as they were read: one that has died and was retried meanwhile is another."""
    by_count: dict[int, list[int]] = {}
    for row in rows:
        by_count.setdefault(row.poison_count, []).append(row.id)
    deleted: list[sql.Row] = []
    for poison_count, ids in by_count.items():
        deleted += tx.run(statement, ids=ids, poison_count=poison_count)
    return deleted


def _put_off(tx: Transaction, broker: Broker, refused: Sequence[_RefusedEvent], *, by: str) -> None:
    """Write when refused messages are tried again: those of one key together, in their order."""
    rows = OutboxMessage.objects.using(tx.using)
    now = tx.time()
    times = [now + broker.backoff.delay(item.attempts) for item in refused]
    of_keys: dict[LaneKey, datetime] = {}
    for item, time in zip(refused, times, strict=True):
        if (key := item.row.lane_key) is not None:
            of_keys[key] = max(time, of_keys.get(key, time))
    for item, time in zip(refused, times, strict=True):
        key = item.row.lane_key
        retry_at = time if key is None else of_keys[key]
        rows.filter(pk=item.row.id).update(
            attempts=item.attempts,
            held=True,
            retry_at=retry_at,
            history=_history(now, item, by=by),
        )
        _log_refusal(broker, item, delay=retry_at - now)
    for (lane, text), retry_at in sorted(of_keys.items()):
        # Also those of the key that were not in this batch: they would pass these.
        tx.run("put_off_key", broker=broker.name, lane=lane, key=text, retry_at=retry_at)


def _log_refusal(broker: Broker, item: _RefusedEvent, *, delay: timedelta) -> None:
    event(
        logging.WARNING,
        "publish_refused",
        "broker {broker} refused {topic} {event_id} (attempt {attempts}), again in {delay:.1f} s: "
        "{error}",
        broker=broker.name,
        topic=item.row.topic,
        event_id=item.row.id,
        attempts=item.attempts,
        delay=delay.total_seconds(),
        reason=item.refusal.reason.name,
        error=item.refusal.text,
    )


class _RefusedEvent(NamedTuple):
    row: OutboxRow
    refusal: BrokerRefusal
    attempts: int

    @property
    def cause(self) -> str:
        return cause_of(self.refusal.reason, None)

    @property
    def group(self) -> str:
        return fingerprint(self.row.topic, self.cause)

    @property
    def described(self) -> GroupCause:
        error = storable_text(self.refusal.text)
        return GroupCause(self.row.topic, self.cause, "", self.refusal.reason, error)


def _group_key(broker: Broker, item: _RefusedEvent) -> GroupKey:
    return GroupKey(item.group, outbox_name(broker.name), current_release())


def _quarantine(
    tx: Transaction, broker: Broker, dying: Sequence[_RefusedEvent], *, by: str
) -> None:
    """Move refused messages from the outbox to poison records."""
    new = [item for item in dying if item.row.message_id is None]
    drawn = iter(tx.run("reserve_ids", count=len(new))) if new else iter(())
    dead = [_DeadEvent(item, item.row.message_id or next(drawn)[0]) for item in dying]
    now = tx.time()
    tx.run(
        "quarantine_outbox",
        queue=outbox_name(broker.name),
        status=int(Status.STORED | Status.FAILED),
        reason=int(FailureReason.POISON_MESSAGE),
        max_attempts=broker.max_attempts,
        by=by,
        ids=[item.row.id for item in dying],
        rows=json.dumps({item.dying.row.id: _columns(now, broker, item, by=by) for item in dead}),
    )
    crash_points.reach("outbox.quarantined")
    _delete(tx, [item.row for item in dying])
    for item in dying:
        key = CounterKey(outbox_name(broker.name), item.row.topic, _EVENT)
        tx.counts.add(key, "poisoned")
        tx.groups.add_death(_group_key(broker, item), item.described)
    # For the audit trail of messages that were retried before.
    groups = [{"id": item.message_id, "fingerprint": item.dying.group} for item in dead]
    tx.run("mark_deaths", ids=sorted(item.message_id for item in dead), rows=json.dumps(groups))
    poisonings = [_poisoning(broker, item) for item in dead]
    tx.after_commit(lambda: _log(poisonings))
    signals.announce(
        tx.using,
        "message_poisoned",
        signals.message_poisoned,
        sender=Poisoning,
        each=lambda: [{"poison": poisoning} for poisoning in poisonings],
    )


class _DeadEvent(NamedTuple):
    dying: _RefusedEvent
    message_id: int


def _columns(now: datetime, broker: Broker, item: _DeadEvent, *, by: str) -> dict[str, Any]:
    """Return the columns of a poison record that are not those of the outbox."""
    _row, refusal, attempts = item.dying
    return {
        "message_id": item.message_id,
        "attempts": attempts,
        "verdict": "the broker will never accept it"
        if refusal.is_permanent
        else f"gave up after {attempts} of {broker.max_attempts} attempts",
        "failure_reason": int(refusal.reason),
        "error": storable_text(refusal.text),
        "history": _history(now, item.dying, by=by),
        "fingerprint": item.dying.group,
        "cause": item.dying.cause,
        "release": current_release(),
    }


def _history(now: datetime, item: _RefusedEvent, *, by: str) -> list[Mapping[str, Any]]:
    entry = {
        "at": sql.iso(now),
        "worker": by,
        "attempt": item.attempts,
        "reason": int(item.refusal.reason),
        "error": storable_text(item.refusal.text),
    }
    if release := current_release():
        entry["release"] = release
    return [*_known_history(item.row)[-HISTORY_LIMIT + 1 :], entry]


def _known_history(row: OutboxRow) -> list[Mapping[str, Any]]:
    """Return the attempts that can be read: a damaged history must not stop the relay."""
    known = row.history
    if isinstance(known, str):
        try:
            known = json.loads(known)
        except ValueError:
            known = None
    if not isinstance(known, list):
        return []
    return [entry for entry in known if isinstance(entry, Mapping)]


def _poisoning(broker: Broker, item: _DeadEvent) -> Poisoning:
    row, refusal, attempts = item.dying
    return Poisoning(
        message_id=item.message_id,
        queue=outbox_name(broker.name),
        name=row.topic,
        stream=row.key,
        attempts=attempts,
        reason=FailureReason.POISON_MESSAGE,
        last_failure_reason=refusal.reason,
        last_error=refusal.text,
        fingerprint=item.dying.group,
        destination=OnPoison.QUARANTINE.value,
        kind=_EVENT,
    )


def _log(poisonings: Sequence[Poisoning]) -> None:
    for item in poisonings:
        last = item.last_failure_reason
        event(
            logging.ERROR,
            "message_poisoned",
            "{what} event {name} {message_id} of {queue} after {attempts} attempts "
            "({reason}, last failure {last_failure_reason}): {error}",
            what="poisoned",
            name=item.name,
            message_id=item.message_id,
            queue=item.queue,
            stream=item.stream,
            attempts=item.attempts,
            reason=item.reason.name,
            last_failure_reason=last.name if last else "none",
            error=item.last_error or "no error",
            fingerprint=item.fingerprint,
            destination=item.destination,
        )
