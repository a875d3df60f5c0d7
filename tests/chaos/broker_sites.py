"""
The broker of a run: a RabbitMQ node, a cluster of three, or Redis; a proxy for each relay process.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.brokers import Broker, RabbitMQCluster, RabbitMQServer, RedisServer, missing
from tests.outbox.cut_proxy import CutProxy

from .relays import broker_options
from .topics import QUEUE, REFUSED, TOPICS

ROOT = Path(__file__).resolve().parent.parent.parent
#: What a run may have as its broker. Redis writes its file before each answer, or every second.
KINDS = ("rabbitmq", "rabbitmq-cluster", "redis", "redis-everysec")


class BrokerSite:
    """The servers of one broker, and what can happen to them."""

    #: Of the client, for the collector.
    protocol = ""

    def __init__(self, servers: list[Any], end: ExitStack, seed: int) -> None:
        self.servers = servers
        self.chance = random.Random(f"broker {seed}")
        self.links: dict[int, CutProxy] = {}
        self._end = end

    def prepare(self) -> None:
        """Make what the events arrive in."""
        raise NotImplementedError

    def options(self, place: int) -> dict[str, Any]:
        """Return the setting BROKERS of the process in this place; its proxy is its own."""
        raise NotImplementedError

    def link(self, place: int) -> CutProxy:
        """Return the proxy through which a place reaches the (first) server."""
        if place not in self.links:
            self.links[place] = self._end.enter_context(CutProxy(self.servers[0].port))
        return self.links[place]

    def through(self, place: int) -> str:
        """Return the url of the first server behind the proxy of a place."""
        server = self.servers[0]
        return str(server.url.replace(f":{server.port}", f":{self.link(place).port}"))

    def collector(self, directory: Path) -> subprocess.Popen[bytes]:
        """Start the process that reads all events."""
        urls = [server.url for server in self.servers]
        with (directory / "collector.txt").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.collector", self.protocol, *urls],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    # What happens to it

    def hit(self, kind: str, seconds: float) -> None:
        """Let the servers suffer from this fault for so long; return when it is over."""
        if kind in {"memory_alarm", "disk_alarm"}:
            getattr(self, f"_{kind}")(seconds)
            return
        server: Broker = getattr(self, f"_{kind}")()
        time.sleep(seconds)
        if kind == "broker_halt":
            server.resume()
        else:
            server.start()

    def _broker_kill(self) -> Broker:
        server: Broker = self.chance.choice(self.servers)
        server.kill()
        return server

    def _broker_restart(self) -> Broker:
        server: Broker = self.chance.choice(self.servers)
        server.stop()
        return server

    def _broker_halt(self) -> Broker:
        server: Broker = self.chance.choice(self.servers)
        server.halt()
        return server


class RabbitMQSite(BrokerSite):
    protocol = "rabbitmq"

    def prepare(self) -> None:
        first = self.servers[0]
        with first.connection() as connection:
            channel = connection.channel()
            channel.queue_declare(
                QUEUE, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
            )
            for topic in TOPICS:
                channel.queue_bind(QUEUE, "amq.topic", routing_key=topic)
        for server in self.servers:
            # RabbitMQ 3.10 writes the name of a quorum queue half a second later: killed before,
            # it has forgotten the queue.
            server.control("eval", "[dets:sync(Table) || Table <- dets:all()].")

    def options(self, place: int) -> dict[str, Any]:
        others = [f"127.0.0.1:{server.port}" for server in self.servers[1:]]
        return broker_options(
            transport="tests.chaos.noted_transports.NotedRabbitMQ",
            url=self.through(place),
            hosts=others,
            connect_timeout=2,
        )

    def _memory_alarm(self, seconds: float) -> None:
        set_limit = "vm_memory_monitor:set_vm_memory_high_watermark"
        self._alarm(f"{set_limit}({{absolute, 1}})", f"{set_limit}(0.8)", seconds)

    def _disk_alarm(self, seconds: float) -> None:
        set_limit = "rabbit_disk_monitor:set_disk_free_limit"
        self._alarm(f'{set_limit}("999999GB")', f'{set_limit}("1MB")', seconds)

    def _alarm(self, begin: str, end: str, seconds: float) -> None:
        # In one call: rabbitmqctl takes seconds to start.
        pause = f"timer:sleep({seconds * 1000:.0f})"
        self.servers[0].control("eval", f"{begin}, {pause}, {end}.")

    def leader(self) -> RabbitMQServer:
        """Return the node that has the leader of the queue."""
        said = self.servers[0].control("list_queues", "name", "leader", "--no-table-headers")
        lines = [line.split("\t") for line in said.splitlines()]
        (name,) = [leader for queue, leader in lines if queue == QUEUE]
        (found,) = [server for server in self.servers if server.node == name]
        return found

    def _leader_kill(self) -> Broker:
        server = self.leader()
        server.kill()
        return server


class RedisSite(BrokerSite):
    protocol = "redis"

    def prepare(self) -> None:
        with self.servers[0].client() as client:
            # No stream, so that it refuses events.
            client.set(REFUSED, "no stream")

    def options(self, place: int) -> dict[str, Any]:
        return broker_options(
            transport="tests.chaos.noted_transports.NotedRedisStreams",
            url=self.through(place),
            connect_timeout=2,
        )

    def _memory_alarm(self, seconds: float) -> None:
        with self.servers[0].client() as client:
            client.config_set("maxmemory", 1)
            time.sleep(seconds)
            client.config_set("maxmemory", 0)


def missing_broker(kind: str) -> str:
    """Say why this broker cannot be started here, or nothing."""
    return missing(RabbitMQServer if kind.startswith("rabbitmq") else RedisServer)


@contextmanager
def broker_site(kind: str, seed: int) -> Iterator[BrokerSite]:
    """Start the broker of a run, with what the events arrive in."""
    home = Path(tempfile.mkdtemp(prefix="chaos-broker-"))
    with ExitStack() as end:
        end.callback(shutil.rmtree, home, ignore_errors=True)
        site: BrokerSite
        if kind == "rabbitmq-cluster":
            cluster = RabbitMQCluster(home)
            end.callback(cluster.close)
            cluster.start()
            site = RabbitMQSite(cluster.nodes, end, seed)
        elif kind == "rabbitmq":
            node = RabbitMQServer(home)
            end.callback(node.close)
            node.start()
            site = RabbitMQSite([node], end, seed)
        else:
            server = RedisServer(home, fsync="everysec" if kind == "redis-everysec" else "always")
            end.callback(server.close)
            server.start()
            site = RedisSite([server], end, seed)
        site.prepare()
        yield site
