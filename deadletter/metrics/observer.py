"""How does what a worker process does get onto its board?"""

from __future__ import annotations

from ..lifecycle import Completion, Failure, Sweep, WorkBatch
from ..worker.execute import Settled
from ..worker.in_flight import InFlight
from ..worker.reports import Reports, Tally
from .process_counters import Board


class BoardObserver:
    """`worker.observer.Observer` for one process: made after the fork, once per process."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._lost = 0

    def handled(self, reports: Reports, in_flight: InFlight) -> None:
        done: list[Completion | Failure | Settled]
        done = [*reports.completions, *reports.failures, *reports.settled]
        for report in done:
            item = in_flight.get(report.id)
            # What could not be started (no handler, no readable payload) took no time.
            if item is not None and report.seconds is not None:
                self._board.handled(item.message.name, report.seconds)

    def exchanged(self, seconds: float, reports: Reports, batch: WorkBatch, tally: Tally) -> None:
        if reports:
            # With the commit: it is what was settled that must be safe.
            self._board.settles.observe(seconds - batch.claim_seconds)
            if batch.token:
                self._board.claims.observe(batch.claim_seconds)
        else:
            self._board.claims.observe(seconds)
        if tally.lost != self._lost:
            self._board.add_lost(tally.lost - self._lost)
            self._lost = tally.lost

    def swept(self, found: Sweep) -> None:
        self._board.add_repaired(found.repaired)
