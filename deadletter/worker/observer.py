"""What may somebody who measures a worker be told? Nobody is, unless metrics are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..lifecycle import Sweep, WorkBatch
    from .in_flight import Holdings
    from .tally import Reports, Tally


class Observer(Protocol):
    """
    Called once per transaction, never per message. Must not raise, wait or keep what it is given.
    """

    def handled(self, reports: Reports, holdings: Holdings) -> None:
        """These outcomes are about to be let go of. In the pump's thread."""

    def exchanged(self, seconds: float, reports: Reports, batch: WorkBatch, tally: Tally) -> None:
        """A transaction of reports, of a claim, or of both took so long. In the pump's thread."""

    def swept(self, found: Sweep) -> None:
        """In the housekeeper's thread."""


class Companion(Protocol):
    """A process beside the workers that a supervisor keeps alive. All calls are in one thread."""

    def keep(self) -> None:
        """Start it, or start it again when it is gone."""

    def leave(self) -> None:
        """Let go of what a forked worker must not inherit. Called in the worker."""

    def stop(self) -> None:
        """End it. Called when the last worker has gone."""
