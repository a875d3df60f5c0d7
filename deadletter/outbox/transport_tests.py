"""
Tests that every transport must pass, for those who write one.

    class TestMyTransport(TransportTests):
        def make_transport(self, **options):
            return MyTransport({"url": "my://127.0.0.1", **options})

        def received(self, topic):
            ...

pytest collects the subclass. It needs a real broker, which the tests stop and start again.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import uuid4

from ..status import FailureReason
from .cloud_events import CloudEvent
from .transports.base import BrokerRefusal, BrokerUnavailable, Transport

#: Seconds for a batch: enough for the slowest machine.
PATIENCE = 300.0


class CollectedReports:
    """Collects what a transport reports; fails if it reports an event twice."""

    def __init__(self) -> None:
        self.refusals: dict[int, BrokerRefusal | None] = {}

    def __call__(self, index: int, refusal: BrokerRefusal | None = None) -> None:
        assert index not in self.refusals, f"event {index} was reported twice"
        self.refusals[index] = refusal

    @property
    def confirmed(self) -> list[int]:
        return sorted(index for index, refusal in self.refusals.items() if refusal is None)

    @property
    def refused(self) -> dict[int, BrokerRefusal]:
        return {index: refusal for index, refusal in self.refusals.items() if refusal is not None}


class TransportTests:
    """What a transport does, and what it does when its broker is away."""

    #: Options with which events of more than 1000 bytes are refused; None: there is no such limit.
    small_limit: dict[str, Any] | None = {"max_size": 1000}
    #: A password that `unreachable_transport` contains.
    password = "s3cret-of-the-broker"  # noqa: S105

    def setup_method(self) -> None:
        self._transports: list[Transport] = []
        #: Unique for each test, so that no test reads what another has published.
        self.topic = f"tests.{uuid4().hex}"
        self._numbers = count()

    def teardown_method(self) -> None:
        for transport in self._transports:
            transport.close()

    # What a subclass defines

    def make_transport(self, **options: Any) -> Transport:
        """Return a transport of the broker, which is not open."""
        raise NotImplementedError

    def received(self, topic: str) -> list[CloudEvent]:
        """Return what has arrived for a topic since the beginning, in order."""
        raise NotImplementedError

    def prepare_topic(self, topic: str) -> None:
        """Make the broker keep what is published to a topic, if it would not do so by itself."""

    def make_unavailable(self) -> None:
        """End the broker at once."""
        raise NotImplementedError

    def make_available(self) -> None:
        """Start the broker again, with what it had confirmed."""
        raise NotImplementedError

    def unreachable_transport(self) -> Transport:
        """Return a transport to an address that nobody listens on, with `password`."""
        raise NotImplementedError

    def refused_topic(self) -> str | None:
        """Return a topic whose events the broker refuses at the moment; None: there is none."""
        return None

    # Helpers

    def transport(self, **options: Any) -> Transport:
        """Return an open transport, which is closed after the test."""
        self.prepare_topic(self.topic)
        transport = self.make_transport(**options)
        self._transports.append(transport)
        transport.open()
        return transport

    def event(self, **changes: Any) -> CloudEvent:
        """Return an event of the test's topic with the next number as its id."""
        number = next(self._numbers)
        event = CloudEvent(
            id=str(number),
            topic=self.topic,
            source="/tests",
            time=datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC),
            data=json.dumps({"number": number}),
            key=f"key-{number % 3}",
        )
        return replace(event, **changes)

    def events(self, amount: int) -> list[CloudEvent]:
        return [self.event() for _ in range(amount)]

    def publish(self, transport: Transport, events: Sequence[CloudEvent]) -> CollectedReports:
        reports = CollectedReports()
        transport.publish(events, reports, timeout=PATIENCE)
        return reports

    # The tests

    def test_events_arrive_as_they_are_and_are_confirmed(self) -> None:
        transport = self.transport()
        plain = self.event(key=None)
        full = self.event(
            data='{"name": "Zoë ☃", "quote": "\\"", "list": [1, null]}',
            key="customer/7 ü",
            headers={"tenant": "north", "Über": "ß", "empty": ""},
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            tracestate="vendor=1",
        )

        reports = self.publish(transport, [plain, full])

        assert reports.refusals == {0: None, 1: None}
        assert self.received(self.topic) == [plain, full]

    def test_an_empty_batch_is_done_at_once(self) -> None:
        transport = self.transport()

        assert self.publish(transport, []).refusals == {}

    def test_batches_of_one_connection_arrive_in_order(self) -> None:
        transport = self.transport()
        events = self.events(30)

        for start in (0, 10, 20):
            assert self.publish(transport, events[start : start + 10]).confirmed == [*range(10)]

        assert self.received(self.topic) == events

    def test_a_large_batch_arrives_in_order(self) -> None:
        transport = self.transport()
        events = self.events(5000)

        reports = self.publish(transport, events)

        assert reports.confirmed == [*range(5000)]
        assert self.received(self.topic) == events

    def test_a_batch_of_large_events_arrives_in_order(self) -> None:
        transport = self.transport()
        # 20 MB: more than the buffers of both ends.
        events = [self.event(data=json.dumps("x" * 1_000_000)) for _ in range(20)]

        reports = self.publish(transport, events)

        assert reports.confirmed == [*range(20)]
        assert self.received(self.topic) == events

    def test_a_refused_event_does_not_keep_the_others_back(self) -> None:
        if (topic := self.refused_topic()) is None:
            return
        transport = self.transport()
        events = self.events(4)
        events.insert(2, self.event(topic=topic))

        reports = self.publish(transport, events)

        assert reports.confirmed == [0, 1, 3, 4]
        assert list(reports.refused) == [2]
        assert reports.refused[2].reason == FailureReason.TRANSPORT_UNAVAILABLE
        assert topic in reports.refused[2].text
        assert self.publish(transport, [last := self.event()]).confirmed == [0]
        assert self.received(self.topic) == [*events[:2], *events[3:], last]

    def test_an_event_that_is_too_large_is_refused_for_good(self) -> None:
        if self.small_limit is None:
            return
        transport = self.transport(**self.small_limit)
        events = [self.event(), self.event(data=json.dumps("x" * 1000)), self.event()]

        reports = self.publish(transport, events)

        assert reports.confirmed == [0, 2]
        assert reports.refused[1].reason == FailureReason.VALIDATION_FAILURE
        assert reports.refused[1].is_permanent
        assert "1002 bytes" in reports.refused[1].text
        assert self.received(self.topic) == [events[0], events[2]]

    def test_text_that_is_not_unicode_is_refused_for_good(self) -> None:
        transport = self.transport()
        events = [self.event(), self.event(data='"\ud800"'), self.event()]

        reports = self.publish(transport, events)

        assert reports.confirmed == [0, 2]
        assert reports.refused[1].is_permanent
        assert self.received(self.topic) == [events[0], events[2]]

    def test_headers_and_keys_that_are_not_unicode_are_refused_for_good(self) -> None:
        transport = self.transport()
        damaged = [
            self.event(headers={"tenant": "\ud800"}),
            self.event(headers={"\ud800": "north"}),
            self.event(key="\ud800"),
        ]
        whole = self.event()

        reports = self.publish(transport, [*damaged, whole])

        assert reports.confirmed == [3]
        assert all(reports.refused[index].is_permanent for index in range(3))
        assert self.received(self.topic) == [whole]

    def test_open_and_close_may_be_repeated(self) -> None:
        self.prepare_topic(self.topic)
        transport = self.make_transport()
        transport.close()
        first, second = self.events(2)

        for event in (first, second):
            transport.open()
            transport.open()
            assert transport.blocked() is None
            assert self.publish(transport, [event]).confirmed == [0]
            transport.close()
            transport.close()

        assert self.received(self.topic) == [first, second]

    def test_a_closed_transport_publishes_nothing(self) -> None:
        transport = self.transport()
        transport.close()

        with_error = unavailable(transport, [self.event()], CollectedReports())

        assert with_error is not None
        assert self.received(self.topic) == []

    def test_an_error_of_the_caller_is_not_hidden(self) -> None:
        transport = self.transport()

        def fail(index: int, refusal: BrokerRefusal | None = None) -> None:
            raise OSError("the database is away")

        error = None
        try:
            transport.publish([self.event()], fail, timeout=PATIENCE)
        except OSError as found:
            error = found
        transport.open()

        assert str(error) == "the database is away"
        assert self.publish(transport, [self.event()]).confirmed == [0]

    def test_an_unreachable_broker_is_unavailable_and_the_password_is_not_told(self) -> None:
        transport = self.unreachable_transport()
        self._transports.append(transport)

        error = None
        try:
            transport.open()
        except BrokerUnavailable as found:
            error = found

        assert error is not None, "open() must raise BrokerUnavailable"
        told = "".join(traceback.format_exception(error)) + repr(error) + repr(transport)
        assert self.password not in told
        assert all(self.password not in str(each) + repr(each) for each in _chain(error))

    def test_a_lost_broker_is_unavailable_until_it_is_back(self) -> None:
        transport = self.transport()
        first, second = self.events(2)
        assert self.publish(transport, [first]).confirmed == [0]
        reports = CollectedReports()

        self.make_unavailable()
        try:
            failed = unavailable(transport, [second], reports)
            reopened = True
            try:
                transport.open()
            except BrokerUnavailable:
                reopened = False
        finally:
            self.make_available()

        assert failed is not None
        assert reports.refusals == {}
        assert not reopened
        transport.open()
        assert self.publish(transport, [second]).confirmed == [0]
        assert self.received(self.topic) == [first, second]

    def test_an_idle_connection_that_was_lost_is_opened_again(self) -> None:
        transport = self.transport()
        first, second = self.events(2)
        assert self.publish(transport, [first]).confirmed == [0]

        self.make_unavailable()
        self.make_available()
        transport.open()

        assert self.publish(transport, [second]).confirmed == [0]
        assert self.received(self.topic) == [first, second]

    def test_what_was_confirmed_has_arrived_although_the_broker_dies(self) -> None:
        transport = self.transport()
        events = self.events(5000)
        reports = CollectedReports()

        def kill_early(index: int, refusal: BrokerRefusal | None = None) -> None:
            reports(index, refusal)
            if len(reports.refusals) == 100:
                self.make_unavailable()

        try:
            unavailable(transport, events, kill_early)
        finally:
            self.make_available()
        confirmed = {events[index].id for index in reports.confirmed}
        arrived = [event.id for event in self.received(self.topic)]
        rest = [event for event in events if event.id not in confirmed]
        transport.open()
        again = self.publish(transport, rest)

        assert len(confirmed) >= 100
        assert confirmed <= set(arrived)
        # As far as they came, they came in order.
        assert arrived == [event.id for event in events[: len(arrived)]]
        assert again.confirmed == [*range(len(rest))]
        now = [event.id for event in self.received(self.topic)]
        assert list(dict.fromkeys(now)) == [event.id for event in events]


def unavailable(
    transport: Transport, events: Sequence[CloudEvent], report: Any
) -> BrokerUnavailable | None:
    """Publish, and return the error that says that the broker is away."""
    try:
        transport.publish(events, report, timeout=PATIENCE)
    except BrokerUnavailable as error:
        return error
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
