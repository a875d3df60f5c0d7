"""In-flight messages: the messages under lease in this process, and how far each has got."""

from __future__ import annotations

from asyncio import Task
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

from ..lifecycle import Claimed
from ..status import FailureReason, Status
from .crash_ledger import CrashLedger, SlotState
from .registry import Handler


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
    def is_async(self) -> bool:
        return self.handler is not None and self.handler.is_async

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


class InFlight:
    """All in-flight messages of this process, by id. Only the pump adds and removes."""

    def __init__(self, ledger: CrashLedger, *, clock: Callable[[], float] = monotonic) -> None:
        self.ledger = ledger
        self._clock = clock
        self._by_id: dict[int, InFlightMessage] = {}
        #: Messages whose handlers have recorded a stage, appended by the handlers' threads.
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

    def finish(self, item: InFlightMessage, *, failed: bool) -> None:
        self.ledger.mark(item.slot, SlotState.FAILED if failed else SlotState.DONE)

    def finish_stage(self, item: InFlightMessage, flags: int) -> None:
        self.ledger.mark_staged(item.slot, flags)

    def give_back(self, item: InFlightMessage) -> None:
        """Mark a message whose handler this worker cancelled: a crash now charges no attempt."""
        self.ledger.mark(item.slot, SlotState.WAITING)

    def running(self) -> list[InFlightMessage]:
        """Return the messages whose handlers run, the longest-running first."""
        return sorted((item for item in self if item.is_running), key=lambda item: item.started)

    def waiting(self) -> list[InFlightMessage]:
        return [item for item in self if item.is_waiting]
