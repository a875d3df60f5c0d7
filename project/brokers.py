"""
Brokers of our own, until the end of a `with` block: Debian's rabbitmq-server and redis-server.

    python -m project.brokers rabbitmq manage.py demo

runs a command of Python beside one, with its address in DEMO_BROKER_URL.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from project.processes import say

ADDRESS = "127.0.0.1"
#: The environment variable in which the demonstration finds its broker.
VARIABLE = "DEMO_BROKER_URL"
#: RabbitMQ's own scripts. Debian's wrapper takes the folders of the system's server.
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
#: Seconds a broker may take to start, and to end.
START_SECONDS, STOP_SECONDS = 120.0, 20.0


class BrokerMissing(Exception):
    """The program of a broker is not installed, or it does not start."""


class PrivateBroker:
    """A server on ports of its own, with its files in one folder."""

    #: What there is to install, by the name that `private_broker` takes.
    package = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._process is not None  # noqa: S101 - of a started broker
        return self._process.pid

    def program(self) -> Path | None:
        """Return what starts it, if it is installed."""
        raise NotImplementedError

    def arguments(self) -> list[str]:
        return []

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def is_ready(self) -> bool:
        """Return True if it answers. Raises what the client raises, if it does not."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers. Raises: BrokerMissing."""
        program = self.program()
        if program is None:
            raise BrokerMissing(
                f"{self.package} is not installed (Debian and Ubuntu: apt-get install "
                f"{self.package})"
            )
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the program of a package, no shell
                [program, *self.arguments()],
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C in the terminal is for the caller, who ends the broker after the worker.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "output").read_text(errors="replace")[-1000:]
                self.stop()
                raise BrokerMissing(f"{program} did not start: {said}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ask it to end, then insist; nothing of it is left."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End it for good."""
        self.stop()

    def _answers(self) -> bool:
        try:
            return self.is_ready()
        except Exception:  # noqa: BLE001 - whatever its client raises: it is not there yet
            return False


class PrivateRabbitMQ(PrivateBroker):
    package = "rabbitmq-server"
    user = "deadletter"

    def __init__(self, folder: Path, *, plugins: str = "", settings: str = "") -> None:
        super().__init__(folder)
        self._node = f"deadletter-{secrets.token_hex(4)}@localhost"
        self._distribution_port, self._names_port = free_port(), free_port()
        self._names: subprocess.Popen[bytes] | None = None
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {ADDRESS}:{self.port}\n"
            f"default_user = {self.user}\n"
            f"default_pass = {self.password}\n"
            "disk_free_limit.absolute = 50MB\n"
            f"{settings}"
        )
        (folder / "plugins").write_text(f"[{plugins}].\n")
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o600)

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.password}@{ADDRESS}:{self.port}"

    def program(self) -> Path | None:
        return RABBITMQ if RABBITMQ.exists() and shutil.which("epmd") else None

    def start(self) -> None:
        if self._names is None and self.program() is not None:
            # The daemon that knows the ports of nodes. The server would start one that outlives it.
            self._names = subprocess.Popen(  # noqa: S603
                [str(shutil.which("epmd")), "-address", ADDRESS, "-port", str(self._names_port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        super().start()

    def close(self) -> None:
        super().close()
        if self._names is not None:
            self._names.kill()
            self._names.wait()

    def is_ready(self) -> bool:
        import amqp

        connection = amqp.Connection(f"{ADDRESS}:{self.port}", self.user, self.password)
        connection.connect()
        connection.close()
        return True

    def environment(self) -> dict[str, str]:
        home = str(self.folder)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": home,
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": ADDRESS,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": home,
            "RABBITMQ_LOG_BASE": home,
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins",
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": ADDRESS,
        }


class PrivateRedis(PrivateBroker):
    """With an append-only file that is written to disk every second, Redis' own default for one."""

    package = "redis-server"

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{ADDRESS}:{self.port}/0"

    def program(self) -> Path | None:
        found = shutil.which("redis-server")
        return None if found is None else Path(found)

    def arguments(self) -> list[str]:
        settings = self.folder / "redis.conf"
        # In a file: arguments of a process can be read by everybody.
        settings.write_text(
            f"bind {ADDRESS}\nport {self.port}\ndir {self.folder}\nrequirepass {self.password}\n"
            'appendonly yes\nappendfsync everysec\nsave ""\n'
        )
        settings.chmod(0o600)
        return [str(settings)]

    def is_ready(self) -> bool:
        import redis

        with redis.Redis.from_url(self.url) as client:
            return bool(client.ping())


KINDS: dict[str, type[PrivateBroker]] = {"rabbitmq": PrivateRabbitMQ, "redis": PrivateRedis}


@contextmanager
def private_broker(kind: str, **options: str) -> Iterator[PrivateBroker]:
    """Start a broker without messages, then end it and remove its files. Raises: BrokerMissing."""
    folder = Path(tempfile.mkdtemp(prefix=f"deadletter-{kind}-"))
    try:
        broker = KINDS[kind](folder, **options)
        try:
            broker.start()
            yield broker
        finally:
            broker.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        return int(listener.getsockname()[1])


def main(kind: str, *command: str) -> int:
    """Run a command beside a broker, or with the one that the environment names."""
    if kind not in KINDS:
        say("demo", f"BROKER={kind}: there are {' and '.join(KINDS)}", sys.stderr)
        return 1
    if os.environ.get(VARIABLE):
        return _run(command, os.environ[VARIABLE])
    try:
        say("demo", f"starting {KINDS[kind].package}")
        with private_broker(kind) as broker:
            return _run(command, broker.url)
    except BrokerMissing as error:
        say("demo", f"BROKER={kind}: {error}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _run(command: tuple[str, ...], url: str) -> int:
    """Run a command and pass signals on to it; the broker ends after it."""
    process = subprocess.Popen(  # noqa: S603 - of our own Makefile, no shell
        [sys.executable, *command],
        env={**os.environ, VARIABLE: url},
        # Ctrl-C would reach it twice.
        start_new_session=True,
    )

    def forward(number: int, frame: object) -> None:
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    return process.wait()


if __name__ == "__main__":
    # SIGTERM while the broker starts: end it, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(*sys.argv[1:]))
