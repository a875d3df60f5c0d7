"""
Quarantine: a message that cannot succeed leaves its queue.

In one transaction it becomes a poison record, moves to the dead queue or is discarded, its row is
deleted, its instance is notified, and its stream continues or halts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import crash_points, signals
from ..error_details import HISTORY_LIMIT
from ..failure_policy import ReachedLimit
from ..fingerprints import cause_of, fingerprint
from ..logs import event, flush
from ..models import OnPoison, StreamPolicy
from ..status import FailureReason
from ..text import storable_text
from . import retry_outcomes, streams
from .counters import CounterKey
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


def death_by_limit(id: int, reached: ReachedLimit, *, attempts: int) -> MessageDeath:
    """Return the death of a message that reached a limit."""
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


def quarantine(tx: Transaction, deaths: Sequence[MessageDeath], *, by: str) -> dict[int, Poisoning]:
    """
    Move dying messages out of their queue: to poison records, to the dead queue, or nowhere.

    Promises: insert before delete, one record however many transactions race, streams go on (or
    halt), and the announcement only after the commit. Rows that are gone or locked by another
    transaction are skipped. The caller holds the locks of the streams.
    """
    by_id = {death.id: death for death in deaths}
    dying = _read(tx, by_id)
    by_destination: dict[str, list[_Dying]] = {}
    for item in dying:
        by_destination.setdefault(item.on_poison, []).append(item)
    discarded = by_destination.pop(OnPoison.DISCARD, [])
    for item in discarded:
        _log(item.poisoning(), "message_discarded", "discarded", item.death.raised)
    if discarded:
        # Written before the commit: a crash right after it must not lose the only trace.
        flush()
    moved = by_destination.pop(OnPoison.DEAD_QUEUE, [])
    if moved:
        tx.run(
            "move_to_dead_queue",
            by=by,
            ids=[item.id for item in moved],
            rows=json.dumps({item.id: item.dead_queue_columns() for item in moved}),
        )
    records = [item for rest in by_destination.values() for item in rest]
    if records:
        tx.run(
            "quarantine",
            by=by,
            ids=[item.id for item in records],
            rows=json.dumps({item.id: item.record_columns() for item in records}),
        )
    of_instances = [
        item.as_dead_message(item.row.instance) for item in dying if item.row.instance is not None
    ]
    if of_instances:
        on_death.notify_instances(tx, of_instances)
    if dying:
        crash_points.reach("quarantine.recorded")
        tx.run("delete", ids=[item.id for item in dying])
        crash_points.reach("quarantine.deleted")
        streams.wake(tx, {item.stream for item in dying if item.stream is not None})
    for item in dying:
        # A message in a dead queue died when it was moved there: one death, counted once.
        if not item.row.is_moved:
            tx.counts.add(CounterKey(item.row.queue, item.row.name, item.row.kind), "poisoned")
    poisonings = {item.id: item.poisoning() for item in dying}
    retry_outcomes.mark_deaths(tx, {item.id: item.group for item in dying})
    _announce(tx, list(poisonings.values()), by_id)
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


@dataclass(frozen=True)
class _Dying:
    """A locked message and why it dies."""

    row: _DyingRow
    death: MessageDeath

    @property
    def id(self) -> int:
        return self.row.id

    @property
    def stream(self) -> Stream | None:
        return None if self.row.stream is None else (self.row.queue_id, self.row.stream)

    @property
    def on_poison(self) -> str:
        # A dead queue has no dead queue of its own either: what dies in it is quarantined.
        return OnPoison.QUARANTINE if self.row.on_poison == "broken" else self.row.on_poison

    @property
    def attempts(self) -> int:
        return self.row.attempts if self.death.attempts is None else self.death.attempts

    @property
    def last_reason(self) -> FailureReason | None:
        if self.row.is_lost:
            return FailureReason.WORKER_LOST
        stored = self.row.failure_reason
        return FailureReason.read(stored) if stored else None

    @property
    def error(self) -> str | None:
        if self.row.is_lost:
            return f"worker {self.row.worker} did not report before its lease ran out"
        return self.row.error

    @property
    def cause(self) -> str:
        exception = None if self.row.is_lost else _text(self.row.exception)
        return cause_of(self.last_reason or self.death.reason, exception)

    @property
    def frame(self) -> str:
        return "" if self.row.is_lost else _text(self.row.frame) or ""

    @property
    def group(self) -> str:
        """The fingerprint of its group: that of its first death."""
        if self.row.first_group is not None:
            return self.row.first_group
        return fingerprint(self.row.name, self.cause, self.frame)

    @property
    def limit(self) -> int | None:
        """The limit in force; None: there was none."""
        if self.death.unlimited:
            return None
        own = self.death.max_attempts
        return self.row.max_attempts if own is None else own

    @property
    def verdict(self) -> str:
        if self.death.verdict:
            return storable_text(self.death.verdict)
        limit = "unlimited" if self.limit is None else max(self.limit, 1)
        return f"gave up after {self.attempts} of {limit} attempts"

    def record_columns(self) -> dict[str, Any]:
        """Return the columns of the poison record that are not those of the message."""
        return {
            "id": self.id,
            "reason": int(self.death.reason),
            "verdict": self.verdict,
            "fingerprint": self.group,
            **self._group_columns(),
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
                **self._group_columns(),
            },
        }

    def _group_columns(self) -> dict[str, str]:
        """Return what the messages of its group have in common: that of the first death."""
        if self.row.first_group is not None:
            return {
                "exception": _text(self.row.first_exception) or "",
                "frame": _text(self.row.first_frame) or "",
            }
        return {
            "exception": storable_text(self.cause)[:200],
            "frame": storable_text(self.frame)[:300],
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
        )


def _read(tx: Transaction, deaths: Mapping[int, MessageDeath]) -> list[_Dying]:
    """Lock and read the dying messages; record the lease of those whose worker was lost."""
    rows = [_DyingRow(*row) for row in tx.run("read_for_quarantine", ids=sorted(deaths))]
    lost = [row for row in rows if row.is_lost]
    if lost:
        ids = sorted(row.id for row in lost)
        tx.run("record_expired_leases", ids=ids, history_limit=HISTORY_LIMIT)
    for row in lost:
        key = CounterKey(row.queue, row.name, row.kind, int(FailureReason.WORKER_LOST))
        tx.counts.add(key, "failed")
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
    return [_Dying(row, deaths[row.id]) for row in rows]


def _text(value: Any) -> str | None:
    """Return a value of a history as text: it may be damaged, and SQLite gives it any type."""
    return None if value is None else str(value)


def _announce(
    tx: Transaction, poisonings: list[Poisoning], deaths: Mapping[int, MessageDeath]
) -> None:
    def log() -> None:
        for poisoning in poisonings:
            if poisoning.destination != OnPoison.DISCARD:
                raised = deaths[poisoning.message_id].raised
                _log(poisoning, "message_poisoned", "poisoned", raised)

    if poisonings:
        tx.after_commit(log)
        signals.announce(
            tx.using,
            "message_poisoned",
            signals.message_poisoned,
            sender=Poisoning,
            each=lambda: [{"poison": poisoning} for poisoning in poisonings],
        )


def _log(poisoning: Poisoning, kind: str, what: str, raised: BaseException | None) -> None:
    """Log a death as one error with its exception; the decision of an operator as a warning."""
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
        exc_info=raised,
    )
