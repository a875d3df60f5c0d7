"""Health: whether the database answers, workers serve the queues in time, and little dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.utils import Error as DatabaseError
from django.db.utils import InterfaceError, OperationalError

from .. import clock
from ..conf import get_settings
from ..durations import Duration, as_timedelta
from ..lifecycle.levels import oldest_due, read_levels, to_be_served
from ..lifecycle.values import Level
from ..models import Breaker, Message, PoisonRecord, WorkerProcess, primary_alias
from ..patterns import ServedQueues
from .breakers import state_of
from .brokers import list_brokers
from .deadline import within

#: Deaths are counted up to the limit given, or up to this one.
COUNTED = 1_000
#: The highest limit: every counted row is read.
MOST = 10_000
#: Breakers that are read, and names that a warning lists.
_BREAKERS, _NAMED = 500, 5


@dataclass(frozen=True, kw_only=True)
class QueueHealth:
    """A queue with due messages: the seconds its oldest waits, and its live workers."""

    name: str
    waited: float
    workers: int


@dataclass(frozen=True, kw_only=True)
class BrokerHealth:
    """A broker of the outbox: messages that wait for it, and the seconds its oldest does."""

    name: str
    waiting: int
    waited: float
    relays: int
    is_available: bool
    #: Of those that wait, how many a person paused.
    paused: int = 0


@dataclass(frozen=True, kw_only=True)
class BreakerHealth:
    """An open circuit breaker."""

    name: str
    #: "held" by a person, or "open" because its handler keeps failing.
    state: str
    #: Seconds since it was opened or held.
    open_for: float


@dataclass
class Health:
    """The result of a health check. `problems` are sentences; healthy means there are none."""

    problems: list[str] = field(default_factory=list)
    #: Sentences about what a person must look at and a restarted process does not change.
    warnings: list[str] = field(default_factory=list)
    #: Names of the live workers.
    workers: list[str] = field(default_factory=list)
    #: The queues with due messages, by name.
    queues: list[QueueHealth] = field(default_factory=list)
    #: The brokers of the outbox, by name.
    brokers: list[BrokerHealth] = field(default_factory=list)
    #: The open circuit breakers, by name.
    breakers: list[BreakerHealth] = field(default_factory=list)
    #: Streams that a poison record halts; `COUNTED` plus one means that there are more.
    halted_streams: int = 0
    #: Dead letters of the window; `COUNTED` or the limit, plus one, means that there are more.
    poison: int = 0
    #: Whether the database answered.
    reachable: bool = True

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return the result for scripts; the names do not change."""
        return {"ok": self.ok, **asdict(self)}


def health(
    *,
    max_age: Duration = 30,
    max_wait: Duration | None = None,
    max_poison: int | None = None,
    window: Duration = 3600,
    min_workers: int = 1,
    worker: str | None = None,
    host: str | None = None,
    timeout: Duration | None = None,
    strict: bool = False,
    using: str | None = None,
) -> Health:
    """
    Check whether the database answers, workers and relays serve all work, and little dies.

    A worker is alive if it was seen within `max_age`. Problems are: fewer than `min_workers`; a
    queue with due messages and no live worker; with `max_wait`, a message that has been due for
    longer; with `max_poison`, more poison records than that in the last `window`; a broker that
    accepts nothing, or whose messages no relay publishes. With `worker` or `host` only the workers
    of that name or host are checked.

    Open circuit breakers and halted streams are warnings: a probe that fails would restart workers,
    which changes neither. With `strict`, for a monitor that calls a person, they are problems.

    The cost is a few index reads, however many rows there are. With `timeout` there is an answer
    within that time, also if the database gives none; an unreachable database raises nothing.
    """
    asked = _Question(
        alias=primary_alias(using),
        max_age=as_timedelta(max_age, field="max_age"),
        max_wait=None if max_wait is None else as_timedelta(max_wait, field="max_wait"),
        max_poison=max_poison,
        window=as_timedelta(window, field="window"),
        min_workers=min_workers,
        worker=worker,
        host=host,
    )
    if max_poison is not None and not 0 <= max_poison <= MOST:
        raise ValueError(f"max_poison: must be between 0 and {MOST:,}, got {max_poison}")
    limit = None if timeout is None else as_timedelta(timeout, field="timeout").total_seconds()
    try:
        found = (
            _answer(asked, None) if limit is None else within(limit, lambda: _answer(asked, limit))
        )
        if strict:
            found.problems += found.warnings
        return found
    except TimeoutError:
        problem = f"the database {asked.alias!r} did not answer within {limit:g} s"
    except DatabaseError as error:
        # SQLite reports a missing table with the error class that means "unreachable" elsewhere.
        is_away = isinstance(error, (OperationalError, InterfaceError))
        if is_away and "no such table" not in str(error):
            problem = f"the database {asked.alias!r} cannot be reached: {error}".strip()
        else:
            problem = f"the database {asked.alias!r} refused (is it migrated?): {error}".strip()
    return Health([problem], reachable=False)


@dataclass(frozen=True, kw_only=True)
class _Question:
    alias: str
    max_age: timedelta
    max_wait: timedelta | None
    max_poison: int | None
    window: timedelta
    min_workers: int
    worker: str | None
    host: str | None

    @property
    def wanted(self) -> str:
        return f" called {self.worker}" if self.worker else f" on {self.host}" if self.host else ""


def _answer(asked: _Question, seconds: float | None) -> Health:
    with _limited(asked.alias, seconds):
        now = clock.now(asked.alias)
        found = Health()
        served = _check_workers(asked, now, found)
        if asked.worker is None and asked.host is None:
            levels = read_levels(asked.alias)
            _check_queues(asked, now, found, served, levels)
            _check_poison(asked, now, found, levels)
            _check_brokers(asked, now, found)
            _check_breakers(asked, now, found)
            _check_streams(asked, found)
        return found


@contextmanager
def _limited(alias: str, seconds: float | None) -> Iterator[None]:
    """Set statement_timeout, so that the server stops work whose answer would come too late."""
    connection = connections[alias]
    if seconds is None or connection.vendor != "postgresql" or connection.in_atomic_block:
        yield
        return
    with transaction.atomic(using=alias):
        with connection.cursor() as cursor:
            milliseconds = max(1, round(seconds * 1000))
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(milliseconds)])
        yield


def _check_workers(asked: _Question, now: datetime, found: Health) -> ServedQueues:
    """Check the live workers; return the queues that they serve."""
    rows = WorkerProcess.objects.using(asked.alias).filter(seen_at__gte=now - asked.max_age)
    if asked.host is not None:
        rows = rows.filter(host=asked.host)
    served: list[object] = []
    for name, queues in rows.values_list("name", "queues"):
        # The processes of one `run_worker --processes` are called name/1, name/2, …
        if asked.worker not in (None, name) and not name.startswith(f"{asked.worker}/"):
            continue
        found.workers.append(name)
        served.append(queues)
    if not found.workers and asked.min_workers:
        found.problems.append(
            f"no worker{asked.wanted} was seen in the last {asked.max_age.total_seconds():g} s; is "
            "`manage.py run_worker` running?"
        )
    elif len(found.workers) < asked.min_workers:
        found.problems.append(
            f"{len(found.workers)} worker(s){asked.wanted} seen in the last "
            f"{asked.max_age.total_seconds():g} s, fewer than {asked.min_workers}"
        )
    return ServedQueues(served)


def _check_queues(
    asked: _Question, now: datetime, found: Health, served: ServedQueues, levels: list[Level]
) -> None:
    """Check the queues with due messages: one index probe for each level."""
    for name, since in oldest_due(to_be_served(levels), now=now).items():
        waited = (now - since).total_seconds()
        found.queues.append(QueueHealth(name=name, waited=waited, workers=served.count(name)))
        if name not in served:
            found.problems.append(f"queue {name} has messages due and no live worker serves it")
        if asked.max_wait is not None and waited > asked.max_wait.total_seconds():
            found.problems.append(
                f"queue {name}: a message has been due for {waited:.0f} s "
                f"(more than {asked.max_wait.total_seconds():g})"
            )


def _check_poison(asked: _Question, now: datetime, found: Health, levels: list[Level]) -> None:
    """
    Count the dead letters of the window, in records and in dead queues, up to the limit.
    """
    dead = PoisonRecord.objects.using(asked.alias).filter(poisoned_at__gt=now - asked.window)
    enough = (COUNTED if asked.max_poison is None else asked.max_poison) + 1
    found.poison = dead.order_by("poisoned_at", "id")[:enough].count()
    queues = sorted({level.queue_id for level in levels if level.is_dead_queue})
    if queues and found.poison < enough:
        moved = Message.objects.using(asked.alias).filter(queue_id__in=queues)
        moved = moved.filter(died_at__gt=now - asked.window).order_by()
        found.poison += moved.values("pk")[: enough - found.poison].count()
    if asked.max_poison is not None and found.poison > asked.max_poison:
        found.problems.append(
            f"more than {asked.max_poison} dead letters of the last "
            f"{asked.window.total_seconds():g} s are there; see `manage.py deadletter list`"
        )


def _check_brokers(asked: _Question, now: datetime, found: Health) -> None:
    """Check the outbox: brokers that accept nothing, and messages that nobody publishes."""
    if not get_settings().brokers:
        return  # costs nothing where nothing is published
    for broker in list_brokers(using=asked.alias):
        waited = 0.0 if broker.oldest_at is None else (now - broker.oldest_at).total_seconds()
        found.brokers.append(
            BrokerHealth(
                name=broker.name,
                waiting=broker.waiting,
                waited=waited,
                relays=broker.relays,
                is_available=broker.unavailable_since is None,
                paused=broker.paused,
            )
        )
        # What a person paused waits on purpose.
        if broker.is_paused or not broker.to_publish:
            continue
        if not broker.is_configured:
            found.problems.append(
                f"messages wait for broker {broker.name}, which is not in DEADLETTER['BROKERS']"
            )
        elif broker.unavailable_since is not None:
            found.problems.append(
                f"broker {broker.name} accepts nothing since {broker.unavailable_since:%H:%M:%S} "
                f"UTC: {broker.error}"
            )
        elif not broker.relays:
            found.problems.append(
                f"messages wait for broker {broker.name} and no relay publishes them; is "
                "`manage.py run_worker` running?"
            )
        if asked.max_wait is not None and waited > asked.max_wait.total_seconds():
            found.problems.append(
                f"outbox of broker {broker.name}: a message has waited for {waited:.0f} s "
                f"(more than {asked.max_wait.total_seconds():g})"
            )


def _check_breakers(asked: _Question, now: datetime, found: Health) -> None:
    """Name the open circuit breakers; one whose next message is tried is not open."""
    rows = Breaker.objects.using(asked.alias).open(now).order_by("name")
    for row in rows[:_BREAKERS]:
        found.breakers.append(
            BreakerHealth(
                name=row.name,
                state=state_of(row, now),
                open_for=max(0.0, (now - row.opened_at).total_seconds()),
            )
        )
    for state, text in (
        ("open", "circuit breaker open, its handler keeps failing: "),
        ("held", "messages held by a person: "),
    ):
        names = [one.name for one in found.breakers if one.state == state]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            found.warnings.append(f"{text}{', '.join(names[:_NAMED])}{more}")


def _check_streams(asked: _Question, found: Health) -> None:
    """Count the halted streams, up to the limit, in the order of the index of halting records."""
    halting = PoisonRecord.objects.using(asked.alias).halting()
    pairs = halting.order_by("queue", "stream").values("queue", "stream").distinct()
    found.halted_streams = len(pairs[: COUNTED + 1])
    if found.halted_streams:
        number = str(found.halted_streams)
        if found.halted_streams > COUNTED:
            number = f"more than {COUNTED:,}"
        found.warnings.append(
            f"{number} stream(s) halted by poison records; see `manage.py deadletter streams`"
        )
