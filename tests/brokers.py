"""
Brokers of our own, for as long as a `with` block lasts: Debian's redis-server and rabbitmq-server.

Both are started from their programs, on free ports of 127.0.0.1, with their files in a folder that
is removed at the end. Debian's wrapper of rabbitmq-server is not used: as root it changes the user
and takes the folders of the system's own server.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.patience import PATIENCE

#: Where Debian and Ubuntu install RabbitMQ's own scripts.
RABBITMQ_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
ADDRESS = "127.0.0.1"
#: How often a broker is started that finds its ports taken.
STARTS = 3


class Broker(ABC):
    """A server that tests may stop, kill, halt and start again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.tls_port = free_port()
        #: Certifies itself, for localhost and 127.0.0.1.
        self.certificate = home / "certificate.pem"
        self._key = home / "key.pem"
        _certify(self.certificate, self._key)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Return its address for a transport."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return what starts it, and its environment."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether it answers."""

    def start(self) -> None:
        command, environment = self.command()
        with (self.home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Its helpers end with it.
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not self.is_ready():
            said = (self.home / "output").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"{command[0]} has ended: {said}"
            assert time.monotonic() < deadline, f"{command[0]} does not answer: {said}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as the kernel does when memory runs out."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
            # The first process may be a script, and the server end after it.
            deadline = time.monotonic() + PATIENCE
            while _accepts(self.port):
                assert time.monotonic() < deadline, f"port {self.port} is still open"
                time.sleep(0.01)

    def stop(self) -> None:
        """End it in order, as an operator does."""
        process = self._process
        if process is not None:
            self._send(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        self.kill()

    def close(self) -> None:
        """End it for good; its files are removed anyway."""
        self.kill()

    def halt(self) -> None:
        """Let it run no more, and keep its connections: it answers nothing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def ensure_running(self) -> None:
        """Start it if a test has ended it."""
        if self._process is None:
            self.start()

    def _send(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


B = TypeVar("B", bound=Broker)


class RedisServer(Broker):
    """redis-server with an append-only file."""

    password = secrets.token_hex(8)

    def __init__(self, home: Path, fsync: str = "always") -> None:
        super().__init__(home)
        #: When Redis has what it wrote to its file put on the disk: see docs/outbox.md.
        self._fsync = fsync

    @property
    def tls_url(self) -> str:
        return f"rediss://:{self.password}@{ADDRESS}:{self.tls_port}/0"

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{ADDRESS}:{self.port}/0"

    def command(self) -> tuple[list[str], dict[str, str]]:
        settings = {
            "bind": ADDRESS,
            "port": str(self.port),
            "dir": str(self.home),
            "requirepass": self.password,
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "save": "",
            "tls-port": str(self.tls_port),
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self._key),
            "tls-ca-cert-file": str(self.certificate),
            "tls-auth-clients": "no",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [str(shutil.which("redis-server")), *arguments], dict(os.environ)

    def is_ready(self) -> bool:
        import redis

        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    @contextmanager
    def client(self):
        import redis

        client = redis.Redis.from_url(self.url)
        try:
            yield client
        finally:
            client.close()


class RabbitMQServer(Broker):
    """rabbitmq-server, without plugins: one node alone, or one more of a cluster with `others`."""

    user = "deadletter"
    password = secrets.token_hex(8)

    def __init__(self, home: Path, others: Sequence[RabbitMQServer] = ()) -> None:
        super().__init__(home)
        self._distribution_port = free_port()
        self.node = f"deadletter-{secrets.token_hex(4)}@localhost"
        self._names: subprocess.Popen[bytes] | None = None
        if others:
            # The daemon that knows the ports of nodes, and the secret: one for all of them.
            self._names_port = others[0]._names_port
            self._secret = others[0]._secret
        else:
            self._names_port = free_port()
            self._secret = secrets.token_hex(16)
            # The server would start a daemon that outlives it.
            self._names = subprocess.Popen(
                [str(shutil.which("epmd")), "-address", ADDRESS, "-port", str(self._names_port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {ADDRESS}:{self.port}\n"
            f"listeners.ssl.1 = {ADDRESS}:{self.tls_port}\n"
            f"ssl_options.cacertfile = {self.certificate}\n"
            f"ssl_options.certfile = {self.certificate}\n"
            f"ssl_options.keyfile = {self._key}\n"
            f"default_user = {self.user}\n"
            f"default_pass = {self.password}\n"
            # Alarms of memory are tested by a lower limit; that of the disk is the machine's.
            "disk_free_limit.absolute = 1MB\n"
            # A node alone need not wait for others.
            "queue_master_locator = client-local\n" + _cluster_of([*others, self] if others else ())
        )
        (home / "plugins").write_text("[].\n")
        cookie = home / ".erlang.cookie"
        cookie.write_text(self._secret)
        cookie.chmod(0o600)

    @property
    def tls_url(self) -> str:
        return f"amqps://{self.user}:{self.password}@{ADDRESS}:{self.tls_port}"

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.password}@{ADDRESS}:{self.port}"

    def stop(self) -> None:
        if self._process is not None:
            self.control("shutdown")
        self.kill()

    def close(self) -> None:
        super().close()
        if self._names is not None:
            self._names.kill()
            self._names.wait(PATIENCE)

    def command(self) -> tuple[list[str], dict[str, str]]:
        return [str(RABBITMQ_SCRIPTS / "rabbitmq-server")], self._environment()

    def is_ready(self) -> bool:
        import amqp

        try:
            with self.connection():
                return True
        except (OSError, amqp.AMQPError):
            return False

    @contextmanager
    def connection(self):
        """Give a connection of py-amqp's own, to look at the queues."""
        import amqp

        connection = amqp.Connection(
            f"{ADDRESS}:{self.port}", self.user, self.password, connect_timeout=PATIENCE
        )
        connection.connect()
        try:
            yield connection
        finally:
            with suppress(OSError, amqp.AMQPError):
                connection.close()

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl."""
        done = subprocess.run(
            [str(RABBITMQ_SCRIPTS / "rabbitmqctl"), "--quiet", *arguments],
            env=self._environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _environment(self) -> dict[str, str]:
        home = str(self.home)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": home,
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": ADDRESS,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": home,
            "RABBITMQ_LOG_BASE": home,
            # An idle scheduler waits instead of spinning: the machine has other things to do.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins",
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": ADDRESS,
        }


def _cluster_of(nodes: Sequence[RabbitMQServer]) -> str:
    """Return the configuration with which a new node joins the first of these."""
    if not nodes:
        return ""
    lines = ["cluster_formation.peer_discovery_backend = classic_config"]
    lines += [
        f"cluster_formation.classic_config.nodes.{n} = {node.node}"
        for n, node in enumerate(nodes, 1)
    ]
    return "\n".join(lines) + "\n"


class RabbitMQCluster:
    """Three nodes on this machine: queues have a leader, and live on while two nodes do."""

    size = 3

    def __init__(self, home: Path) -> None:
        self.nodes: list[RabbitMQServer] = []
        try:
            for number in range(self.size):
                (place := home / str(number)).mkdir()
                self.nodes.append(RabbitMQServer(place, self.nodes))
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        said = self.nodes[0].control("eval", "length(rabbit_nodes:all_running()).")
        assert int(said) == self.size, f"{said} nodes have found each other"

    def close(self) -> None:
        # The first one has the daemon that the others need.
        for node in reversed(self.nodes):
            node.close()


def missing(kind: type[Broker]) -> str:
    """Say why this broker cannot be started here, or nothing."""
    if not shutil.which("openssl"):
        return "openssl is not installed: brokers in tests have certificates"
    if kind is RedisServer and not shutil.which("redis-server"):
        return "redis-server is not installed (Debian: apt-get install redis-server)"
    if kind is RabbitMQServer and not (RABBITMQ_SCRIPTS / "rabbitmq-server").exists():
        return "rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server)"
    return ""


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Give a server that the first test starts; a test that kills it starts it again."""
    yield from _session_broker(RedisServer)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQServer]:
    yield from _session_broker(RabbitMQServer)


def _session_broker(kind: type[B]) -> Iterator[B]:
    if reason := missing(kind):
        pytest.skip(reason)
    with private_broker(kind) as broker:
        yield broker


@contextmanager
def private_broker(kind: type[B]) -> Iterator[B]:
    """Start a broker without messages, give it, then end it and remove its files."""
    broker = _started(kind)
    try:
        yield broker
    finally:
        _remove(broker)


def _started(kind: type[B], starts: int = STARTS) -> B:
    """Start a broker; again, with other ports, if a port that was free is taken by now."""
    broker = kind(Path(tempfile.mkdtemp(prefix="deadletter-broker-")))
    try:
        broker.start()
    except BaseException as error:
        _remove(broker)
        if starts > 1 and isinstance(error, AssertionError):
            return _started(kind, starts - 1)
        raise
    return broker


def _remove(broker: Broker) -> None:
    try:
        broker.close()
    finally:
        shutil.rmtree(broker.home, ignore_errors=True)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        return int(listener.getsockname()[1])


def _certify(certificate: Path, key: Path) -> None:
    """Make a certificate that certifies itself."""
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    subprocess.run(
        [
            *command.split(),
            *("-subj", "/CN=localhost", "-addext", names),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((ADDRESS, port), timeout=1).close()
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True
