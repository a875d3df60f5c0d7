"""huey with SQLite: threads, no results, a short pause between looks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from huey import SqliteHuey

from .. import work
from ..system import Payload, System, url

huey = SqliteHuey("bench", filename=url() or ":memory:", results=False, fsync=True)


@huey.task()
def nothing(n: int, filling: str) -> None:
    work.nothing()


@huey.task()
def pickup(sent: int, filling: str) -> None:
    work.pickup(sent)


TASKS = {"nothing": nothing, "pickup": pickup}


class Huey(System):
    name = "huey"
    title = "huey on SQLite"
    settings = "4 threads, looks every 5 ms, fsync on; a message is deleted before it is handled"
    store = "sqlite"
    rates = {"send-one": 500, "send-many": 500, "drain": 500}
    measures = ("send-one", "drain-1", "drain-2", "pickup", "idle")
    left_sql = "SELECT count(*) FROM task"
    packages = ("huey",)

    def send_one(self, name: str, payload: Payload) -> None:
        TASKS[name](**payload)

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        # It has no bulk form; used to fill the queue.
        for payload in payloads:
            TASKS[name](**payload)

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        program = shutil.which("huey_consumer", path=str(Path(sys.executable).parent))
        options = [
            "-w",
            "4",
            "-d",
            "0.005",
            "-m",
            "0.005",
            "-b",
            "1",
            "--quiet",
            "-n",
            "-g",
            "TERM",
        ]
        command = [str(program), "benchmarks.peers.huey.huey", *options]
        return [command for _ in range(processes)]
