"""For the test suites of applications, and for ours: a clock to turn, a queue to drain."""

from __future__ import annotations

from collections.abc import Sequence

from .clock import FrozenClock, frozen
from .models import Message, primary_alias
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
    raise_errors: bool = False,
) -> Tally:
    """
    Run everything due, in this process, through the real executor.

    Works inside a TestCase's transaction, for async handlers too. Returns counts: completed,
    staged (stages, not messages), failed, poisoned, released, deferred. With `raise_errors` it
    stops at the first attempt that fails because its handler raised or took too long: the failure
    is settled as ever, what was claimed behind it is given back, and the exception is raised.
    Ctrl-C ends it in the same way, and is no failure of the message. What differs from a worker:
    docs/testing.md.
    """
    discover()
    return inline.drain(queues=queues, using=using, handlers=handlers, raise_errors=raise_errors)


def sent(name: str | None = None, *, using: str | None = None) -> list[Message]:
    """Return what was sent and not handled yet, oldest first."""
    messages = Message.objects.using(primary_alias(using))
    return list(messages.filter(name=name) if name else messages.all())
