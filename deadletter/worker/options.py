"""How one worker process is asked to behave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import DEFAULT_DB_ALIAS


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags of `run_worker`, as values. Durations are seconds."""

    name: str
    #: Names or glob patterns in order of preference; None: all queues but dead ones.
    queues: Sequence[str] | None = None
    using: str = DEFAULT_DB_ALIAS
    concurrency: int = 8
    #: Messages per claim at most.
    batch: int = 500
    lease: float | None = None
    #: The longest pause between two looks for work.
    poll: float = 1.0
    #: How long running handlers may take to finish after a stop.
    grace: float = 30.0
    #: How long a process that is to be replaced waits for its handlers; None: for each as long as
    #: its own time limit, and an hour where it has none.
    drain_limit: float | None = None
    drain: bool = False
    max_messages: int | None = None
    #: MiB of resident memory.
    max_memory: float | None = None
    #: Process id of the supervisor: gone, the worker stops as well. 0: none.
    supervisor: int = 0
