"""HandlerOutcomes of handlers, on their way from the executors to the pump."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from ..lifecycle import Completion, Failure, Release
from .execute import Overtaken, Report
from .in_flight import InFlight, InFlightMessage, Run

#: An in-flight message and what is to be reported of it.
HandlerOutcome = tuple[InFlightMessage, Report | Release]

FAILED = frozenset((Failure, Overtaken))
#: After one of these, the rest of a run is not started.
ENDS_RUN = FAILED | {Release}


class HandlerOutcomes:
    """Filled by executors in their threads, and by the pump for them; emptied by the pump."""

    def __init__(
        self, *, in_flight: InFlight, waiting_runs: Collection[Run], woken: threading.Event
    ) -> None:
        #: Each entry belongs into one transaction: an outcome, or a failure and what it releases.
        self.ready: deque[Sequence[HandlerOutcome]] = deque()
        #: The number of outcomes that wake the pump although runs still wait for a thread.
        self.enough = 1
        self._in_flight = in_flight
        self._waiting_runs = waiting_runs
        self._woken = woken

    def add(self, item: InFlightMessage, report: Report | Release) -> bool:
        """Add an outcome; return False if the pump has given up on it and replaced its thread."""
        if not item.decide():
            return False
        if type(report) in ENDS_RUN or item.message.stage:
            if isinstance(report, Release):
                self._in_flight.give_back(item)
            elif isinstance(report, Completion):
                self._in_flight.finish_stage(item, int(report.status))
            else:
                self._in_flight.finish(item, failed=type(report) in FAILED)
            behind = _released(behind for behind in item.behind if behind.take())
            self.ready.append([(item, report), *behind])
        else:
            self._in_flight.finish(item, failed=False)
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
