"""Where a chaos run takes place: a SQLite file, or two PostgreSQL servers behind proxies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg

from tests.private_postgres import Server, private_server
from tests.worker.proxy import Proxy

SOCKET = ".s.PGSQL.5432"
#: As in production: what was acknowledged is on two disks.
DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "16MB"}
STANDBY = "standby"
#: The byte that SQLite's writer locks in the shared memory of a file in WAL mode.
WRITE_LOCK = 120


class SQLiteSite:
    """One file; nothing stands between it and a client."""

    postgresql = False

    def __init__(self, directory: Path) -> None:
        self._file = directory / "chaos.sqlite3"

    def url(self, client: str) -> str:
        return f"sqlite:///{self._file}"

    def is_blocked_by(self, pids: list[int]) -> bool:
        """Say whether one of these processes is inside a transaction: then nobody can write."""
        # Read from the system: a file opened and closed here would end this process's own locks.
        shared = self._file.with_name(f"{self._file.name}-shm")
        if not shared.exists():
            return False
        number = shared.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            kind, pid, place, first = line.split()[-5:-1]
            held = int(place.rpartition(":")[2]) == number and int(first) == WRITE_LOCK
            if kind == "WRITE" and held and int(pid) in pids:
                return True
        return False


class PostgresSite:
    """A primary, a synchronous standby, and a proxy for each client."""

    postgresql = True

    def __init__(self, primary: Server, directory: Path) -> None:
        self.server = primary
        self.standby: Server | None = None
        self.proxies: dict[str, Proxy] = {}
        self._directory = directory

    def url(self, client: str) -> str:
        if client not in self.proxies:
            place = self._directory / client
            place.mkdir()
            self.proxies[client] = Proxy(place, self.server.home / SOCKET)
        return f"postgresql://postgres@/postgres?host={self._directory / client}"

    def is_blocked_by(self, pids: list[int]) -> bool:
        """Rows at most are locked by one who stands still, never everything."""
        return False

    def ask(self, statement: str) -> list[tuple]:
        with psycopg.connect(self.server.url, autocommit=True, connect_timeout=5) as database:
            cursor = database.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def follow(self, standby: Server) -> None:
        """From now on a commit is acknowledged when the standby has it too."""
        self.standby = standby
        self.ask(f"ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 ({STANDBY})'")
        self.ask("SELECT pg_reload_conf()")

    def kill_backend(self) -> None:
        """Kill one connection's process: the server ends all others, since memory may be torn."""
        pids = self.ask(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid() ORDER BY pid LIMIT 1"
        )
        for (pid,) in pids:
            os.kill(pid, signal.SIGKILL)

    def wait(self, patience: float = 60.0) -> None:
        """Return when the server answers, or after a while."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            with suppress(psycopg.OperationalError):
                self.ask("SELECT 1")
                return
            time.sleep(0.05)

    def fail_over(self) -> None:
        """The primary is gone for good; the standby takes over, and everybody is led to it."""
        assert self.standby is not None
        self.server.kill()
        self.server, self.standby = self.standby, None
        self.ask("SELECT pg_promote()")
        for proxy in self.proxies.values():
            proxy.server = self.server.home / SOCKET
            proxy.hang_up()

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()


@contextmanager
def sqlite_site(directory: Path) -> Iterator[SQLiteSite]:
    yield SQLiteSite(directory)


@contextmanager
def postgres_site() -> Iterator[PostgresSite]:
    """Start the primary; `with_standby` adds the other once there are tables."""
    # A socket's path has 107 characters at most.
    sockets = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        with private_server(**DURABLE) as primary:
            site = PostgresSite(primary, sockets)
            try:
                yield site
            finally:
                site.close()
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


@contextmanager
def with_standby(site: PostgresSite) -> Iterator[None]:
    """Copy the primary and let the copy follow it."""
    primary = site.server
    home = Path(tempfile.mkdtemp(prefix="deadletter-pg-"))
    with ExitStack() as end:
        end.callback(shutil.rmtree, home, ignore_errors=True)
        if "user" in primary.account:
            os.chown(home, primary.account["user"], primary.account["group"])
        source = f"host={primary.home} user=postgres application_name={STANDBY}"
        subprocess.run(
            [
                primary.programs / "pg_basebackup",
                *("--pgdata", home / "data", "--dbname", source),
                *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
            ],
            check=True,
            cwd=home,
            stdin=subprocess.DEVNULL,
            **primary.account,
        )
        standby = Server(primary.programs, home, primary.account, DURABLE)
        end.callback(standby.stop)
        site.follow(standby)
        yield


def can_fail_over(server: Server) -> bool:
    """Say whether the PostgreSQL at hand brings the program that copies a server."""
    return (server.programs / "pg_basebackup").exists()
