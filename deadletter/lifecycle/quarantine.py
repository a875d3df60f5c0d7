"""What becomes of a message that can never succeed? One transaction: record, delete, unblock."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import crash_points, signals
from ..error_details import HISTORY_LIMIT
from ..failure_policy import ReachedLimit
from ..fingerprints import cause_of, fingerprint
from ..logs import event, flush
from ..models import OnPoison, StreamPolicy
from ..status import FailureReason
from ..text import storable_text
from . import retry_outcomes, streams
from .announce import announce
from .counters import Subject
from .instances import on_death
from .transaction import Transaction

#: Bytes of the error kept with a death. The whole text is the message's, until it fails again.
_ERROR = 1_000


@dataclass(frozen=True)
class Death:
    """Why a message dies. The row must be locked or lockable; gone or busy rows are skipped."""

    id: int
    reason: FailureReason = FailureReason.POISON_MESSAGE
    verdict: str = ""
    #: The number in force, when it was not the queue's; `unlimited`: none was.
    max_attempts: int | None = None
    unlimited: bool = False
    #: What was counted, when it was not the attempts of the row.
    attempts: int | None = None
    #: What its handler raised, for the log; None where no handler did.
    raised: BaseException | None = field(default=None, repr=False, compare=False)


def death_by(id: int, reached: ReachedLimit, *, attempts: int) -> Death:
    """Say which limit ended a message."""
    if reached.count == attempts and reached.reason is None:
        return Death(id, max_attempts=reached.limit)
    what = f"failures of {reached.reason.name}" if reached.reason else "failures"
    number = f"{reached.count} of {max(reached.limit or 0, 1)}"
    verdict = f"gave up after {number} {what}; attempts: {attempts}"
    return Death(id, verdict=verdict, max_attempts=reached.limit)


@dataclass(frozen=True, kw_only=True)
class Poisoning:
    """A message left its queue for good: what listeners and the log are told. No payload."""

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


def quarantine(tx: Transaction, deaths: Sequence[Death], *, by: str) -> dict[int, Poisoning]:
    """
    Move dying messages where they block nobody: poison records, the dead queue, or nowhere.

    Promises: insert before delete, one record however many race, streams go on (or halt), and the
    announcement only after commit. The caller holds the locks of the streams.
    """
    wanted = {death.id: death for death in deaths}
    dying = _read(tx, wanted)
    by_policy: dict[str, list[_Dying]] = {}
    for row in dying:
        by_policy.setdefault(row.destination, []).append(row)
    discarded = by_policy.pop(OnPoison.DISCARD, [])
    for row in discarded:
        _log(row.poisoning(), "message_discarded", "discarded", row.death.raised)
    if discarded:
        # Written before the commit: a crash right after it must not lose the only trace.
        flush()
    buried = by_policy.pop(OnPoison.DEAD_QUEUE, [])
    if buried:
        tx.run(
            "bury",
            by=by,
            ids=[row.id for row in buried],
            rows=json.dumps({row.id: row.burial() for row in buried}),
        )
    records = [row for rows in by_policy.values() for row in rows]
    if records:
        tx.run(
            "quarantine",
            by=by,
            ids=[row.id for row in records],
            rows=json.dumps({row.id: row.record() for row in records}),
        )
    owned = [row.as_dead(row.instance) for row in dying if row.instance is not None]
    if owned:
        on_death.tell(tx, owned)
    if dying:
        crash_points.reach("quarantine.recorded")
        tx.run("delete", ids=[row.id for row in dying])
        crash_points.reach("quarantine.deleted")
        streams.wake(tx, {row.in_stream for row in dying if row.in_stream is not None})
    for row in dying:
        # What was moved to a dead queue has died there, at the move: one death, counted once.
        if not row.is_moved:
            tx.counts.add(Subject(row.queue, row.name, row.kind), "poisoned")
    poisonings = {row.id: row.poisoning() for row in dying}
    retry_outcomes.mark_deaths(tx, {row.id: row.group for row in dying})
    _announce(tx, list(poisonings.values()), wanted)
    return poisonings


@dataclass(frozen=True, kw_only=True)
class _Dying:
    """A locked row and its judgement."""

    death: Death
    id: int
    queue_id: int
    stream: str | None
    name: str
    kind: str
    attempts: int
    last_reason: FailureReason | None
    error: str | None
    exception: str | None
    frame: str | None
    queue: str
    max_attempts: int | None
    stream_policy: str
    on_poison: str
    dead_queue: str | None
    instance: str | None
    execution_id: int | None
    activity_id: int | None
    #: It died before and lies in a dead queue.
    is_moved: bool
    #: Of that death, unless an older release moved it.
    first_group: str | None
    first_exception: str | None
    first_frame: str | None

    @property
    def destination(self) -> str:
        # What dies inside a dead queue has no dead queue of its own, hence "quarantine" there.
        return OnPoison.QUARANTINE if self.on_poison == "broken" else self.on_poison

    @property
    def in_stream(self) -> tuple[int, str] | None:
        return None if self.stream is None else (self.queue_id, self.stream)

    @property
    def cause(self) -> str:
        return cause_of(self.last_reason or self.death.reason, self.exception)

    @property
    def group(self) -> str:
        if self.first_group is not None:
            return self.first_group
        return fingerprint(self.name, self.cause, self.frame or "")

    @property
    def limit(self) -> int | None:
        """The number in force."""
        if self.death.unlimited:
            return None
        return self.max_attempts if self.death.max_attempts is None else self.death.max_attempts

    @property
    def verdict(self) -> str:
        if self.death.verdict:
            return storable_text(self.death.verdict)
        number = self.limit
        limit = "unlimited" if number is None else max(number, 1)
        return f"gave up after {self.attempts} of {limit} attempts"

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "reason": int(self.death.reason),
            "verdict": self.verdict,
            "fingerprint": self.group,
            **self._place(),
            "attempts": self.attempts,
            "max_attempts": self.limit,
            "halts": self.stream is not None and self.stream_policy == StreamPolicy.HALT,
        }

    def burial(self) -> dict[str, Any]:
        """Say where and why it died. What a retry gives back is added from the row itself."""
        return {
            "id": self.id,
            "fingerprint": self.group,
            "death": {
                "reason": int(self.death.reason),
                "verdict": self.verdict,
                "failure_reason": None if self.last_reason is None else int(self.last_reason),
                "error": storable_text(self.error or "", limit=_ERROR) or None,
                "attempts": self.attempts,
                "max_attempts": self.limit,
                "fingerprint": self.group,
                **self._place(),
            },
        }

    def _place(self) -> dict[str, str]:
        """Return what its group has in common: that of its one death."""
        if self.first_group is not None:
            return {"exception": self.first_exception or "", "frame": self.first_frame or ""}
        return {
            "exception": storable_text(self.cause)[:200],
            "frame": storable_text(self.frame or "")[:300],
        }

    def as_dead(self, instance: str) -> on_death.Dead:
        return on_death.Dead(
            id=self.id,
            kind=self.kind,
            name=self.name,
            queue=self.queue,
            instance=instance,
            execution_id=self.execution_id,
            activity_id=self.activity_id,
            attempts=self.attempts,
            max_attempts=self.limit,
            last_error=self.error or self.death.verdict or None,
            reason=self.death.reason,
            verdict=self.death.verdict,
        )

    def poisoning(self) -> Poisoning:
        return Poisoning(
            message_id=self.id,
            queue=self.queue,
            name=self.name,
            stream=self.stream,
            attempts=self.attempts,
            reason=self.death.reason,
            last_failure_reason=self.last_reason,
            last_error=self.error,
            fingerprint=self.group,
            destination=self.dead_queue or self.destination
            if self.destination == OnPoison.DEAD_QUEUE
            else self.destination,
        )


def _read(tx: Transaction, wanted: dict[int, Death]) -> list[_Dying]:
    rows = tx.run("read_dying", ids=sorted(wanted))
    lost = {row[0]: row[10] for row in rows if row[9]}
    if lost:
        tx.run("record_lost", ids=sorted(lost), history_limit=HISTORY_LIMIT)
    dying = []
    for row in rows:
        is_lost = row[0] in lost
        if is_lost:
            subject = Subject(row[11], row[3], row[16], int(FailureReason.WORKER_LOST))
            tx.counts.add(subject, "failed")
        reason = FailureReason.WORKER_LOST if is_lost else row[5] and FailureReason.read(row[5])
        dying.append(
            _Dying(
                death=wanted[row[0]],
                id=row[0],
                queue_id=row[1],
                stream=row[2],
                name=row[3],
                kind=row[16],
                attempts=_first_of(wanted[row[0]].attempts, row[4]),
                last_reason=reason,
                error=_lost_text(lost[row[0]]) if is_lost else row[6],
                exception=None if is_lost else _text(row[7]),
                frame=None if is_lost else _text(row[8]),
                queue=row[11],
                max_attempts=row[12],
                stream_policy=row[13],
                on_poison=row[14],
                dead_queue=row[15],
                instance=row[17],
                execution_id=row[18],
                activity_id=row[19],
                is_moved=bool(row[20]),
                first_group=row[21],
                first_exception=_text(row[22]),
                first_frame=_text(row[23]),
            )
        )
        if row[14] == "broken":
            event(
                logging.WARNING,
                "dead_queue_broken",
                "queue {queue} has no usable dead queue; message {name} {message_id} is "
                "quarantined instead. Correct the queue's policy.",
                queue=row[11],
                name=row[3],
                message_id=row[0],
            )
    return dying


def _first_of(given: int | None, stored: int) -> int:
    return stored if given is None else given


def _text(value: Any) -> str | None:
    """What a history holds may be damaged, and SQLite gives it with the type that it has."""
    return None if value is None else str(value)


def _lost_text(worker: str | None) -> str:
    return f"worker {worker} did not report before its lease ran out"


def _announce(tx: Transaction, poisonings: list[Poisoning], deaths: Mapping[int, Death]) -> None:
    def say() -> None:
        for poisoning in poisonings:
            if poisoning.destination != OnPoison.DISCARD:
                raised = deaths[poisoning.message_id].raised
                _log(poisoning, "message_poisoned", "poisoned", raised)

    if poisonings:
        tx.after_commit(say)
        announce(
            tx.using,
            "message_poisoned",
            signals.message_poisoned,
            sender=Poisoning,
            each=lambda: [{"poison": poisoning} for poisoning in poisonings],
        )


def _log(poisoning: Poisoning, kind: str, what: str, raised: BaseException | None) -> None:
    """Log a death as an error, once, with its exception; what an operator decided is a warning."""
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
