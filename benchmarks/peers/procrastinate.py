"""procrastinate: asynchronous tasks, thirty at a time."""

from __future__ import annotations

from collections.abc import Sequence

from procrastinate import App, PsycopgConnector

from .. import work
from ..system import Payload, System, url

CONCURRENCY = 30

app = App(connector=PsycopgConnector(conninfo=url()))


@app.task(name="nothing")
async def nothing(n: int, filling: str) -> None:
    work.nothing()


@app.task(name="pickup")
async def pickup(sent: int, filling: str) -> None:
    work.pickup(sent)


TASKS = {"nothing": nothing, "pickup": pickup}


class Procrastinate(System):
    name = "procrastinate"
    title = "procrastinate"
    settings = f"concurrency {CONCURRENCY}, LISTEN/NOTIFY"
    rates = {"send-one": 600, "send-many": 5_000, "drain": 400}
    left_sql = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    packages = ("procrastinate", "psycopg")

    def setup(self) -> None:
        with app.open():
            app.schema_manager.apply_schema()

    def open(self) -> None:
        app.open()

    def send_one(self, name: str, payload: Payload) -> None:
        TASKS[name].defer(**payload)

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        TASKS[name].batch_defer(*payloads)

    def work(self) -> None:
        app.run_worker(concurrency=CONCURRENCY)
