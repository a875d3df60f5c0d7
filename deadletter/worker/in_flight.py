"""What does this process hold, since when, until when?"""

from __future__ import annotations

from asyncio import Task
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

from ..lifecycle import Claimed
from ..status import FailureReason, Status
from .crash_ledger import Ledger, Stage
from .registry import Handler


class Holding:
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
        #: When the lease ends; counted from before the claim was sent, so never too late.
        self.until = since + seconds
        #: Seconds of half its lease.
        self.half = seconds / 2
        self.handler = handler
        #: The stages it had passed when it was claimed.
        self.before: Status = message.status
        #: The stages that its row is known to have.
        self.written = int(message.status)
        #: The rest of its run behind it, in order.
        self.behind: Sequence[Holding] = ()
        #: Its run is on the event loop, not in a thread.
        self.on_loop = False
        #: 0.0 until its handler is called.
        self.started = 0.0
        #: The task of its async handler while that runs, and when it was cancelled by a stop.
        self.task: Task[Any] | None = None
        self.cancelled = 0.0
        # Deleting an attribute is atomic: of several threads, one succeeds.
        self._unstarted = True
        self._undecided = True

    def take(self) -> bool:
        """
        Return True to the first caller only: an executor about to start it, or whoever gives it
        back unstarted.
        """
        try:
            del self._unstarted
        except AttributeError:
            return False
        return True

    def decide(self) -> bool:
        """
        Return True to the first caller only: it alone may say what became of the message.

        An executor that finishes, the pump that gives up on it, and a shutdown may all want to.
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
        """Whether a process died under it, and this is its last attempt."""
        if self.message.last_failure is not FailureReason.WORKER_LOST:
            return False
        handler = self.handler
        limit = self.message.max_attempts
        if handler is not None:
            limit = handler.limit(limit)
        return limit is not None and self.message.attempt >= limit

    def has_taken(self, seconds: float) -> bool:
        """Whether its attempt may take so long and no longer."""
        handler = self.handler
        limit = None if handler is None else handler.seconds
        return limit is not None and seconds >= limit

    @property
    def deadline(self) -> float | None:
        """When its attempt has taken too long."""
        if not self.is_running or self.handler is None or self.handler.seconds is None:
            return None
        return self.started + self.handler.seconds


class Holdings:
    """Everything held, by message id. Only the pump adds and removes."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = monotonic) -> None:
        self.ledger = ledger
        self._clock = clock
        self._by_id: dict[int, Holding] = {}
        #: Messages whose handlers have recorded a stage, appended by their threads.
        self.recorded: deque[Claimed] = deque()
        self._record = self.recorded.append

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Holding]:
        return iter(list(self._by_id.values()))

    def get(self, id: int) -> Holding | None:
        return self._by_id.get(id)

    def holds_any(self, messages: Iterable[Claimed]) -> bool:
        return not self._by_id.keys().isdisjoint([message.id for message in messages])

    def add(self, message: Claimed, *, since: float, handler: Handler | None) -> Holding:
        """
        Hold a message. If it is held already, that lease was lost and this one takes its place.

        The old holding keeps its slot until it is dismissed: its handler may still be running.
        """
        slot = self.ledger.hold(message.id, message.token)
        holding = Holding(message, slot, since, handler)
        message.recorder = self._record
        self._by_id[message.id] = holding
        return holding

    def remove(self, *ids: int) -> None:
        pop = self._by_id.pop
        gone = [holding for id in ids if (holding := pop(id, None)) is not None]
        self.ledger.drop(*[holding.slot for holding in gone])

    def dismiss(self, holding: Holding) -> bool:
        """Say whether a newer holding of the message took its place; if so, forget it."""
        if self._by_id.get(holding.message.id) is holding:
            return False
        self.ledger.drop(holding.slot)
        return True

    def start(self, holding: Holding) -> None:
        self.ledger.mark(holding.slot, Stage.RUNNING)
        holding.started = self._clock()

    def finish(self, holding: Holding, *, failed: bool) -> None:
        self.ledger.mark(holding.slot, Stage.FAILED if failed else Stage.DONE)

    def finish_stage(self, holding: Holding, flags: int) -> None:
        self.ledger.mark_staged(holding.slot, flags)

    def give_back(self, holding: Holding) -> None:
        """Its handler was ended by us: should this process die now, nothing is charged."""
        self.ledger.mark(holding.slot, Stage.WAITING)

    def running(self) -> list[Holding]:
        """Return what runs now, the longest first."""
        return sorted((h for h in self if h.is_running), key=lambda h: h.started)

    def waiting(self) -> list[Holding]:
        return [h for h in self if h.is_waiting]
