"""
Quarantine: a message that cannot succeed leaves its queue.

In one transaction it becomes a poison record, moves to the dead queue or is discarded, its row is
deleted, its instance is notified, and its stream continues or halts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import crash_points, signals
from ..application_release import cut_release
from ..error_details import HISTORY_LIMIT
from ..failure_policy import PolicyInForce
from ..fingerprints import is_fingerprint
from ..logs import event, flush
from ..message_tags import Tag, clean_tags
from ..models import Kind, OnPoison, ResultOutcome, StreamPolicy, WorkerProcess
from ..status import FailureReason
from ..text import storable_text
from . import results, streams
from .counters import CounterKey
from .group_changes import GroupCause, GroupKey, cause_and_group
from .instances import on_death
from .transaction import Stream, Transaction

#: Bytes of the error kept with a death in a dead queue. The message keeps the whole text until it
#: fails again.
_ERROR_LIMIT = 1_000


@dataclass(frozen=True)
class MessageDeath:
    """Why a message dies."""

    id: int
    reason: FailureReason = FailureReason.POISON_MESSAGE
    verdict: str = ""
    #: The limit in force, when it was not the queue's; `unlimited`: there was none.
    max_attempts: int | None = None
    unlimited: bool = False
    #: The number that reached the limit, when it was not the attempts of the row.
    attempts: int | None = None
    #: The exception of the handler, for the log.
    raised: BaseException | None = field(default=None, repr=False, compare=False)


def death_by_limit(
    id: int,
    policy: PolicyInForce,
    reason: FailureReason | None,
    *,
    attempts: int,
    counts: Mapping[str, int],
) -> MessageDeath | None:
    """Return the death of a message that has reached a limit of its policy, or None."""
    reached = policy.reached(reason, attempts=attempts, counts=counts)
    if reached is None:
        return None
    if reached.count == attempts and reached.reason is None:
        return MessageDeath(id, max_attempts=reached.limit)
    what = f"failures of {reached.reason.name}" if reached.reason else "failures"
    number = f"{reached.count} of {max(reached.limit or 0, 1)}"
    verdict = f"gave up after {number} {what}; attempts: {attempts}"
    return MessageDeath(id, verdict=verdict, max_attempts=reached.limit)


@dataclass(frozen=True, kw_only=True)
class Poisoning:
    """A message left its queue: the argument of the signal and of the log event. No payload."""

    message_id: int
    queue: str
    name: str
    stream: str | None
    attempts: int
    reason: FailureReason
    last_failure_reason: FailureReason | None
    last_error: str | None
    fingerprint: str
    destination: str
    kind: str = Kind.MESSAGE.value
    #: The exception of the last attempt, where this process saw it raised.
    raised: BaseException | None = field(default=None, repr=False, compare=False)


def quarantine(tx: Transaction, deaths: Sequence[MessageDeath], *, by: str) -> dict[int, Poisoning]:
    """
    Move dying messages out of their queue: to poison records, to the dead queue, or nowhere.

    Promises: insert before delete, one record however many transactions race, streams go on (or
    halt), and the announcement only after the commit. Rows that are gone or locked by another
    transaction are skipped. The caller holds the locks of the streams.
    """
    dying = _read(tx, {death.id: death for death in deaths})
    if not dying:
        return {}
    by_destination: dict[str, list[_Dying]] = {}
    for item in dying:
        by_destination.setdefault(item.on_poison, []).append(item)
    discarded = by_destination.pop(OnPoison.DISCARD, [])
    if discarded:
        _log(discarded, "message_discarded", "discarded")
        # Written before the commit: a crash right after it must not lose the only trace.
        flush()
        ids = [item.id for item in discarded if item.row.kind == Kind.TASK]
        results.keep_results_of_messages(tx, ids, outcome=ResultOutcome.REMOVED)
    moved = by_destination.pop(OnPoison.DEAD_QUEUE, [])
    tagged: list[tuple[int, _Dying]] = []
    if moved:
        copies = tx.run(
            "move_to_dead_queue",
            by=by,
            ids=[item.id for item in moved],
            rows=json.dumps({item.id: item.dead_queue_columns() for item in moved}),
        )
        by_id = {item.id: item for item in moved}
        tagged = [(id, by_id[source_id]) for id, source_id in copies]
    records = [item for rest in by_destination.values() for item in rest]
    if records:
        tx.run(
            "quarantine",
            by=by,
            ids=[item.id for item in records],
            rows=json.dumps({item.id: item.record_columns() for item in records}),
        )
        tagged += [(item.id, item) for item in records]
    _write_tags(tx, tagged)
    of_instances = [
        item.as_dead_message(item.row.instance) for item in dying if item.row.instance is not None
    ]
    if of_instances:
        on_death.notify_instances(tx, of_instances)
    crash_points.reach("quarantine.recorded")
    tx.run("delete", ids=[item.id for item in dying])
    crash_points.reach("quarantine.deleted")
    streams.wake(tx, {item.stream for item in dying if item.stream is not None})
    for item in dying:
        # A message in a dead queue died when it was moved there: one death, counted once.
        if not item.row.is_moved:
            tx.counts.add(CounterKey(item.row.queue, item.row.name, item.row.kind), "poisoned")
            tx.groups.add_death(GroupKey(item.group, item.row.queue_id, item.release), item.cause)
    poisonings = {item.id: item.poisoning() for item in dying}
    # For the audit trail of messages that were retried before.
    groups = [{"id": item.id, "fingerprint": item.group} for item in dying]
    tx.run("mark_deaths", ids=sorted(poisonings), rows=json.dumps(groups))
    _announce(tx, dying, list(poisonings.values()))
    return poisonings


class _DyingRow(NamedTuple):
    """The columns of `read_for_quarantine`: a locked message and the policy of its queue."""

    id: int
    queue_id: int
    stream: str | None
    name: str
    attempts: int
    failure_reason: int | None
    error: str | None
    #: Of the last attempt in the history, which may be damaged.
    exception: Any
    frame: Any
    #: The fingerprint that the application gave it, the release, and the tags, as JSON.
    custom_group: Any
    release: Any
    tags: Any
    #: Its last lease ran out unreported.
    is_lost: bool
    worker: str | None
    queue: str
    max_attempts: int | None
    stream_policy: str
    #: An OnPoison, or "broken": the dead queue of the policy is not usable.
    on_poison: str
    dead_queue: str | None
    kind: str
    instance: str | None
    execution_id: int | None
    activity_id: int | None
    #: It died before and is in a dead queue.
    is_moved: bool
    #: Of that first death, unless an older release moved it.
    first_group: str | None
    first_exception: Any
    first_frame: Any
    first_release: Any


@dataclass(frozen=True)
class _Dying:
    """A locked message, why it dies, and how its death is recorded."""

    row: _DyingRow
    death: MessageDeath
    id: int
    stream: Stream | None
    #: An OnPoison.
    on_poison: str
    attempts: int
    #: The limit in force; None: there was none.
    limit: int | None
    last_reason: FailureReason | None
    error: str | None
    verdict: str
    #: The fingerprint of its group, and what the messages of the group have in common: those of its
    #: first death.
    group: str
    exception: str
    frame: str
    release: str
    tags: list[Tag]

    @property
    def cause(self) -> GroupCause:
        reason = self.last_reason or self.death.reason
        error = self.error or self.verdict
        return GroupCause(self.row.name, self.exception, self.frame, reason, error)

    def record_columns(self) -> dict[str, Any]:
        """Return the columns of the poison record that are not those of the message."""
        return {
            "id": self.id,
            "reason": int(self.death.reason),
            "verdict": self.verdict,
            "fingerprint": self.group,
            "exception": self.exception,
            "frame": self.frame,
            "release": self.release,
            "attempts": self.attempts,
            "max_attempts": self.limit,
            "halts": self.stream is not None and self.row.stream_policy == StreamPolicy.HALT,
        }

    def dead_queue_columns(self) -> dict[str, Any]:
        """
        Return where and why it died, for its copy in the dead queue.

        The statement adds from the row itself what a retry restores.
        """
        return {
            "id": self.id,
            "fingerprint": self.group,
            "death": {
                "reason": int(self.death.reason),
                "verdict": self.verdict,
                "failure_reason": None if self.last_reason is None else int(self.last_reason),
                "error": storable_text(self.error or "", limit=_ERROR_LIMIT) or None,
                "attempts": self.attempts,
                "max_attempts": self.limit,
                "fingerprint": self.group,
                "exception": self.exception,
                "frame": self.frame,
                # A death without a release stays as it was.
                **({"release": self.release} if self.release else {}),
            },
        }

    def as_dead_message(self, instance: str) -> on_death.DeadMessage:
        return on_death.DeadMessage(
            id=self.id,
            kind=self.row.kind,
            name=self.row.name,
            queue=self.row.queue,
            instance=instance,
            execution_id=self.row.execution_id,
            activity_id=self.row.activity_id,
            attempts=self.attempts,
            max_attempts=self.limit,
            last_error=self.error or self.death.verdict or None,
            reason=self.death.reason,
            verdict=self.death.verdict,
        )

    def poisoning(self) -> Poisoning:
        destination = self.on_poison
        if destination == OnPoison.DEAD_QUEUE:
            destination = self.row.dead_queue or destination
        return Poisoning(
            message_id=self.id,
            queue=self.row.queue,
            name=self.row.name,
            stream=self.row.stream,
            attempts=self.attempts,
            reason=self.death.reason,
            last_failure_reason=self.last_reason,
            last_error=self.error,
            fingerprint=self.group,
            destination=destination,
            kind=self.row.kind,
            raised=self.death.raised,
        )


def _read(tx: Transaction, deaths: Mapping[int, MessageDeath]) -> list[_Dying]:
    """Lock and read the dying messages; record the lease of those whose worker was lost."""
    rows = [_DyingRow(*row) for row in tx.run("read_for_quarantine", ids=sorted(deaths))]
    lost = [row for row in rows if row.is_lost]
    if lost:
        ids = sorted(row.id for row in lost)
        tx.run("record_expired_leases", ids=ids, history_limit=HISTORY_LIMIT)
    releases = releases_of_workers(tx, {row.worker for row in lost if row.worker})
    for row in lost:
        key = CounterKey(row.queue, row.name, row.kind, int(FailureReason.WORKER_LOST))
        tx.counts.add(key, "failed")
        release = releases.get(row.worker or "", "")
        count_lost(tx, row.queue_id, row.name, release=release, worker=row.worker or "")
    for row in rows:
        if row.on_poison == "broken":
            event(
                logging.WARNING,
                "dead_queue_broken",
                "queue {queue} has no usable dead queue; message {name} {message_id} is "
                "quarantined instead. Correct the queue's policy.",
                queue=row.queue,
                name=row.name,
                message_id=row.id,
            )
    return [_describe(row, deaths[row.id], releases) for row in rows]


def releases_of_workers(tx: Transaction, names: Collection[str]) -> dict[str, str]:
    """Return the releases of workers whose rows are there, by name: for those that were lost."""
    if not names:
        return {}
    rows = WorkerProcess.objects.using(tx.using).filter(name__in=sorted(names)).order_by("name")
    return dict(rows.values_list("name", "release"))


def count_lost(tx: Transaction, queue: int | str, name: str, *, release: str, worker: str) -> None:
    """Add the failure of an attempt whose worker was lost to its group."""
    error = _lost_text(worker)
    cause, group = cause_and_group(name, FailureReason.WORKER_LOST, "", "", error=error)
    tx.groups.add_failure(GroupKey(group, queue, release), cause)


def _lost_text(worker: str | None) -> str:
    return f"worker {worker} did not report before its lease ran out"


def _write_tags(tx: Transaction, dead: Iterable[tuple[int, _Dying]]) -> None:
    """Remember the tags of dead messages, given with the ids that they have now."""
    rows = [
        {"message_id": id, "key": key, "value": value}
        for id, item in dead
        for key, value in item.tags
    ]
    if rows:
        tx.run("insert_message_tags", rows=json.dumps(rows))


def _describe(row: _DyingRow, death: MessageDeath, releases: Mapping[str, str]) -> _Dying:
    """Work out what the record of a death says."""
    attempts = row.attempts if death.attempts is None else death.attempts
    limit = row.max_attempts if death.max_attempts is None else death.max_attempts
    if death.unlimited:
        limit = None
    shown = "unlimited" if limit is None else max(limit, 1)
    if row.is_lost:
        last_reason: FailureReason | None = FailureReason.WORKER_LOST
        error: str | None = _lost_text(row.worker)
        exception = frame = custom = ""
        release, tags = releases.get(row.worker or "", ""), []
    else:
        last_reason = FailureReason.read(row.failure_reason) if row.failure_reason else None
        error, exception, frame = row.error, _text(row.exception), _text(row.frame)
        custom = row.custom_group if is_fingerprint(row.custom_group) else ""
        release, tags = cut_release(row.release), clean_tags(row.tags)
    if row.first_group is not None:
        group = row.first_group
        exception, frame = _text(row.first_exception), _text(row.first_frame)
        release = cut_release(row.first_release)
    else:
        cause, group = cause_and_group(
            row.name,
            last_reason or death.reason,
            exception,
            frame,
            error=error,
            custom=custom,
        )
        exception, frame = cause.exception, cause.frame
    return _Dying(
        row,
        death,
        id=row.id,
        stream=None if row.stream is None else (row.queue_id, row.stream),
        # A dead queue has no dead queue of its own either: what dies in it is quarantined.
        on_poison=OnPoison.QUARANTINE if row.on_poison == "broken" else row.on_poison,
        attempts=attempts,
        limit=limit,
        last_reason=last_reason,
        error=error,
        verdict=storable_text(death.verdict)
        if death.verdict
        else f"gave up after {attempts} of {shown} attempts",
        group=group,
        exception=exception,
        frame=frame,
        release=release,
        tags=tags,
    )


def _text(value: Any) -> str:
    """Return a value of a history as text: it may be damaged, and SQLite gives it any type."""
    return "" if value is None else str(value)


def _announce(tx: Transaction, dying: Sequence[_Dying], poisonings: Sequence[Poisoning]) -> None:
    # The discarded messages are logged already.
    kept = [item for item in dying if item.on_poison != OnPoison.DISCARD]
    tx.after_commit(lambda: _log(kept, "message_poisoned", "poisoned"))
    signals.announce(
        tx.using,
        "message_poisoned",
        signals.message_poisoned,
        sender=Poisoning,
        each=lambda: [{"poison": poisoning} for poisoning in poisonings],
    )


def _log(dying: Iterable[_Dying], kind: str, what: str) -> None:
    """Log each death as one error with its exception; the decision of an operator as a warning."""
    for item in dying:
        poisoning = item.poisoning()
        last = poisoning.last_failure_reason
        event(
            logging.ERROR if poisoning.reason is not FailureReason.OPERATOR else logging.WARNING,
            kind,
            "{what} message {name} {message_id} of queue {queue} after {attempts} attempts "
            "({reason}, last failure {last_failure_reason}): {error}",
            what=what,
            name=poisoning.name,
            message_id=poisoning.message_id,
            queue=poisoning.queue,
            stream=poisoning.stream,
            attempts=poisoning.attempts,
            reason=poisoning.reason.name,
            last_failure_reason=last.name if last else "none",
            error=poisoning.last_error or "no error",
            fingerprint=poisoning.fingerprint,
            destination=poisoning.destination,
            exc_info=item.death.raised,
        )
