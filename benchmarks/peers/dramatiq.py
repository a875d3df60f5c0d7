"""dramatiq with Redis: eight threads in each process, its default."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from .. import work
from ..system import Payload, System, url

broker = RedisBroker(url=url() or "redis://")
dramatiq.set_broker(broker)


@dramatiq.actor
def nothing(n: int, filling: str) -> None:
    work.nothing()


@dramatiq.actor
def pickup(sent: int, filling: str) -> None:
    work.pickup(sent)


ACTORS = {"nothing": nothing, "pickup": pickup}


class Dramatiq(System):
    name = "dramatiq"
    title = "dramatiq + Redis"
    settings = "8 threads in each process; Redis writes nothing to disk"
    store = "redis"
    rates = {"send-one": 2_500, "send-many": 2_500, "drain": 1_800}
    measures = ("send-one", "drain-1", "drain-2", "pickup", "idle")
    packages = ("dramatiq", "redis")

    def send_one(self, name: str, payload: Payload) -> None:
        ACTORS[name].send(**payload)

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        # It has no bulk form; used to fill the queue.
        for payload in payloads:
            ACTORS[name].send(**payload)

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        options = ["--processes", str(processes), "--threads", "8", "--skip-logging"]
        return [[sys.executable, "-m", "dramatiq", "benchmarks.peers.dramatiq", *options]]

    def left(self, url: str) -> int:
        import redis

        # Every message stays in this hash until it is acknowledged.
        return int(redis.Redis.from_url(url).hlen("dramatiq:default.msgs"))
