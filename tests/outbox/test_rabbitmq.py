"""RabbitMQ, on a rabbitmq-server of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import amqp
import pytest

from deadletter.outbox.cloud_events import CloudEvent
from deadletter.outbox.transport_tests import (
    PATIENCE,
    CollectedReports,
    TransportTests,
    unavailable,
)
from deadletter.outbox.transports.base import BrokerUnavailable, Transport
from deadletter.outbox.transports.rabbitmq import RabbitMQ
from deadletter.status import FailureReason
from tests.brokers import RabbitMQServer, free_port
from tests.outbox.cut_proxy import CutProxy
from tests.patience import wait_until

pytestmark = pytest.mark.process

#: A durable quorum queue for the topics of all tests.
QUEUE = "everything"


@pytest.fixture(scope="module")
def queue(rabbitmq_server: RabbitMQServer) -> str:
    """Declare the queue of all tests."""
    declare(rabbitmq_server, QUEUE, ["tests.#"])
    # RabbitMQ 3.10 writes the name of a quorum queue half a second later: killed before, it has
    # forgotten the queue.
    rabbitmq_server.control("eval", "[dets:sync(Table) || Table <- dets:all()].")
    return QUEUE


class TestRabbitMQ(TransportTests):
    @pytest.fixture(autouse=True)
    def _server(self, rabbitmq_server: RabbitMQServer, queue: str) -> Iterator[None]:
        self.server = rabbitmq_server
        #: What was read: reading removes it from the queue.
        self.taken: list[CloudEvent] = []
        yield
        rabbitmq_server.ensure_running()

    def make_transport(self, **options: Any) -> Transport:
        return RabbitMQ({"url": self.server.url, **options})

    def received(self, topic: str) -> list[CloudEvent]:
        self.taken += map(_event, read(self.server, QUEUE))
        return [event for event in self.taken if event.topic == topic]

    def make_unavailable(self) -> None:
        self.server.kill()

    def make_available(self) -> None:
        self.server.start()
        # Waits until the queue has a leader.
        self.received(self.topic)

    def unreachable_transport(self) -> Transport:
        return RabbitMQ({"url": f"amqp://user:{self.password}@127.0.0.1:{free_port()}"})

    def refused_topic(self) -> str:
        return f"unbound.{self.topic}"

    def test_messages_are_persistent_cloud_events_in_binary_mode(self) -> None:
        transport = self.transport()
        event = self.event(headers={"tenant": "north"})

        self.publish(transport, [event])

        message = read(self.server, QUEUE)[-1]
        assert message.body == event.data.encode()
        assert message.properties == {
            "content_type": "application/json",
            "delivery_mode": 2,
            "message_id": "0",
            "timestamp": int(event.time.timestamp()),
            "application_headers": {
                "tenant": "north",
                "cloudEvents:specversion": "1.0",
                "cloudEvents:id": "0",
                "cloudEvents:source": "/tests",
                "cloudEvents:type": self.topic,
                "cloudEvents:time": "2026-05-04T03:02:01+00:00",
                "cloudEvents:partitionkey": "key-0",
            },
        }

    def test_an_unroutable_event_names_exchange_and_routing_key(self) -> None:
        transport = self.transport()

        reports = self.publish(transport, [self.event(topic="nobody.listens"), self.event()])

        assert reports.confirmed == [1]
        assert reports.refused[0].text == (
            "unroutable: no queue is bound to exchange 'amq.topic' for routing key "
            "'nobody.listens'; bind a queue, or set the broker's option mandatory to False if "
            "nobody has to receive it"
        )
        assert not reports.refused[0].is_permanent

    def test_unroutable_events_among_thousands_are_found(self) -> None:
        transport = self.transport()
        events = self.events(3000)
        for index in range(0, 3000, 7):
            events[index] = self.event(topic="nobody.listens", data=json.dumps("x" * 2000))

        reports = self.publish(transport, events)

        assert sorted(reports.refused) == [*range(0, 3000, 7)]
        assert self.received(self.topic) == [e for e in events if e.topic == self.topic]

    def test_without_mandatory_an_unroutable_event_is_dropped(self) -> None:
        transport = self.transport(mandatory=False)

        assert self.publish(transport, [self.event(topic="nobody.listens")]).confirmed == [0]

    def test_an_exchange_and_quorum_queues_are_declared(self) -> None:
        transport = self.make_transport(
            exchange=f"x-{self.topic}",
            declare={"exchange_type": "topic", "queues": {self.topic: ["orders.#", "bills.*"]}},
        )
        self._transports.append(transport)
        transport.open()
        events = [self.event(topic="orders.a.b"), self.event(topic="bills.c")]

        assert self.publish(transport, events).confirmed == [0, 1]

        assert [_event(message) for message in read(self.server, self.topic)] == events
        found = self.server.control("list_queues", "name", "type", "durable", "--no-table-headers")
        assert f"{self.topic}\tquorum\ttrue" in found
        # What exists as it is declared is left as it is.
        transport.close()
        transport.open()

    def test_a_queue_that_exists_otherwise_is_not_changed(self) -> None:
        with self.server.connection() as connection:
            connection.channel().queue_declare(self.topic, durable=True, auto_delete=False)
        transport = self.make_transport(declare={"queues": {self.topic: ["#"]}})

        with pytest.raises(BrokerUnavailable, match="inequivalent arg 'x-queue-type'"):
            transport.open()

    def test_a_missing_exchange_is_named(self) -> None:
        transport = self.transport(exchange="no-such")
        reports = CollectedReports()

        error = unavailable(transport, self.events(2), reports)

        assert "has no exchange 'no-such': create it" in str(error)
        assert reports.refusals == {}

    def test_what_amqp_cannot_express_is_refused(self) -> None:
        transport = self.transport()
        events = [
            self.event(topic="t" * 256),
            self.event(topic="ü" * 128),
            self.event(id="i" * 256),
            self.event(headers={"n" * 256: "value"}),
            self.event(headers={"name": "v" * 131_072}),
            self.event(),
        ]

        reports = self.publish(transport, events)

        assert reports.confirmed == [5]
        assert [refusal.is_permanent for refusal in reports.refused.values()] == [True] * 5
        assert {r.reason for r in reports.refused.values()} == {FailureReason.VALIDATION_FAILURE}
        assert self.received(self.topic) == [events[5]]

    def test_the_largest_names_are_accepted(self) -> None:
        transport = self.transport(mandatory=False)
        events = [
            self.event(topic="t" * 255),
            self.event(id="i" * 255),
            self.event(headers={"n" * 255: "v" * 100_000}),
            self.event(headers={"name": "v" * 129_000}),
        ]

        assert self.publish(transport, events).confirmed == [0, 1, 2, 3]

    def test_the_limit_of_the_broker_is_learned_from_its_refusal(self) -> None:
        large = self.event(data=json.dumps("x" * 2000))
        events, reports = [self.event(), large, self.event()], CollectedReports()

        with setting(self.server, "max_message_size", "1000"):
            transport = self.transport()
            error = unavailable(transport, events, reports)
            transport.open()
            again = self.publish(transport, [large, *events])

        assert "PreconditionFailed" in str(error)
        assert reports.refused[1].is_permanent
        assert reports.refused[1].text == "the data has 2002 bytes; the broker takes 1000"
        assert sorted(again.refused) == [0, 2]
        assert again.confirmed == [1, 3]

    def test_a_topic_that_the_user_may_not_write_is_refused(self) -> None:
        self.server.control("add_user", "north", "pw")
        self.server.control("set_permissions", "north", ".*", ".*", ".*")
        self.server.control("set_topic_permissions", "north", "amq.topic", "^tests", ".*")
        url = f"amqp://north:pw@127.0.0.1:{self.server.port}"
        transport = self.transport(url=url)
        events = [self.event(), self.event(topic="other"), self.event(), self.event(topic="other")]
        reports = CollectedReports()

        error = unavailable(transport, events, reports)

        assert "AccessRefused" in str(error)
        assert sorted(reports.refused) == [1, 3]
        assert "may not write to topic 'other'" in reports.refused[1].text
        assert not reports.refused[1].is_permanent
        rest = [event for index, event in enumerate(events) if index not in reports.refusals]
        transport.open()
        assert self.publish(transport, rest).refused == {}

    def test_a_wrong_password_is_unavailable_and_not_told(self) -> None:
        url = f"amqp://{self.server.user}:{self.password}@127.0.0.1:{self.server.port}"
        transport = RabbitMQ({"url": url})

        with pytest.raises(BrokerUnavailable) as raised:
            transport.open()

        assert "ACCESS_REFUSED" in str(raised.value)
        assert self.password not in str(raised.getrepr(chain=True))

    def test_a_full_queue_that_rejects_is_unavailable_after_the_rest_was_reported(self) -> None:
        # Not a quorum queue: it would let a whole batch pass before it rejects.
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        declare(self.server, self.topic, [f"full.{self.topic}"], arguments)
        transport = self.transport()
        full = [self.event(topic=f"full.{self.topic}") for _ in range(50)]
        events, reports = [*full, self.event()], CollectedReports()

        error = unavailable(transport, events, reports)

        assert "(basic.nack)" in str(error)
        assert reports.refusals == {0: None, 50: None}

    def test_the_next_node_is_tried(self) -> None:
        own = f"127.0.0.1:{self.server.port}"
        url = self.server.url.replace(str(self.server.port), str(free_port()))
        transport = self.transport(url=url, hosts=[own])

        assert self.publish(transport, [self.event()]).confirmed == [0]

    def test_what_was_confirmed_before_the_connection_broke_is_reported(self) -> None:
        with CutProxy(self.server.port) as proxy:
            url = self.server.url.replace(str(self.server.port), str(proxy.port))
            transport = self.transport(url=url)
            self.publish(transport, self.events(1))
            events, reports = self.events(2000), CollectedReports()

            # A confirm has 21 bytes, for one message or for many.
            proxy.cut_after(21)
            error = unavailable(transport, events, reports)

        assert error is not None
        assert len(reports.confirmed) >= 1
        # Lower numbers were confirmed with the first.
        assert reports.confirmed == [*range(len(reports.confirmed))]
        arrived = [event.id for event in self.received(self.topic)]
        assert {events[index].id for index in reports.confirmed} <= set(arrived)

    def test_a_broker_that_does_not_answer_is_unavailable(self) -> None:
        transport = self.transport()
        self.publish(transport, self.events(1))
        reports = CollectedReports()

        self.server.halt()
        try:
            with pytest.raises(BrokerUnavailable, match="timed out"):
                transport.publish(self.events(3), reports, timeout=0.5)
        finally:
            self.server.resume()

        assert reports.refusals == {}

    def test_a_halted_broker_that_reads_nothing_does_not_hold_the_writer(self) -> None:
        transport = self.transport()
        self.publish(transport, self.events(1))
        # More than the buffers of both ends.
        events = [self.event(data=json.dumps("x" * 1_000_000)) for _ in range(30)]

        self.server.halt()
        try:
            # Not an error of the kernel, which ends connections of py-amqp after a second.
            with pytest.raises(BrokerUnavailable, match="TimeoutError: timed out"):
                transport.publish(events, CollectedReports(), timeout=4)
        finally:
            self.server.resume()

    def test_a_batch_is_published_over_tls(self) -> None:
        transport = self.transport(
            url=self.server.tls_url, ssl={"ca_file": str(self.server.certificate)}
        )
        # 5 MB, and many small ones.
        events = [self.event(data=json.dumps("x" * 1_000_000)) for _ in range(5)]
        events += self.events(1000)

        assert self.publish(transport, events).confirmed == [*range(1005)]
        assert transport.blocked() is None
        assert self.publish(transport, [last := self.event()]).confirmed == [0]
        assert self.received(self.topic) == [*events, last]

    def test_a_certificate_that_is_not_trusted_is_refused(self) -> None:
        transport = self.make_transport(url=self.server.tls_url)

        with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            transport.open()

    def test_a_certificate_for_another_name_is_refused(self) -> None:
        # Another way to write 127.0.0.1, which is not in the certificate.
        url = self.server.tls_url.replace("@127.0.0.1", "@127.1")
        transport = self.make_transport(url=url, ssl={"ca_file": str(self.server.certificate)})

        with pytest.raises(BrokerUnavailable, match=r"(Hostname|IP address) mismatch"):
            transport.open()

    def test_without_verification_any_certificate_is_accepted(self) -> None:
        transport = self.transport(url=self.server.tls_url, ssl={"verify": False})

        assert self.publish(transport, [self.event()]).confirmed == [0]

    def test_heartbeats_are_answered_while_there_is_nothing_to_publish(self) -> None:
        transport = self.transport(heartbeat=1)
        events = self.events(2)
        self.publish(transport, events[:1])
        connection = transport._connection
        # The broker closes a connection that is silent for two intervals.
        for _ in range(3):
            before = connection.bytes_recv
            wait_until(
                lambda before=before: not transport.blocked() and connection.bytes_recv > before
            )

        assert transport._connection is connection
        assert self.publish(transport, events[1:]).confirmed == [0]

    def test_a_connection_that_the_broker_closed_for_silence_is_opened_again(self) -> None:
        transport = self.transport(heartbeat=1)
        self.publish(transport, self.events(1))

        wait_until(lambda: not list_connections(self.server))
        transport.open()

        assert self.publish(transport, [self.event()]).confirmed == [0]

    def test_an_alarm_blocks_a_new_connection_after_one_message(self) -> None:
        events, reports = self.events(2000), CollectedReports()

        with alarm(self.server), CutProxy(self.server.port) as proxy:
            url = self.server.url.replace(str(self.server.port), str(proxy.port))
            transport = self.transport(url=url)
            before = proxy.written
            with pytest.raises(BrokerUnavailable, match="blocks publishers"):
                transport.publish(events, reports, timeout=1)
            written = proxy.written - before
        transport = self.transport()
        rest = [event for index, event in enumerate(events) if index not in reports.refusals]

        assert reports.confirmed in ([], [0])
        assert 0 < written < 1000
        assert len(self.publish(transport, rest).confirmed) == len(rest)
        # Only the first was written, so only the first may arrive twice.
        arrived = [event for event in self.received(self.topic) if event != events[0]]
        assert arrived == events[1:]

    def test_an_alarm_of_some_seconds_delays_a_batch(self) -> None:
        transport = self.transport()
        self.publish(transport, self.events(1))
        connection = transport._connection
        # More than the buffers of both ends: the kernel, too, must wait for the broker.
        events = [self.event(data=json.dumps("x" * 100_000)) for _ in range(200)]
        reports = CollectedReports()
        thread = threading.Thread(
            target=transport.publish, args=(events, reports), kwargs={"timeout": PATIENCE}
        )

        with alarm(self.server):
            thread.start()
            wait_until(lambda: connection.is_blocked)
            # Each call of rabbitmqctl takes seconds, too.
            self.server.control("list_users")
        thread.join(PATIENCE)

        assert reports.confirmed == [*range(200)]
        assert transport.blocked() is None
        assert transport._connection is connection
        assert self.received(self.topic)[1:] == events


@contextmanager
def alarm(server: RabbitMQServer) -> Iterator[None]:
    """Let the broker believe that it has no memory left."""
    server.control("set_vm_memory_high_watermark", "absolute", "1")
    try:
        yield
    finally:
        server.control("set_vm_memory_high_watermark", "0.8")


@contextmanager
def setting(server: RabbitMQServer, name: str, value: str) -> Iterator[None]:
    """Change a setting of the broker; channels read it when they are opened."""
    before = server.control("eval", f"element(2, application:get_env(rabbit, {name})).").strip()
    server.control("eval", f"application:set_env(rabbit, {name}, {value}).")
    try:
        yield
    finally:
        server.control("eval", f"application:set_env(rabbit, {name}, {before}).")


def declare(
    server: RabbitMQServer,
    queue: str,
    keys: Sequence[str],
    arguments: Mapping[str, Any] = MappingProxyType({"x-queue-type": "quorum"}),
) -> None:
    """Make a durable queue and bind it."""
    with server.connection() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments=dict(arguments))
        for key in keys:
            channel.queue_bind(queue, "amq.topic", routing_key=key)


def read(server: RabbitMQServer, queue: str) -> list[Any]:
    """
    Take what a queue holds, up to a mark that we put at its end.

    The number of messages that the broker tells is not exact after a restart.
    """
    found: list[Any] = []
    mark = uuid4().hex
    with server.connection() as connection:
        channel = connection.channel()
        channel.confirm_select()
        answers: list[str] = []
        channel.events["basic_ack"].add(lambda tag, multiple: answers.append("ack"))
        channel.events["basic_nack"].add(lambda tag, multiple: answers.append("nack"))
        # A quorum queue rejects what is published before it has elected its leader.
        while "ack" not in answers:
            answers.clear()
            channel.basic_publish(amqp.Message(b"", message_id=mark), routing_key=queue)
            while not answers:
                connection.drain_events(timeout=PATIENCE)
        # With acknowledgements the broker would stop after 2000.
        channel.basic_consume(queue, callback=found.append, no_ack=True)
        while not found or found[-1].properties.get("message_id") != mark:
            connection.drain_events(timeout=PATIENCE)
    return [message for message in found if message.headers]


def list_connections(server: RabbitMQServer) -> list[str]:
    return server.control("list_connections", "name", "--no-table-headers").split()


def _event(message: Any) -> CloudEvent:
    headers = dict(message.headers)
    assert headers.pop("cloudEvents:specversion") == "1.0"
    return CloudEvent(
        id=headers.pop("cloudEvents:id"),
        topic=headers.pop("cloudEvents:type"),
        source=headers.pop("cloudEvents:source"),
        time=datetime.fromisoformat(headers.pop("cloudEvents:time")),
        data=message.body.decode(),
        key=headers.pop("cloudEvents:partitionkey", None),
        traceparent=headers.pop("cloudEvents:traceparent", None),
        tracestate=headers.pop("cloudEvents:tracestate", None),
        headers=headers,
    )
