"""A process that only publishes the outbox: `run_worker --relay`."""

from __future__ import annotations

import logging

from ..logs import event
from .options import Options
from .relay import Relays
from .shutdown import Shutdown

#: Seconds after which a signal is noticed at the latest.
SIGNALS = 0.5


class RelayProcess:
    """Runs the relays of all brokers until it is told to stop, or with --drain until they end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._relays = Relays(options)
        #: It was told to stop at once, and batches may be under way.
        self.is_cut_short = False

    def run(self, shutdown: Shutdown) -> None:
        """Publish until the end."""
        shutdown.connect(self.stop)
        event(
            logging.INFO,
            "relay_started",
            "relay {worker} started: {brokers} brokers",
            worker=self._options.name,
            brokers=len(self._relays),
        )
        self._relays.start()
        while self._relays.is_alive and not self.is_cut_short:
            # With a limit: a signal that comes just before the wait does not end it.
            self._relays.join(SIGNALS)
        event(
            logging.INFO,
            "relay_stopped",
            "relay {worker} stopped: {published} published",
            worker=self._options.name,
            published=self._relays.published,
        )

    def stop(self, *, at_once: bool = False) -> None:
        """Let batches end; `at_once`: leave them, they are published again."""
        self.is_cut_short = at_once
        self._relays.stop()
