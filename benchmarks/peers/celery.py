"""Celery with Redis: two prefork children, a long prefetch, no results, no gossip."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from celery import Celery as App

from .. import work
from ..system import Payload, System, url

app = App("bench", broker=url().replace("unix://", "redis+socket://") or "memory://")
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=100,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="nothing")
def nothing(n: int, filling: str) -> None:
    work.nothing()


@app.task(name="pickup")
def pickup(sent: int, filling: str) -> None:
    work.pickup(sent)


TASKS = {"nothing": nothing, "pickup": pickup}


class Celery(System):
    name = "celery"
    title = "Celery + Redis"
    settings = "prefork 2, prefetch 100, early acknowledgement; Redis writes nothing to disk"
    store = "redis"
    rates = {"send-one": 1_200, "send-many": 1_200, "drain": 800}
    measures = ("send-one", "drain-1", "drain-2", "pickup", "idle")
    packages = ("celery", "redis")

    def open(self) -> None:
        self.producer = app.amqp.Producer(app.connection_for_write())

    def send_one(self, name: str, payload: Payload) -> None:
        TASKS[name].apply_async(kwargs=payload, producer=self.producer)

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        # It has no bulk form; used to fill the queue.
        for payload in payloads:
            self.send_one(name, payload)

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        options = ["--pool", "prefork", "--concurrency", "2", "--loglevel", "WARNING"]
        options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        command = [sys.executable, "-m", "celery", "--app", "benchmarks.peers.celery:app", "worker"]
        return [[*command, *options, "--hostname", f"bench{n}@%h"] for n in range(processes)]

    def left(self, url: str) -> int:
        import redis

        server = redis.Redis.from_url(url)
        return int(server.llen("celery") + server.hlen("unacked"))
