"""deadletter's transports, with counted confirms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deadletter.outbox.transports.rabbitmq import RabbitMQ as RealRabbitMQ
from deadletter.outbox.transports.redis_streams import RedisStreams

from . import work

if TYPE_CHECKING:
    from deadletter.outbox.cloud_events import CloudEvent
    from deadletter.outbox.transports.base import BrokerRefusal, Report


class RabbitMQ(RealRabbitMQ):
    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        super().publish(events, _counted(events, report), timeout=timeout)


class Redis(RedisStreams):
    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        super().publish(events, _counted(events, report), timeout=timeout)


def _counted(events: Sequence[CloudEvent], report: Report) -> Report:
    def counted(index: int, refusal: BrokerRefusal | None = None) -> None:
        report(index, refusal)
        if refusal is None:
            work.nothing()
            if work.NOTES:
                work.note(json.loads(events[index].data)["n"])

    return counted
