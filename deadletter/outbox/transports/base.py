"""What a transport does. `deadletter.outbox.transport_tests` has the tests for every transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ...status import FailureReason
from ..cloud_events import CloudEvent


class BrokerUnavailable(Exception):
    """
    The broker accepts nothing at the moment: it is away, blocked, or answers no more.

    Not the fault of a message: nothing is counted, the relay waits and tries again. The text has
    no credentials.
    """


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """The broker accepts other messages, and not this one."""

    reason: FailureReason
    text: str
    #: True: it would refuse the message always, for example because of its size.
    is_permanent: bool = False

    @classmethod
    def invalid(cls, text: str) -> BrokerRefusal:
        """Return the refusal of an event that no attempt would publish."""
        return cls(FailureReason.VALIDATION_FAILURE, text, is_permanent=True)


class Report(Protocol):
    def __call__(self, index: int, refusal: BrokerRefusal | None = None) -> None:
        """Note that the event at this index of the batch was confirmed, or refused."""


class Transport(ABC):
    """
    A connection to one broker, used by one thread.

    `options` is what `DEADLETTER["BROKERS"]` says of the broker. Building a transport connects to
    nothing, and raises ImproperlyConfigured, naming the option, for options that cannot work.
    """

    #: The options that this transport reads; any other is an error. Empty: it takes any.
    option_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    @abstractmethod
    def open(self) -> None:
        """
        Connect, if there is no connection or the broker has closed it. Raises BrokerUnavailable.

        Called before each batch, so it costs little while the connection is good.
        """

    @abstractmethod
    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        """
        Publish the events in this order, and report each as soon as its fate is known.

        Returns when each was reported. Raises BrokerUnavailable if that takes more than `timeout`
        seconds or the connection is lost: what was not reported until then may have arrived or not,
        and will be published again, with the same id. Afterwards the connection is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, if there is one; never raises."""

    def blocked(self) -> str | None:
        """
        Return why an open connection accepts nothing at the moment; None: it does.

        Called every few seconds while there is nothing to publish: a transport answers heartbeats
        here. Raises BrokerUnavailable if the connection is lost; it is closed then.
        """
        return None
