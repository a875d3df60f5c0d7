"""Values that go into the verbs of this package and come out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import sql
from ..durations import Duration
from ..failure_policy import Policy
from ..payload import decode
from ..progress import check_progress
from ..status import FailureReason, Status, check_stage

if TYPE_CHECKING:
    from ..models import PoisonRecord

_UNREAD: Any = object()


@dataclass(slots=True, eq=False)
class Claimed:
    """
    A message under lease, as a handler sees it.

    The payload is decoded on first access, after the attempt was counted: a row that cannot be
    decoded fails alone.
    """

    id: int
    queue: str
    name: str
    kind: str
    raw_payload: str | None
    raw_headers: str | None
    stream: str | None
    attempt: int
    #: The largest limit in force where limits differ by the reason of a failure.
    max_attempts: int | None
    status: Status
    fence: int
    #: As the database returned it; see `created_at`.
    raw_created_at: str | datetime
    instance: str | None
    execution_id: int | None
    activity_id: int | None
    lease: timedelta
    token: str
    #: Why the attempt before this one failed.
    last_failure: FailureReason | None = None
    #: The name of the worker that has claimed it.
    worker: str = ""
    #: The alias of the database that it was claimed from.
    using: str = ""
    #: When its handler was called, on the monotonic clock; 0.0 before.
    started: float = field(default=0.0, repr=False)
    #: The trace span of its execution; None without tracing.
    span: Any = field(default=None, repr=False)
    #: The flags given to `next_stage`; 0: the message ends when its handler returns.
    stage: int = field(default=0, repr=False)
    #: What the handler returned, if it is kept or published. Set by the executor when the handler
    #: has returned.
    result: KeptResult | None = field(default=None, repr=False)
    #: Called with the message by `done` and by the first `report`, if they are written before the
    #: attempt ends.
    recorder: Callable[[Claimed], object] | None = field(default=None, repr=False)
    #: What this attempt reported last: {"done", "total", "note"}; None before its first report.
    progress: dict[str, Any] | None = field(default=None, repr=False)
    #: The report that is known to be on its row.
    written_progress: dict[str, Any] | None = field(default=None, repr=False)
    _payload: Any = field(default=_UNREAD, repr=False)

    @property
    def payload(self) -> Any:
        if self._payload is _UNREAD:
            self._payload = decode(self.raw_payload)
        return self._payload

    @payload.setter
    def payload(self, value: Any) -> None:
        """Replace the decoded payload by an instance of the handler's class; for the worker."""
        self._payload = value

    @property
    def created_at(self) -> datetime:
        moment = self.raw_created_at
        return sql.read_moment(moment) if isinstance(moment, str) else moment

    @property
    def headers(self) -> dict[str, Any]:
        return decode(self.raw_headers) or {}

    @property
    def is_last_attempt(self) -> bool:
        return self.max_attempts is not None and self.attempt >= max(self.max_attempts, 1)

    def done(self, flag: Status | int) -> None:
        """
        Record a finished stage: kept when this attempt fails, seen by the next one.

        A worker writes it with its next exchange, at the latest with the report of the attempt.
        Stages recorded after the last exchange of a killed process are lost.
        Raises: ValueError for any but bits 0 to 14.
        """
        self.status |= Status(check_stage(flag, field="done"))
        if self.recorder is not None:
            self.recorder(self)

    def report(self, done: float, total: float | None = None, note: object = "") -> None:
        """
        Report how far this attempt has got; the latest report wins.

        A worker writes it with its next exchange, at most once a second. It stays on the row until
        the next attempt reports. What was reported after the last write of a killed process is
        lost.
        Raises: ValueError unless `done` and `total` are finite numbers of at least 0.
        """
        is_first = self.progress is None
        self.progress = check_progress(done, total, note)
        # The recorder watches the message from then on: a handler may report in a loop.
        if is_first and self.recorder is not None:
            self.recorder(self)

    def next_stage(self, flag: Status | int) -> None:
        """
        Finish a stage, not the message, when the handler returns.

        The flag is recorded with the report, and the message is due again with all its attempts.
        Raises: ValueError unless the flag is new, or for any but bits 0 to 14, or for PUBLISHED.
        """
        flags = check_stage(flag, field="next_stage")
        if (self.status | flags) & Status.PUBLISHED:
            raise ValueError("next_stage: PUBLISHED ends the message; return without a next stage")
        if not flags & ~int(self.status):
            raise ValueError(
                f"next_stage: {flags} adds no stage to {int(self.status)}; name a flag that the "
                "message does not have yet"
            )
        # Only those that are new: a flag that the row has already is not finished again.
        self.stage |= flags & ~int(self.status)
        self.status |= Status(flags)


class Floor(NamedTuple):
    """A place in the order in which the messages of a queue are claimed."""

    since: datetime
    id: int


class Level(NamedTuple):
    """A queue and priority that has messages that are not parked."""

    queue_id: int
    queue: str
    priority: int
    #: When its first message is due.
    first: datetime
    is_paused: bool = False
    #: It is the dead queue of another queue.
    is_dead_queue: bool = False


class Levels(NamedTuple):
    """
    The levels at which a claim looks, in order, and when they were read (monotonic clock).

    A worker keeps them for its next claims. Messages sent since at another level are not included.
    """

    due: tuple[Level, ...]
    read: float
    #: How long it took to read them.
    seconds: float = 0.0


@dataclass(frozen=True)
class Batch:
    """The result of a claim: messages in order, the messages of a stream adjacent."""

    token: str
    messages: Sequence[Claimed] = field(default_factory=list)
    #: Messages that this claim quarantined instead of returning them.
    dead: Sequence[int] = ()
    #: The claim parked so many messages that it ended before it had seen all that is due: claim
    #: again at once.
    more: bool = False
    #: Where its first candidate was, on PostgreSQL: the floor of a claim right after it.
    floor: Floor | None = None
    #: Candidates per claimed message: far below 1 where streams have many due messages.
    candidates: float = 1.0
    #: The levels it read; None: the given levels were enough.
    levels: Levels | None = None

    @property
    def ids(self) -> list[int]:
        return [message.id for message in self.messages]

    def runs(self) -> Iterator[list[Claimed]]:
        """Yield what may run concurrently: each message without a stream, each run of a stream."""
        for stream, run in groupby(
            self.messages,
            key=lambda item: None if item.stream is None else (item.queue, item.stream),
        ):
            if stream is None:
                yield from ([message] for message in run)
            else:
                yield list(run)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Claimed]:
        return iter(self.messages)


@dataclass(frozen=True)
class ClaimRequest:
    """
    What to claim: queues in order of preference, by name or glob pattern (None: all but dead ones).

    `max_attempts` by message name replaces the queue's number, None meaning no limit; `policies`
    are the failure policies of handlers by message name. `knows` returns for a kind, name and
    version (None: any) whether the claimer can handle it: such a message never dies for want of a
    handler. `token` is the lease to claim under: a caller that chose it can find the messages of a
    claim whose answer was lost.
    `floors`: in these queues skip what comes before a place, on PostgreSQL. For a caller that
    claims without a pause, has seen that nothing is left before it, and soon claims without floors.
    `candidates`: how many of them a message is expected to take, by the last claim.
    `levels`: look at these, read a moment ago, instead of reading them first; with `rediscover`,
    read them again if these did not fill the batch. `shuffle`: take the queues in random order.
    """

    queues: Sequence[str] | None = None
    limit: int = 100
    lease: Duration | None = None
    max_attempts: Mapping[str, int | None] = field(default_factory=dict)
    token: str | None = None
    floors: Mapping[str, Floor] = field(default_factory=dict)
    candidates: float = 1.0
    levels: Levels | None = None
    rediscover: bool = True
    shuffle: bool = False
    policies: Mapping[str, Policy] = field(default_factory=dict)
    knows: Callable[[str, str, str | None], bool] | None = None


class PreparedEvent(NamedTuple):
    """A message for a broker whose columns are checked."""

    broker: str
    #: The columns of its row in the outbox.
    columns: Mapping[str, Any]


class KeptResult(NamedTuple):
    """What a handler returned, to be stored or published with its completion."""

    #: What the handler returned, as JSON text; None: it is not kept, only published.
    value: str | None
    #: How long it is kept; None: for ever.
    kept: timedelta | None
    #: The last report of its progress.
    progress: Mapping[str, Any] | None = None
    #: What is published of it.
    event: PreparedEvent | None = None


class Completion(NamedTuple):
    """
    A completed message, or a completed stage of one.

    With PUBLISHED, now or from before, the message is complete. With other bits, of which at least
    one must be new, it continues with its next stage. With status 0 it is released by name.
    """

    id: int
    status: Status | int = Status.PUBLISHED
    token: str | None = None
    #: How long its handler took, for the counters.
    seconds: float | None = None
    #: The message itself, if the caller has it: saves a query for its stream.
    message: Claimed | None = None
    #: Its result, if that is kept or published.
    result: KeptResult | None = None


class Progress(NamedTuple):
    """Stages that a running attempt has completed so far, and what it reported last."""

    id: int
    #: 0: no stage that is not on the row.
    flags: int
    token: str
    #: {"done", "total", "note"}; None: nothing that is not on the row.
    report: dict[str, Any] | None = None


@dataclass(frozen=True)
class Release:
    """A message given back unprocessed; it is due again after `delay`."""

    id: int
    delay: Duration = 0
    token: str | None = None


@dataclass(frozen=True)
class Failure:
    """
    A failed attempt.

    `completed` are the stages it reached, bits 0 to 14; `delay` replaces the policy's; `permanent`
    quarantines at once; `policy` is the handler's; `max_attempts` or `unlimited` replace its number
    and the queue's. `deferred`: the attempt could not start (no handler, no readable payload); the
    message waits, and the next claim judges the count. A deferred failure with the reason
    UNREGISTERED uses up no attempt: deferrals have a count of their own.
    """

    id: int
    error: object = ""
    reason: FailureReason = FailureReason.UNKNOWN
    completed: Status | int = 0
    delay: Duration | None = None
    permanent: bool = False
    deferred: bool = False
    max_attempts: int | None = None
    unlimited: bool = False
    traceback: str = ""
    exception: str = ""
    frame: str = ""
    #: How long the handler ran.
    seconds: float | None = None
    token: str | None = None
    #: The message itself, if the caller has it: saves a query for its stream.
    message: Claimed | None = field(default=None, repr=False, compare=False)
    #: The exception of the handler, for the log; never stored.
    raised: BaseException | None = field(default=None, repr=False, compare=False)
    policy: Policy | None = field(default=None, repr=False)
    #: The version of a flow that is not registered.
    version: str | None = None
    #: What the application says makes failures of this name the same; "": the default fingerprint.
    fingerprint: str = ""
    #: Keys and values of the payload that the handler names as tags.
    tags: Sequence[tuple[str, str]] = ()
    #: The release of the application that failed; None: that of this process.
    release: str | None = None


@dataclass(frozen=True)
class Completed:
    """The message is complete; its row is deleted."""


@dataclass(frozen=True)
class Staged:
    """A stage is complete: the message is due again, with these flags and all its attempts."""

    status: Status


@dataclass(frozen=True)
class Refused:
    """
    The flags of the completion make no stage; nothing was recorded.

    The message is still under lease, unless it was released with the run of another message's
    stage.
    """

    why: str


@dataclass(frozen=True)
class Deferral:
    """The worker has no handler for the message, for the n-th time of `limit` (None: no limit)."""

    count: int
    limit: int | None
    delay: timedelta


@dataclass(frozen=True)
class Scheduled:
    """The message waits for its retry."""

    at: datetime
    deferral: Deferral | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Released:
    """The message was given back."""


@dataclass(frozen=True)
class Poisoned:
    """The message was quarantined, after so many attempts."""

    attempts: int


Outcome = Completed | Staged | Refused | Scheduled | Released | Poisoned


@dataclass(frozen=True)
class WorkBatch(Batch):
    """The result of `process_batch`: the messages claimed, and the outcome of each report."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    lost: Sequence[int] = ()
    #: Seconds of the transaction that the claim took.
    claim_seconds: float = 0.0
    #: Reports that were not applied: another transaction has locked the row or its stream. The
    #: messages are still the caller's; report them again.
    busy: Sequence[int] = ()
    #: Messages whose progress is written; the rows of the others are locked or not the caller's.
    recorded: Sequence[int] = ()

    @property
    def poisoned(self) -> list[int]:
        """Every message that was quarantined in this call, by a report or by the claim."""
        reported = [id for id, what in self.outcomes.items() if isinstance(what, Poisoned)]
        return [*reported, *self.dead]

    @property
    def refused(self) -> list[int]:
        """Completions whose flags make no stage; their `outcomes` say why."""
        return [id for id, what in self.outcomes.items() if isinstance(what, Refused)]


@dataclass(frozen=True)
class ActResult:
    """
    The result of an act that a person asks for.

    Each id is done, missing, or refused with the reason (a `Refusal`).
    """

    done: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    #: The audit entry; 0 if the act changed and refused nothing, or if its caller writes the entry.
    entry_id: int = 0
    #: The poison records that were done, as they were, for the audit trail of one transaction.
    records: list[PoisonRecord] | None = field(default=None, repr=False, compare=False)

    @property
    def retried(self) -> list[int]:
        """The ids that were retried: `done` under its public name for a retry."""
        return self.done

    @property
    def removed(self) -> list[int]:
        """The ids that were removed: `done` under its public name for a removal."""
        return self.done

    def add(self, other: ActResult) -> None:
        """Add the ids of another part of the same act; its entry and records are not kept."""
        self.done.extend(other.done)
        self.missing.extend(other.missing)
        self.refused.update(other.refused)
