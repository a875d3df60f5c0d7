"""The destination of django-reliable-outbox for Redis, with counted entries."""

from __future__ import annotations

from typing import Any

from reliable_outbox.destinations.redis import RedisStreamDestination

from .. import work


class CountedStream(RedisStreamDestination):
    def deliver(self, envelope: Any) -> None:
        super().deliver(envelope)
        work.nothing()
        if work.NOTES:
            work.note(envelope.payload["n"])
