"""The measured systems: one file for each, all with the same interface (`benchmarks.system`)."""

from __future__ import annotations

from importlib import import_module

from ..system import System

#: Name and place of every system, in the order of the table.
SYSTEMS = {
    "raw": "raw:Raw",
    "raw-two-commits": "raw:TwoCommits",
    "deadletter": "deadletter:Deadletter",
    "deadletter-tasks": "django_tasks:DeadletterTasks",
    "deadletter-results": "django_tasks:DeadletterResults",
    "django-create": "deadletter:DjangoCreate",
    "pgqueuer": "pgqueuer:Pgqueuer",
    "graphile-worker": "graphile:Graphile",
    "chancy": "chancy:Chancy",
    "procrastinate": "procrastinate:Procrastinate",
    "django-ox": "django_tasks:DjangoOx",
    "django-tasks-db": "django_tasks:DjangoTasksDB",
    "dramatiq": "dramatiq:Dramatiq",
    "celery": "celery:Celery",
    "deadletter-sqlite": "deadletter:OnSQLite",
    "huey": "huey:Huey",
    "outbox-insert": "outbox:PlainInsert",
    "publisher-quorum": "outbox:QuorumPublisher",
    "publisher-plain": "outbox:PlainPublisher",
    "outbox-quorum": "outbox:QuorumRelay",
    "publisher-classic": "outbox:ClassicPublisher",
    "outbox-classic": "outbox:ClassicRelay",
    "publisher-redis": "outbox:RedisPublisher",
    "outbox-redis": "outbox:RedisRelay",
    "django-outbox-pattern": "outbox:OutboxPattern",
    "django-reliable-outbox": "outbox:ReliableOutbox",
    "deadletter-relay": "outbox:Beside",
    "deadletter-no-relay": "outbox:BesideNothing",
}
#: Those that are measured with `--outbox` only, in the order of its tables.
OUTBOX = (
    "outbox-insert",
    "publisher-quorum",
    "publisher-plain",
    "outbox-quorum",
    "publisher-classic",
    "outbox-classic",
    "publisher-redis",
    "outbox-redis",
    "django-outbox-pattern",
    "django-reliable-outbox",
    "deadletter-relay",
    "deadletter-no-relay",
)


def load(name: str) -> System:
    """Make a system by name. Raises ImportError when its library is not installed."""
    module, _, made = SYSTEMS[name].partition(":")
    system: System = getattr(import_module(f"{__name__}.{module}"), made)()
    return system
