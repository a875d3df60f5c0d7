"""
What do schedules cost a worker that has nothing to do?

    python -m benchmarks.schedules                     # this tree
    python -m benchmarks.schedules --before ../before  # and another one, which knows no schedules

An idle worker of each runs for a while, all at once, each on a database of its own in a private
PostgreSQL server: without schedules, and with 10,000 that are not due. The cost is processor time,
which other work on the machine hardly changes. Then workers drain a queue, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from tests.private_postgres import private_server

from .processes import cpu, started

ROOT = Path(__file__).resolve().parent.parent
SCHEDULES, MESSAGES, ROUNDS = 10_000, 2_000, 5
WARM_UP = 15

FILL = """
import datetime, django
django.setup()
from deadletter import clock
from deadletter.models import Schedule
now = clock.now("default")
rows = []
for n in range({count}):
    row = Schedule(name=f"schedule {{n}}", target="sample.work", cron=f"{{n % 60}} 3 1 * *",
                   time_zone="Europe/Berlin", created_at=now)
    row.plan(now)
    rows.append(row)
Schedule.objects.bulk_create(rows)
"""
SEND = """
import django
django.setup()
from deadletter import Outgoing, send_many
send_many([Outgoing("sample.work", {{}}) for _ in range({count})])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a tree of the project to compare with")
    parser.add_argument("--seconds", type=float, default=60, help="idle time; 0: only drain")
    arguments = parser.parse_args()
    cases = {"without schedules": (ROOT, 0), f"{SCHEDULES:,} schedules": (ROOT, SCHEDULES)}
    if arguments.before is not None:
        cases = {"before": (arguments.before.resolve(), 0), **cases}
    with private_server() as server:
        sites = {
            name: Site(name, server.url, f"site{n}", tree)
            for n, (name, (tree, _)) in enumerate(cases.items())
        }
        for name, (_, count) in cases.items():
            if count:
                sites[name].run("-c", FILL.format(count=count))
        if arguments.seconds:
            measure_idle(list(sites.values()), arguments.seconds)
        measure_drain(list(sites.values()))


class Site:
    """A tree with a database of its own."""

    def __init__(self, name: str, url: str, database: str, tree: Path) -> None:
        self.name, self.tree, self.database = name, tree, database
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}")
        self.server, self.url = url, url.replace("/postgres?", f"/{database}?")
        self.run("manage.py", "migrate", "-v", "0")

    @property
    def environment(self) -> dict[str, str]:
        own = {"DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        return {**os.environ, **own, "PYTHONPATH": str(self.tree), "LOG_LEVEL": "ERROR"}

    def run(self, *command: str) -> None:
        subprocess.run([sys.executable, *command], cwd=self.tree, env=self.environment, check=True)

    def worker(self, *options: str) -> list[str]:
        return [sys.executable, str(self.tree / "manage.py"), "run_worker", *options]

    def transactions(self) -> int:
        with psycopg.connect(self.server, autocommit=True) as connection:
            row = connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s",
                [self.database],
            ).fetchone()
        return int(row[0]) if row else 0


def measure_idle(sites: list[Site], seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running = {}
        for site in sites:
            log = Path(folder) / site.database
            (worker,) = stack.enter_context(started([site.worker()], site.environment, log))
            running[site.name] = worker.pid
        time.sleep(WARM_UP)
        begin = {site.name: (cpu(running[site.name]), site.transactions()) for site in sites}
        since = time.monotonic()
        time.sleep(seconds)
        # The server reports statistics of a connection with a delay of up to a second.
        took = time.monotonic() - since
        for site in sites:
            used, done = begin[site.name]
            share = (cpu(running[site.name]) - used) / took
            rate = (site.transactions() - done) / took
            print(f"idle, {site.name}: {share:.2%} of a core, {rate:.2f} transactions/s")


def measure_drain(sites: list[Site]) -> None:
    used: dict[str, list[float]] = {site.name: [] for site in sites}
    for _ in range(ROUNDS):
        for site in sites:
            site.run("-c", SEND.format(count=MESSAGES))
            begin = os.times()
            site.run("manage.py", "run_worker", "--drain")
            end = os.times()
            # Of the child, which has ended.
            used[site.name].append(
                end.children_user + end.children_system
                - begin.children_user - begin.children_system
            )  # fmt: skip
    first = statistics.median(used[sites[0].name])
    for site in sites:
        median = statistics.median(used[site.name])
        print(
            f"drain of {MESSAGES:,}, {site.name}: {median:.2f} s of processor time, "
            f"ratio {first / median:.2f}"
        )


if __name__ == "__main__":
    main()
