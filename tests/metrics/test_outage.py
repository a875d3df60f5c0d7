"""The database is away, or hangs: a scrape is answered all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.private_postgres import Server, private_server
from tests.processes import Workers, wait_until, worker_processes

from .scrapes import Samples, port_of, scrape

pytestmark = pytest.mark.postgresql_only(reason="SQLite has no server that could go away")

SEND = "import django; django.setup(); from deadletter import send; send('sample.work', {})"
HANDLED = "deadletter_handler_duration_seconds_count"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with private_server() as running:
        yield running


@pytest.fixture
def workers(server: Server, tmp_path: Path) -> Iterator[Workers]:
    environment = {
        **os.environ,
        "DATABASE_URL": server.url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    for command in (["manage.py", "migrate", "--run-syncdb", "--verbosity", "0"], ["-c", SEND]):
        subprocess.run(
            [sys.executable, *command], cwd=settings.BASE_DIR, env=environment, check=True
        )
    with worker_processes(tmp_path, server.url) as started:
        yield started


def when_up(port: int, value: float) -> Samples:
    def seen() -> Samples | None:
        found = scrape(port)
        return found if found("deadletter_up") == value else None

    return wait_until(seen)


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_a_scrape_without_a_database_tells_what_the_processes_know(server, workers, processes):
    worker = workers.start("--processes", processes, "--metrics-port", 0, "--poll", 0.1)
    port = port_of(worker)
    wait_until(lambda: scrape(port)(HANDLED, name="sample.work"))

    server.crash()
    away = when_up(port, 0)
    server.start()
    back = when_up(port, 1)

    assert away(HANDLED, name="sample.work") == 1
    assert away.named("deadletter_queue_depth") == {}
    assert away.named("deadletter_messages_sent_total") == {}
    assert back(HANDLED, name="sample.work") == 1
    assert back("deadletter_messages_sent_total", queue="default", name="sample.work") >= 1
    assert worker.stop() == 0


@pytest.mark.process
def test_a_database_that_hangs_does_not_hang_the_scrape(server, workers):
    worker = workers.start("--metrics-port", 0, "--poll", 0.1)
    port = port_of(worker)
    wait_until(lambda: scrape(port)(HANDLED, name="sample.work"))

    postmaster = server._process.pid
    os.kill(postmaster, signal.SIGSTOP)
    try:
        # Nobody answers before the server goes on: a scrape that waited for it would never end.
        found = [scrape(port) for _ in range(3)]
    finally:
        os.kill(postmaster, signal.SIGCONT)

    assert [samples(HANDLED, name="sample.work") for samples in found] == [1, 1, 1]
    when_up(port, 1)
    assert worker.stop() == 0
