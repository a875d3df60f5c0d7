"""A broker in memory: what it has, and what it does to a batch, is the test's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from deadletter.outbox.cloud_events import CloudEvent
from deadletter.outbox.transports.base import (
    BrokerRefusal,
    BrokerUnavailable,
    Report,
    Transport,
)

PATH = f"{__name__}.MemoryTransport"


class MemoryTransport(Transport):
    """All transports of a test share what arrived."""

    arrived: ClassVar[list[CloudEvent]] = []
    #: Sizes of the batches, in order.
    batches: ClassVar[list[int]] = []
    #: Called with an event; returns why it is refused, or None.
    judge: ClassVar[Callable[[CloudEvent], BrokerRefusal | None]] = staticmethod(lambda event: None)
    #: Why the broker accepts nothing; None: it does.
    away: ClassVar[str | None] = None
    #: Confirms of a batch after which the connection is lost: the next event arrives unconfirmed.
    cut_after: ClassVar[int | None] = None

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.is_open = False

    @classmethod
    def reset(cls) -> None:
        cls.arrived.clear()
        cls.batches.clear()
        cls.judge = staticmethod(lambda event: None)
        cls.away = cls.cut_after = None

    def open(self) -> None:
        if self.away is not None:
            raise BrokerUnavailable(self.away)
        self.is_open = True

    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        self.batches.append(len(events))
        for index, event in enumerate(events):
            if self.away is not None:
                raise BrokerUnavailable(self.away)
            if (refusal := self.judge(event)) is not None:
                report(index, refusal)
                continue
            self.arrived.append(event)
            if index == self.cut_after:
                type(self).cut_after = None
                raise BrokerUnavailable("the connection was lost")
            report(index)

    def close(self) -> None:
        self.is_open = False
