"""For the test suites of applications, and for ours: a clock to turn, a queue to drain."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import router

from .clock import FrozenClock, frozen
from .models import Message
from .worker import inline
from .worker.registry import Registry, discover, registry
from .worker.tally import Tally

__all__ = ["FrozenClock", "drain", "frozen_clock", "sent"]

frozen_clock = frozen


def drain(
    queues: Sequence[str] | None = None,
    *,
    using: str | None = None,
    handlers: Registry = registry,
) -> Tally:
    """
    Run everything due, in this process, through the real executor.

    Works inside a TestCase's transaction. Returns counts: completed, staged (stages, not messages),
    failed, poisoned, released, deferred.
    """
    discover()
    return inline.drain(queues=queues, using=using, handlers=handlers)


def sent(name: str | None = None, *, using: str | None = None) -> list[Message]:
    """Return what was sent and not handled yet, oldest first."""
    messages = Message.objects.using(using or router.db_for_write(Message))
    return list(messages.filter(name=name) if name else messages.all())
