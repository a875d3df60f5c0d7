"""Is somebody there to do the work?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import router
from django.db.utils import Error as DatabaseError

from .. import clock
from ..durations import Duration, as_timedelta
from ..models import Message, Queue, WorkerProcess


@dataclass
class Health:
    """`problems` in sentences; none means healthy."""

    problems: list[str] = field(default_factory=list)
    #: Names of the workers that were seen lately.
    workers: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def health(
    *,
    max_age: Duration = 30,
    max_wait: Duration | None = None,
    worker: str | None = None,
    host: str | None = None,
    using: str | None = None,
) -> Health:
    """
    Say whether the database answers and workers serve every queue that has something due.

    A worker counts when it was seen within `max_age`; `worker` or `host` ask for particular ones.
    With `max_wait`, a message that has been due for longer is a problem as well.
    """
    alias = using or router.db_for_write(WorkerProcess)
    try:
        return _judge(
            alias,
            as_timedelta(max_age, field="max_age"),
            None if max_wait is None else as_timedelta(max_wait, field="max_wait"),
            worker,
            host,
        )
    except DatabaseError as error:
        return Health([f"the database {alias!r} cannot be reached: {error}".strip()])


def _judge(
    alias: str,
    max_age: timedelta,
    max_wait: timedelta | None,
    worker: str | None,
    host: str | None,
) -> Health:
    now = clock.now(alias)
    alive = list(WorkerProcess.objects.using(alias).filter(seen_at__gte=now - max_age))
    if worker is not None:
        # The processes of one `run_worker --processes` are called name/1, name/2, …
        alive = [w for w in alive if w.name == worker or w.name.startswith(f"{worker}/")]
    if host is not None:
        alive = [w for w in alive if w.host == host]
    found = Health(workers=[w.name for w in alive])
    if not alive:
        wanted = f" called {worker}" if worker else f" on {host}" if host else ""
        found.problems.append(
            f"no worker{wanted} was seen in the last {max_age.total_seconds():g} s; is "
            "`manage.py run_worker` running?"
        )
    if worker is None and host is None:
        found.problems += _unserved(alias, now, alive, max_wait)
    return found


def _unserved(
    alias: str, now: datetime, alive: Sequence[WorkerProcess], max_wait: timedelta | None
) -> list[str]:
    """Name queues with work that nobody takes. One index probe a queue, however long it is."""
    problems = []
    served = {name for worker in alive for name in worker.queues}
    for queue in Queue.objects.using(alias).filter(paused=False, sources=None):
        due = Message.objects.using(alias).filter(queue=queue, available_at__lte=now)
        oldest = min(
            (
                at
                for priority in range(10)
                for at in due.filter(priority=priority)
                .order_by("available_at", "id")
                .values_list("available_at", flat=True)[:1]
                if at is not None
            ),
            default=None,
        )
        if oldest is None:
            continue
        waited = now - oldest
        if queue.name not in served:
            problems.append(f"queue {queue.name} has messages due and no live worker serves it")
        if max_wait is not None and waited > max_wait:
            problems.append(
                f"queue {queue.name}: a message has been due for {waited.total_seconds():.0f} s "
                f"(more than {max_wait.total_seconds():g})"
            )
    return problems
