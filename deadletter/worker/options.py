"""The options of one worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import DEFAULT_DB_ALIAS


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags of `run_worker` as values. Durations are seconds."""

    name: str
    #: Names or glob patterns in order of preference; None: all queues except dead queues. Patterns
    #: are matched by each claim, so a new queue is found at once.
    queues: Sequence[str] | None = None
    using: str = DEFAULT_DB_ALIAS
    concurrency: int = 8
    #: Maximum of messages per claim.
    batch: int = 500
    lease: float | None = None
    #: The longest pause between two claims.
    poll: float = 1.0
    #: Time for running handlers to finish after a stop.
    grace: float = 30.0
    #: Time for which a process that is to be replaced waits for its handlers; None: for each its
    #: own timeout, or an hour if it has none.
    drain_limit: float | None = None
    drain: bool = False
    max_messages: int | None = None
    #: MiB of resident memory.
    max_memory: float | None = None
    #: Publish the outbox as well.
    relay: bool = True
    #: Process id of the supervisor, or 0. When the supervisor is gone, the worker stops.
    supervisor: int = 0
    #: Process id of the reloader, or 0. When it is gone, a worker without a supervisor stops.
    reloader: int = 0

    @property
    def parent(self) -> int:
        """The process id of the process without which the worker stops, or 0."""
        return self.supervisor or self.reloader
