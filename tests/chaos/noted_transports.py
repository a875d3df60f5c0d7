"""The transports of the product, which write down each batch: what was published and confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deadletter.outbox.cloud_events import CloudEvent
from deadletter.outbox.transports.base import BrokerRefusal, Report, Transport
from deadletter.outbox.transports.rabbitmq import RabbitMQ
from deadletter.outbox.transports.redis_streams import RedisStreams
from deadletter.status import FailureReason
from tests.sample.journal import write

from .collector import arrived
from .topics import REFUSED

if TYPE_CHECKING:
    _Base = Transport
else:
    _Base = object


class _Noted(_Base):
    """Writes `publishing` before a batch and `confirmed` behind it, whatever ended it."""

    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        ids = [int(event.id) for event in events]
        confirmed: list[int] = []
        refused: list[int] = []

        def note(index: int, refusal: BrokerRefusal | None = None) -> None:
            (confirmed if refusal is None else refused).append(ids[index])
            report(index, refusal)

        write("publishing", ids=ids)
        try:
            super().publish(events, note, timeout=timeout)
        finally:
            write("confirmed", ids=confirmed, refused=refused)


class NotedRabbitMQ(_Noted, RabbitMQ):
    pass


class NotedRedisStreams(_Noted, RedisStreams):
    pass


class _Journal(Transport):
    """A broker that is the journal itself: there events arrive at once."""

    def open(self) -> None:
        pass

    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        for index, event in enumerate(events):
            if event.topic == REFUSED:
                report(index, BrokerRefusal(FailureReason.TRANSPORT_UNAVAILABLE, "nobody reads it"))
                continue
            arrived(
                "journal",
                id=event.id,
                topic=event.topic,
                key=event.key,
                data=event.data,
                header=event.headers["tag"],
            )
            report(index)

    def close(self) -> None:
        pass


class NotedJournal(_Noted, _Journal):
    pass
