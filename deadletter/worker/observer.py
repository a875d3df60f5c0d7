"""Interfaces through which metrics observe a worker. Nothing is called unless they are on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..lifecycle import Sweep, WorkBatch
    from .in_flight import InFlight
    from .reports import Reports, Tally


class Observer(Protocol):
    """Called once per transaction, never per message. Must not raise, wait or keep arguments."""

    def handled(self, reports: Reports, in_flight: InFlight) -> None:
        """These messages are about to be removed from those in flight. In the pump's thread."""

    def exchanged(self, seconds: float, reports: Reports, batch: WorkBatch, tally: Tally) -> None:
        """A transaction that reported, claimed or did both took so long. In the pump's thread."""

    def swept(self, found: Sweep) -> None:
        """A sweep has ended. In the housekeeper's thread."""


class Companion(Protocol):
    """A process beside the workers that the supervisor keeps alive. All calls are in one thread."""

    def keep(self) -> None:
        """Start it, or start it again when it is gone."""

    def leave(self) -> None:
        """Close what a forked worker must not inherit. Called in the worker."""

    def stop(self) -> None:
        """End it. Called when the last worker has gone."""
