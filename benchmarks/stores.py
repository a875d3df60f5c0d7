"""
Where do the measured systems keep their messages? Servers of our own, empty for each measurement.

PostgreSQL has its default durability: fsync and synchronous_commit are on. Redis has none: it
writes nothing to disk, which is its fastest form and is said beside its figures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.private_postgres import private_server

from . import brokers
from .peers import load
from .processes import LAST_WORDS
from .system import System, client

POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
}
START_SECONDS = 10


class Missing(Exception):
    """A server that is not installed."""


class Stores:
    """The servers, started when first needed and stopped together."""

    def __init__(self, folder: Path, servers: ExitStack) -> None:
        self.folder = folder
        self._servers = servers
        self._made: dict[str, Postgres | Redis | SQLite] = {}
        self._brokers: dict[str, brokers.MeasuredBroker] = {}

    def of(self, system: System) -> Postgres | Redis | SQLite:
        if system.store not in self._made:
            kind = {"postgresql": Postgres, "redis": Redis, "sqlite": SQLite}[system.store]
            self._made[system.store] = self._servers.enter_context(kind.started(self.folder))
        return self._made[system.store]

    def broker_of(self, system: System) -> brokers.MeasuredBroker | None:
        """Return the broker of a system, started when it is first needed."""
        kind = system.broker.partition("-")[0]
        if not kind:
            return None
        if kind not in self._brokers:
            try:
                self._brokers[kind] = self._servers.enter_context(brokers.started(kind))
            except brokers.BrokerMissing as error:
                raise Missing(str(error)) from error
        return self._brokers[kind]


class Postgres:
    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pids: tuple[int, ...] = (pid,)
        self._templates: set[str] = set()

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Postgres]:
        with private_server(**POSTGRES) as server:
            pid = int((server.home / "data" / "postmaster.pid").read_text().split()[0])
            yield cls(server.url, pid)

    def version(self) -> str:
        return "PostgreSQL " + str(ask(self.url, "SHOW server_version")[0][0])

    @contextmanager
    def fresh(self, system: System, *, template: str = "") -> Iterator[str]:
        """Give the URL of a database with the system's empty tables, or a copy of a template."""
        name = f"{system.name}-measured"
        self.create(name, template=template or self.empty(system))
        try:
            yield self.at(name)
        finally:
            self.drop(name)

    def empty(self, system: System) -> str:
        """Name a template with the system's empty tables, made when first asked for."""
        owner = load(system.schema) if system.schema else system
        template = f"{owner.name}-empty"
        if template not in self._templates:
            self.create(template)
            run_client(owner, self.at(template), "setup")
            self._templates.add(template)
        return template

    def settle(self, url: str) -> None:
        """Give the planner what it would know of a database that has been running for a while."""
        ask(url, "VACUUM ANALYZE")

    def at(self, name: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def create(self, name: str, *, template: str = "template1") -> None:
        self.drop(name)
        ask(self.url, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')

    def drop(self, name: str) -> None:
        ask(self.url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


class SQLite:
    #: No server: the work is done inside the worker.
    pids: tuple[int, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[SQLite]:
        yield cls(folder)

    def version(self) -> str:
        import sqlite3

        return f"SQLite {sqlite3.sqlite_version}"

    @contextmanager
    def fresh(self, system: System, *, template: str = "") -> Iterator[str]:
        empty, measured = (self.folder / f"{system.name}-{kind}" for kind in ("empty", "measured"))
        if not empty.exists():
            empty.mkdir()
            run_client(system, str(empty / "db.sqlite3"), "setup")
        shutil.copytree(empty, measured)
        try:
            yield str(measured / "db.sqlite3")
        finally:
            shutil.rmtree(measured)

    def settle(self, url: str) -> None:
        pass


class Redis:
    def __init__(self, socket: Path, pid: int) -> None:
        self.socket = socket
        self.pids: tuple[int, ...] = (pid,)

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Redis]:
        program = shutil.which("redis-server")
        if program is None:
            raise Missing("redis-server is not installed (Debian: apt-get install redis-server)")
        socket = folder / "redis.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(
            [program, *options], stdout=subprocess.DEVNULL, cwd=folder, start_new_session=True
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not socket.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise Missing(f"{program} did not start: try it by hand")
                time.sleep(0.02)
            yield cls(socket, server.pid)
        finally:
            server.terminate()
            server.wait()

    def version(self) -> str:
        import redis

        return "Redis " + redis.Redis.from_url(f"unix://{self.socket}").info()["redis_version"]

    @contextmanager
    def fresh(self, system: System, *, template: str = "") -> Iterator[str]:
        import redis

        url = f"unix://{self.socket}"
        redis.Redis.from_url(url).flushall()
        yield url
        redis.Redis.from_url(url).flushall()

    def settle(self, url: str) -> None:
        pass


def environment(system: System, url: str) -> dict[str, str]:
    """What every process of a system gets; nothing of the caller's own database."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DATABASE_")}
    return kept | {"BENCH_URL": url, "PYTHONPATH": str(Path.cwd())} | system.environment()


def run_client(system: System, url: str, *arguments: object, **extra: str) -> str:
    """Run one client process to its end and return what it printed last."""
    done = subprocess.run(
        [*client(system.name), *map(str, arguments)],
        env=environment(system, url) | extra,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-LAST_WORDS:])
        raise RuntimeError(f"{system.name} {' '.join(map(str, arguments))}:\n{last}")
    return done.stdout.strip().rpartition("\n")[2]


def ask(url: str, question: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Put one question to PostgreSQL, on a connection of its own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(question, parameters)
        return cursor.fetchall() if cursor.description else []


def machine() -> Mapping[str, str]:
    """Describe what was measured on."""
    import platform

    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": f"{os.cpu_count()} cores, {model}",
        "memory": f"{pages / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": sys.version.split()[0],
    }
