"""
In-flight messages: the messages under lease in this process, and how far each has got.

`ProgressRecorder` and `HandlerOutcomes` carry what handlers did from the executors to the pump.
"""

from __future__ import annotations

import threading
from asyncio import Task
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from ..lifecycle import Claimed, Completion, Failure, Progress, Release
from ..status import STAGE_BITS, FailureReason, Status
from .crash_ledger import CrashLedger, SlotState
from .execute import Overtaken, Report
from .registry import Handler

#: Seconds until a row that another transaction has locked is tried again.
BUSY_PAUSE = 0.25
#: Seconds between two writes of the progress that handlers report.
REPORT_INTERVAL = 1.0

FAILED = frozenset((Failure, Overtaken))
#: After one of these, the rest of a run is not started.
ENDS_RUN = FAILED | {Release}


class InFlightMessage:
    """A message under lease in this process. Times are of the monotonic clock."""

    __slots__ = (
        "_undecided",
        "_unstarted",
        "before",
        "behind",
        "cancelled",
        "half",
        "handler",
        "is_async",
        "message",
        "on_loop",
        "slot",
        "started",
        "task",
        "until",
        "written",
    )

    def __init__(
        self, message: Claimed, slot: int, since: float, handler: Handler | None = None
    ) -> None:
        self.message = message
        self.slot = slot
        seconds = message.lease.total_seconds()
        #: End of the lease. Counted from before the claim was sent, so it is never too late.
        self.until = since + seconds
        #: Half of the lease, in seconds.
        self.half = seconds / 2
        self.handler = handler
        self.is_async = handler is not None and handler.is_async
        #: The stages that the message had reached when it was claimed.
        self.before: Status = message.status
        #: The stages that are known to be on its row.
        self.written = int(message.status)
        #: The messages behind it in its run, in order.
        self.behind: Sequence[InFlightMessage] = ()
        #: True if its run is on the event loop, not in a thread.
        self.on_loop = False
        #: When its handler was called; 0.0 before.
        self.started = 0.0
        #: The task of its async handler while that runs.
        self.task: Task[Any] | None = None
        #: When a stop cancelled the task; 0.0 otherwise.
        self.cancelled = 0.0
        # `del` of an attribute is atomic: of several threads, one succeeds.
        self._unstarted = True
        self._undecided = True

    def take(self) -> bool:
        """
        Return True to the first caller only.

        The callers are the executor that is about to start the message and the pump, which gives
        it back unstarted.
        """
        try:
            del self._unstarted
        except AttributeError:
            return False
        return True

    def decide(self) -> bool:
        """
        Return True to the first caller only: that caller reports the outcome of the message.

        The callers are the executor that finishes, the pump that gives up on the executor, and a
        shutdown.
        """
        try:
            del self._undecided
        except AttributeError:
            return False
        return True

    @property
    def is_running(self) -> bool:
        return bool(self.started) and hasattr(self, "_undecided")

    @property
    def is_waiting(self) -> bool:
        return hasattr(self, "_unstarted")

    @property
    def is_decided(self) -> bool:
        return not hasattr(self, "_undecided")

    @property
    def is_suspect(self) -> bool:
        """True if a process died while it ran the message, and this is the last attempt."""
        if self.message.last_failure is not FailureReason.WORKER_LOST:
            return False
        handler = self.handler
        limit = self.message.max_attempts
        if handler is not None:
            limit = handler.limit(limit)
        return limit is not None and self.message.attempt >= limit

    def has_taken(self, seconds: float) -> bool:
        """True if an attempt of this duration has reached the handler's timeout."""
        handler = self.handler
        limit = None if handler is None else handler.seconds
        return limit is not None and seconds >= limit

    @property
    def deadline(self) -> float | None:
        """When the running attempt reaches its timeout; None if it has none, or does not run."""
        if not self.is_running or self.handler is None or self.handler.seconds is None:
            return None
        return self.started + self.handler.seconds


#: Messages that one executor handles in order: a stream's run, or a single message.
Run = list[InFlightMessage]
#: An in-flight message and what is to be reported of it.
HandlerOutcome = tuple[InFlightMessage, Report | Release]


class InFlight:
    """All in-flight messages of this process, by id. Only the pump adds and removes."""

    def __init__(self, ledger: CrashLedger, *, clock: Callable[[], float] = monotonic) -> None:
        self.ledger = ledger
        self._clock = clock
        self._by_id: dict[int, InFlightMessage] = {}
        #: Messages whose handlers have recorded something, appended by the handlers' threads.
        self.recorded: deque[Claimed] = deque()
        self._record = self.recorded.append

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[InFlightMessage]:
        return iter(list(self._by_id.values()))

    def get(self, id: int) -> InFlightMessage | None:
        return self._by_id.get(id)

    def has_any(self, messages: Iterable[Claimed]) -> bool:
        """True if one of these messages is in flight already."""
        return not self._by_id.keys().isdisjoint([message.id for message in messages])

    def add(self, message: Claimed, *, since: float, handler: Handler | None) -> InFlightMessage:
        """
        Add a claimed message.

        If the message is in flight already, that lease was lost and this one replaces it. The old
        entry keeps its slot in the ledger until it is dismissed: its handler may still run.
        """
        slot = self.ledger.hold(message.id, message.token)
        item = InFlightMessage(message, slot, since, handler)
        message.recorder = self._record
        self._by_id[message.id] = item
        return item

    def remove(self, *ids: int) -> None:
        pop = self._by_id.pop
        gone = [item for id in ids if (item := pop(id, None)) is not None]
        self.ledger.drop(*[item.slot for item in gone])

    def dismiss(self, item: InFlightMessage) -> bool:
        """Return True if a newer lease of the message replaced this one, and free its slot."""
        if self._by_id.get(item.message.id) is item:
            return False
        self.ledger.drop(item.slot)
        return True

    def start(self, item: InFlightMessage) -> None:
        self.ledger.mark(item.slot, SlotState.RUNNING)
        item.started = self._clock()

    def running(self) -> list[InFlightMessage]:
        """Return the messages whose handlers run, the longest-running first."""
        return sorted((item for item in self if item.is_running), key=lambda item: item.started)

    def waiting(self) -> list[InFlightMessage]:
        return [item for item in self if item.is_waiting]


class ProgressRecorder:
    """
    What handlers record while they run (`message.done`, `message.report`), for the next exchange.

    Stages are on the row before the attempt ends. A process that is killed later loses none of the
    stages that an exchange has written. The reports of all handlers are written together, the
    latest of each, at most once in REPORT_INTERVAL. A message whose handler records nothing costs
    nothing. Called by the pump, in its thread. Handlers only append their message to a queue.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        #: Messages with stages that are not written.
        self._pending: dict[int, Claimed] = {}
        self._next = 0.0
        #: Messages whose handlers run and have reported progress.
        self._reporting: dict[int, Claimed] = {}
        self._next_reports = 0.0

    def is_due(self, now: float, *, released: Collection[int] = ()) -> bool:
        """True if there may be something to write; for `released` messages it is the last time."""
        if self._in_flight.recorded or (self._pending and now >= self._next):
            return True
        if now < self._next_reports:
            return any(_has_news(self._reporting[id]) for id in self._reporting.keys() & released)
        # Also if a message is not in flight any more: `take` forgets it.
        return any(
            _has_news(message) or self._in_flight.get(id) is None
            for id, message in self._reporting.items()
        )

    def take(
        self, now: float, *, released: Collection[int], busy: Collection[int] = ()
    ) -> list[Progress]:
        """
        Return what to write now. It stays pending until `written` confirms it.

        Attempts that have ended are left out, since their reports carry it; except `released` and
        `busy` ones, whose reports do not, or are yet to come.
        """
        if not self.is_due(now, released=released):
            return []
        given_back = {*released, *busy}
        recorded = self._in_flight.recorded
        for _ in range(len(recorded)):
            message = recorded.popleft()
            self._pending[message.id] = message
            if message.progress is not None:
                self._reporting[message.id] = message
        pending = self._unsettled(self._pending, given_back)
        flags = {id: bits for id, item in pending.items() if (bits := _unwritten(item))}
        self._pending = {id: pending[id].message for id in flags}
        reporting = self._unsettled(self._reporting, given_back)
        self._reporting = {id: item.message for id, item in reporting.items()}
        is_time = now >= self._next_reports
        reports = {
            id: message.progress
            for id, message in self._reporting.items()
            if _has_news(message) and (is_time or id in released)
        }
        if reports and is_time:
            self._next_reports = now + REPORT_INTERVAL
        messages = self._pending | self._reporting
        return [
            Progress(id, flags.get(id, 0), messages[id].token, reports.get(id))
            for id in sorted(flags.keys() | reports.keys())
        ]

    def written(self, progress: Sequence[Progress], ids: Collection[int]) -> None:
        """Note which of the tried messages (`ids`) are written; try the others again later."""
        for step in progress:
            item = self._in_flight.get(step.id)
            if step.id in ids and item is not None and item.message.token == step.token:
                item.written |= step.flags
                if step.report is not None:
                    item.message.written_progress = step.report
                # Stages that were recorded since then are in the queue again.
                self._pending.pop(step.id, None)
        if len(ids) < len(progress):
            self._next = monotonic() + BUSY_PAUSE

    def _unsettled(
        self, messages: Mapping[int, Claimed], given_back: Collection[int]
    ) -> dict[int, InFlightMessage]:
        """Return the messages whose attempts continue, or are given back under the same lease."""
        return {
            id: item
            for id, message in messages.items()
            if (item := self._in_flight.get(id)) is not None
            and item.message is message
            and (item.is_running or id in given_back)
        }


def _unwritten(item: InFlightMessage) -> int:
    """Return the recorded stages that the row lacks. A next stage comes with the report."""
    message = item.message
    return int(message.status) & ~item.written & ~message.stage & STAGE_BITS


def _has_news(message: Claimed) -> bool:
    """True if the last report of its handler is not on the row."""
    return message.progress is not message.written_progress


class HandlerOutcomes:
    """Filled by executors in their threads, and by the pump for them; emptied by the pump."""

    def __init__(
        self, *, ledger: CrashLedger, waiting_runs: Collection[Run], woken: threading.Event
    ) -> None:
        #: Each entry belongs into one transaction: an outcome, or a failure and what it releases.
        self.ready: deque[Sequence[HandlerOutcome]] = deque()
        #: The number of outcomes that wake the pump although runs still wait for a thread.
        self.enough = 1
        self._ledger = ledger
        self._waiting_runs = waiting_runs
        self._woken = woken

    def add(self, item: InFlightMessage, report: Report | Release) -> bool:
        """Add an outcome; return False if the pump has given up on it and replaced its thread."""
        if not item.decide():
            return False
        if type(report) in ENDS_RUN or item.message.stage:
            if isinstance(report, Release):
                # This worker cancelled its handler: a crash now charges no attempt.
                self._ledger.mark(item.slot, SlotState.WAITING)
            elif isinstance(report, Completion):
                # An event would be lost with this process: then the stage is not finished.
                if report.result is None:
                    self._ledger.mark_staged(item.slot, int(report.status))
            else:
                failed = type(report) in FAILED
                self._ledger.mark(item.slot, SlotState.FAILED if failed else SlotState.DONE)
            if item.behind:
                behind = _released(behind for behind in item.behind if behind.take())
                self.ready.append([(item, report), *behind])
            else:
                self.ready.append(((item, report),))
        else:
            # A result would be lost with this process: then the message is not done, and its
            # attempt counts.
            if item.message.result is None:
                self._ledger.mark(item.slot, SlotState.DONE)
            self.ready.append(((item, report),))
        if (len(self.ready) >= self.enough or not self._waiting_runs) and not self._woken.is_set():
            self._woken.set()
        return True

    def give_back(self, items: Iterable[InFlightMessage]) -> None:
        """Release those of these messages that were not started."""
        self.abandon(item for item in items if item.take())

    def abandon(self, items: Iterable[InFlightMessage]) -> None:
        """Release messages even if their handlers run; the results of those come too late."""
        if released := _released(items):
            self.ready.append(released)


def _released(items: Iterable[InFlightMessage]) -> list[HandlerOutcome]:
    return [
        (item, Release(item.message.id, 0, item.message.token)) for item in items if item.decide()
    ]
