"""Redis Streams, on a redis-server of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from deadletter.outbox.cloud_events import CloudEvent
from deadletter.outbox.transport_tests import CollectedReports, TransportTests, unavailable
from deadletter.outbox.transports.base import BrokerUnavailable, Transport
from deadletter.outbox.transports.redis_streams import RedisStreams
from deadletter.status import FailureReason
from tests.brokers import RedisServer, free_port
from tests.outbox.cut_proxy import CutProxy
from tests.patience import wait_until

pytestmark = pytest.mark.process

#: Bytes of the reply to an XADD: "$15\r\n1763480000000-0\r\n", with one more where ids are equal.
REPLY = 22


class TestRedisStreams(TransportTests):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> Iterator[None]:
        self.server = redis_server
        yield
        redis_server.ensure_running()

    def make_transport(self, **options: Any) -> Transport:
        return RedisStreams({"url": self.server.url, **options})

    def received(self, topic: str) -> list[CloudEvent]:
        with self.server.client() as client:
            return [_event(fields) for _, fields in client.xrange(topic)]

    def make_unavailable(self) -> None:
        self.server.kill()

    def make_available(self) -> None:
        self.server.start()

    def unreachable_transport(self) -> Transport:
        return RedisStreams({"url": f"redis://user:{self.password}@127.0.0.1:{free_port()}/0"})

    def refused_topic(self) -> str:
        topic = f"{self.topic}.taken"
        with self.server.client() as client:
            client.set(topic, "a string, not a stream")
        return topic

    def test_streams_have_the_prefix(self) -> None:
        transport = self.transport(prefix="events:")
        event = self.event()

        self.publish(transport, [event])

        assert self.received(self.topic) == []
        assert self.received(f"events:{self.topic}") == [event]

    def test_streams_are_trimmed_to_about_maxlen(self) -> None:
        transport = self.transport(maxlen=100)

        self.publish(transport, self.events(1000))

        # Redis removes whole nodes, of 100 entries by default.
        assert 100 <= len(self.received(self.topic)) <= 200

    def test_a_wrong_password_is_unavailable_and_not_told(self) -> None:
        url = f"redis://:{self.password}@127.0.0.1:{self.server.port}/0"
        transport = RedisStreams({"url": url})

        with pytest.raises(BrokerUnavailable) as raised:
            transport.open()

        assert "invalid username-password pair" in str(raised.value)
        assert self.password not in str(raised.getrepr(chain=True))

    @pytest.mark.parametrize(
        ("broken", "whole", "text"),
        [
            (("maxmemory", "1"), ("maxmemory", "0"), "OutOfMemoryError"),
            (("min-replicas-to-write", "1"), ("min-replicas-to-write", "0"), "NOREPLICAS"),
        ],
    )
    def test_a_server_that_accepts_no_writes_is_unavailable(
        self, broken: tuple[str, str], whole: tuple[str, str], text: str
    ) -> None:
        transport = self.transport()
        event, reports = self.event(), CollectedReports()

        with self.server.client() as client:
            client.config_set(*broken)
            try:
                error = unavailable(transport, [event], reports)
            finally:
                client.config_set(*whole)

        assert text in str(error)
        assert reports.refusals == {}
        transport.open()
        assert self.publish(transport, [event]).confirmed == [0]
        assert self.received(self.topic) == [event]

    def test_a_server_that_cannot_save_is_unavailable(self) -> None:
        transport = self.transport()
        event = self.event()
        # Redis cannot put its snapshot where a folder is.
        obstacle = self.server.home / "dump.rdb"
        obstacle.mkdir()

        with self.server.client() as client:
            client.config_set("save", "3600 1")
            try:
                client.bgsave()
                wait_until(lambda: client.info()["rdb_last_bgsave_status"] == "err")
                error = unavailable(transport, [event], CollectedReports())
            finally:
                client.config_set("save", "")
                obstacle.rmdir()

        assert "MISCONF" in str(error)
        transport.open()
        assert self.publish(transport, [event]).confirmed == [0]

    def test_a_replica_is_unavailable(self) -> None:
        transport = self.transport()

        with self.server.client() as client:
            client.replicaof("127.0.0.1", str(free_port()))
            try:
                error = unavailable(transport, [self.event()], CollectedReports())
            finally:
                client.replicaof("NO", "ONE")

        assert "ReadOnlyError" in str(error)

    def test_a_stream_that_the_user_may_not_write_is_refused(self) -> None:
        with self.server.client() as client:
            client.acl_setuser(
                "north", enabled=True, passwords=["+pw"], keys=["tests.*"], commands=["+@all"]
            )
        url = f"redis://north:pw@127.0.0.1:{self.server.port}/0"
        transport = self.transport(url=url)

        reports = self.publish(transport, [self.event(), self.event(topic="other")])

        assert reports.confirmed == [0]
        assert reports.refused[1].reason == FailureReason.TRANSPORT_UNAVAILABLE

    def test_what_was_confirmed_before_the_connection_broke_is_reported(self) -> None:
        with CutProxy(self.server.port) as proxy:
            transport = self.transport(
                url=self.server.url.replace(str(self.server.port), str(proxy.port))
            )
            self.publish(transport, self.events(1))
            events, reports = self.events(50), CollectedReports()

            proxy.cut_after(10 * REPLY)
            error = unavailable(transport, events, reports)

        assert "Connection" in str(error)
        assert reports.confirmed in ([*range(9)], [*range(10)])
        # Redis has executed all, and once: redis-py has not sent them again.
        assert len(self.received(self.topic)) == 51

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

    def test_a_server_that_does_not_answer_is_unavailable(self) -> None:
        transport = self.transport()
        reports = CollectedReports()

        self.server.halt()
        try:
            with pytest.raises(BrokerUnavailable, match="Timeout"):
                transport.publish(self.events(3), reports, timeout=0.5)
        finally:
            self.server.resume()

        assert reports.refusals == {}


def _event(fields: dict[bytes, bytes]) -> CloudEvent:
    texts = {name.decode(): value.decode() for name, value in fields.items()}
    assert texts.pop("specversion") == "1.0"
    assert texts.pop("datacontenttype") == "application/json"
    headers = {
        name.removeprefix("header:"): texts.pop(name)
        for name in [*texts]
        if name.startswith("header:")
    }
    return CloudEvent(
        id=texts.pop("id"),
        topic=texts.pop("type"),
        source=texts.pop("source"),
        time=datetime.fromisoformat(texts.pop("time")),
        data=texts.pop("data"),
        key=texts.pop("partitionkey", None),
        headers=headers,
        **texts,
    )
