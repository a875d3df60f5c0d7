"""
Stages that handlers record while they run (`message.done`), for the next exchange.

They are on the row before the attempt ends, so a process that is killed afterwards loses none of
what an exchange has written. A message whose handler records nothing costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import monotonic

from ..lifecycle import Claimed, Progress
from ..status import STAGE_BITS
from .in_flight import Holding, Holdings

#: Seconds until a row that another transaction has locked is tried again.
BUSY_PAUSE = 0.25


class Recorder:
    """Called by the pump, in its thread. Handlers only append their message to a queue."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._pending: dict[int, Claimed] = {}
        self._next = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether something was recorded that no exchange has tried to write."""
        return bool(self._holdings.recorded) or (bool(self._pending) and now >= self._next)

    def take(self, *, given_back: Collection[int]) -> list[Progress]:
        """
        Return what to write now. It stays here until `written` says that it is in.

        Not of attempts that have ended: their own reports say it, except of those given back.
        """
        recorded = self._holdings.recorded
        for _ in range(len(recorded)):
            message = recorded.popleft()
            self._pending[message.id] = message
        found = []
        for id, message in list(self._pending.items()):
            holding = self._holdings.get(id)
            flags = _unwritten(holding, message) if holding is not None else 0
            if flags and (holding.is_running or id in given_back):  # type: ignore[union-attr]
                found.append(Progress(id, flags, message.token))
            else:
                del self._pending[id]
        return found

    def written(self, progress: Sequence[Progress], ids: Collection[int]) -> None:
        """These were tried, and those of `ids` are on their rows; try the others again later."""
        for item in progress:
            holding = self._holdings.get(item.id)
            if item.id in ids and holding is not None and holding.message.token == item.token:
                holding.written |= item.flags
                # What was recorded since then is in the queue again.
                self._pending.pop(item.id, None)
        if len(ids) < len(progress):
            self._next = monotonic() + BUSY_PAUSE


def _unwritten(holding: Holding, message: Claimed) -> int:
    """Return what `done` recorded and the row does not have; a next stage comes with the report."""
    if holding.message is not message:
        return 0
    return int(message.status) & ~holding.written & ~message.stage & STAGE_BITS
