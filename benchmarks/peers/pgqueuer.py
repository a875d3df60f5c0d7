"""pgqueuer: asyncpg under uvloop, the batch size from which on it gets no faster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job

from .. import work
from ..system import Payload, System, url

BATCH = 100


class Pgqueuer(System):
    name = "pgqueuer"
    title = "pgqueuer"
    settings = f"asyncpg, uvloop, batch {BATCH} (500 is no faster), durable tables"
    rates = {"send-one": 1_200, "send-many": 20_000, "drain": 8_000}
    left_sql = "SELECT count(*) FROM pgqueuer"
    packages = ("pgqueuer", "asyncpg", "uvloop")

    def setup(self) -> None:
        async def install() -> None:
            await Queries(AsyncpgDriver(await asyncpg.connect(url()))).install()

        asyncio.run(install())

    def open(self) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.connection = self.runner.run(asyncpg.connect(url()))
        self.queries = Queries(AsyncpgDriver(self.connection))

    def send_one(self, name: str, payload: Payload) -> None:
        self.runner.run(self.queries.enqueue(name, json.dumps(payload).encode()))

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        bodies = [json.dumps(payload).encode() for payload in payloads]
        count = len(bodies)
        self.runner.run(self.queries.enqueue([name] * count, bodies, [0] * count))

    def work(self) -> None:
        async def run() -> None:
            queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url())))

            @queuer.entrypoint("nothing")
            async def nothing(job: Job) -> None:
                work.nothing()

            @queuer.entrypoint("pickup")
            async def pickup(job: Job) -> None:
                work.pickup(json.loads(job.payload or b"")["sent"])

            await queuer.run(batch_size=BATCH)

        uvloop.run(run())
