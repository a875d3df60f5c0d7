"""chancy: the asyncio executor, many jobs at a time, polling again at once after a full batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from chancy import Chancy as App
from chancy import Queue, Worker, job

from .. import work
from ..system import Payload, System, url

CONCURRENCY = 1_000


@job()
async def nothing(*, n: int, filling: str) -> None:
    work.nothing()


@job()
async def pickup(*, sent: int, filling: str) -> None:
    work.pickup(sent)


JOBS = {"nothing": nothing, "pickup": pickup}


class Chancy(System):
    name = "chancy"
    title = "chancy"
    settings = f"async executor, concurrency {CONCURRENCY:,}, eager polling, no logging of jobs"
    rates = {"send-one": 600, "send-many": 2_000, "drain": 4_000}
    left_sql = "SELECT count(*) FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed')"
    packages = ("chancy", "psycopg")

    def setup(self) -> None:
        async def migrate() -> None:
            async with App(url()) as app:
                await app.migrate()
                await app.declare(
                    Queue(
                        "default",
                        concurrency=CONCURRENCY,
                        executor=App.Executor.Async,
                        polling_interval=1,
                        eager_polling=True,
                    )
                )

        asyncio.run(migrate())

    def open(self) -> None:
        self.app = App(url())

    def send_one(self, name: str, payload: Payload) -> None:
        self.app.sync_push(JOBS[name].job.with_kwargs(**payload))

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        jobs = [JOBS[name].job.with_kwargs(**payload) for payload in payloads]
        for _ in self.app.sync_push_many(jobs, batch_size=self.chunk):
            pass

    def work(self) -> None:
        async def run() -> None:
            # Its own logger prints two coloured lines for every job.
            quiet = logging.getLogger("quiet")
            async with App(url(), log=quiet) as app, Worker(app) as worker:
                await worker.wait_for_shutdown()

        asyncio.run(run())
