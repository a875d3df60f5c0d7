"""`make demo BROKER=…`: the demonstration with an outbox, and what it says without a broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from django.conf import settings

from tests.brokers import RabbitMQServer, RedisServer, missing
from tests.patience import PATIENCE, wait_until
from tests.test_demo import Demo, alive, free_port, read, sign_in

__all__ = ["free_port"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.sqlite_only(reason="the demonstration brings its own SQLite database"),
]
KINDS = {"rabbitmq": RabbitMQServer, "redis": RedisServer}


@pytest.fixture(params=KINDS)
def demo(request, free_port: int, tmp_path: Path, monkeypatch) -> Iterator[Demo]:
    if reason := missing(KINDS[request.param]):
        pytest.skip(reason)
    monkeypatch.delenv("DEMO_BROKER_URL", raising=False)
    # Its folder, by which the test finds what is left of it.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = ["-m", "project.brokers", request.param, "manage.py"]
    with closing(Demo(free_port, tmp_path / "demo.sqlite3", program=program)) as running:
        running.broker = request.param
        yield running


@pytest.mark.slow
def test_events_arrive_in_order_and_nothing_is_left(demo: Demo, tmp_path: Path):
    pids = [int(demo.wait_for(rf"{name} is process (\d+)")) for name in ("events", "worker")]
    password = demo.wait_for(r"Password +(\S+)")
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    site = f"http://127.0.0.1:{demo.port}"

    steps = ("placed", "paid", "shipped")
    arrived = [
        demo.wait_for(rf'events \| demo.order (\d+) of order-1001: .*"now":"{step}"')
        for step in steps
    ]
    sign_in(browser, site, "admin", password)
    brokers = read(browser, f"{site}/admin/deadletter/brokerstatus/")
    if demo.broker == "rabbitmq":
        wait_until(lambda: "poisoned event partner.order" in demo.log.read_text())
    left_before = processes_of(tmp_path)
    exit_code = demo.stop(signal.SIGINT)

    assert arrived == sorted(arrived, key=int)
    assert "default" in brokers
    assert left_before, "the broker was not found"
    assert exit_code == 0, demo.output
    assert "Traceback" not in demo.output
    assert [pid for pid in pids if alive(pid)] == []
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("deadletter-*")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_is_not_installed_is_one_line(kind: str, tmp_path: Path):
    # No program is found: RabbitMQ's needs epmd, which is looked up on the path.
    done = run(kind, PATH=str(tmp_path))

    assert done.returncode == 1
    assert done.stderr == (
        f"  demo | BROKER={kind}: {kind}-server is not installed "
        f"(Debian and Ubuntu: apt-get install {kind}-server)\n"
    )


def test_a_broker_that_is_not_known_is_one_line():
    done = run("kafka")

    assert done.returncode == 1
    assert done.stderr == "  demo | BROKER=kafka: there are rabbitmq and redis\n"


def test_a_broker_of_the_environment_is_used():
    done = run("redis", PATH="", DEMO_BROKER_URL="redis://elsewhere")

    assert done.returncode == 0
    assert done.stdout == "redis://elsewhere\n"


def run(kind: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Let a program that prints the address of the broker run beside one."""
    kept = {k: v for k, v in os.environ.items() if k != "DEMO_BROKER_URL"}
    return subprocess.run(
        [
            *(sys.executable, "-m", "project.brokers", kind),
            *("-c", "import os; print(os.environ['DEMO_BROKER_URL'])"),
        ],
        cwd=settings.BASE_DIR,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def processes_of(folder: Path) -> list[int]:
    """Return the processes that work in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink().is_relative_to(folder):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found
