"""
Stages that handlers record while they run (`message.done`), written by the next exchange.

They are on the row before the attempt ends. A process that is killed later loses none of the stages
that an exchange has written. A message whose handler records nothing costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import monotonic

from ..lifecycle import Claimed, Progress
from ..status import STAGE_BITS
from .in_flight import InFlight, InFlightMessage

#: Seconds until a row that another transaction has locked is tried again.
BUSY_PAUSE = 0.25


class StageRecorder:
    """Called by the pump, in its thread. Handlers only append their message to a queue."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._pending: dict[int, Claimed] = {}
        self._next = 0.0

    def is_due(self, now: float) -> bool:
        """True if stages were recorded that no exchange has tried to write."""
        return bool(self._in_flight.recorded) or (bool(self._pending) and now >= self._next)

    def take(self, *, given_back: Collection[int]) -> list[Progress]:
        """
        Return the stages to write now. They stay pending until `written` confirms them.

        Attempts that have ended are left out, since their reports carry the stages; except
        releases (`given_back`), which do not.
        """
        recorded = self._in_flight.recorded
        for _ in range(len(recorded)):
            message = recorded.popleft()
            self._pending[message.id] = message
        found = []
        for id, message in list(self._pending.items()):
            item = self._in_flight.get(id)
            flags = _unwritten(item, message) if item is not None else 0
            if flags and (item.is_running or id in given_back):  # type: ignore[union-attr]
                found.append(Progress(id, flags, message.token))
            else:
                del self._pending[id]
        return found

    def written(self, progress: Sequence[Progress], ids: Collection[int]) -> None:
        """Note which of the tried stages (`ids`) are on their rows; try the others again later."""
        for step in progress:
            item = self._in_flight.get(step.id)
            if step.id in ids and item is not None and item.message.token == step.token:
                item.written |= step.flags
                # Stages that were recorded since then are in the queue again.
                self._pending.pop(step.id, None)
        if len(ids) < len(progress):
            self._next = monotonic() + BUSY_PAUSE


def _unwritten(item: InFlightMessage, message: Claimed) -> int:
    """Return the recorded stages that the row lacks. A next stage comes with the report."""
    if item.message is not message:
        return 0
    return int(message.status) & ~item.written & ~message.stage & STAGE_BITS
