"""Workers for tests: as processes of their own, or in this one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from tests.patience import PATIENCE
from tests.private_postgres import Server, private_server
from tests.processes import Workers, database_url, worker_processes
from tests.sample.journal import DIRECTORY

from .proxy import Proxy
from .site import Site


@pytest.fixture
def workers(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    """Start `manage.py run_worker` on the test database: `workers.start("--processes", 2)`."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started


@pytest.fixture
def run(transactional_db: None) -> Callable[..., Worker]:
    """Drain the queues with a worker in this process; returns it, with its tally."""

    def drain(**options: Any) -> Worker:
        process = Worker(Options(name="here", drain=True, **options))
        process.run()
        return process

    return drain


@pytest.fixture
def running(transactional_db: None) -> Callable[..., Any]:
    """Let a worker run in this process for as long as a `with` block lasts."""

    @contextmanager
    def run(**options: Any) -> Iterator[Worker]:
        process = Worker(Options(name="here", **options))
        thread = threading.Thread(target=process.run, daemon=True)
        thread.start()
        try:
            yield process
        finally:
            process.stop()
            thread.join(PATIENCE)
            if thread.is_alive():
                process.stop(at_once=True)
                thread.join(PATIENCE)
            assert not thread.is_alive(), "the worker did not stop"

    return run


@pytest.fixture
def stepped(transactional_db: None) -> Iterator[Callable[..., Worker]]:
    """Make a worker whose pump turns only when the test says so: `stepped().pump.turn()`."""
    made: list[Worker] = []

    def make(**options: Any) -> Worker:
        process = Worker(Options(name="here", **options))
        process._housekeeper.refresh()
        made.append(process)
        return process

    yield make
    for process in made:
        process._executors.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with private_server(
        max_connections="12", superuser_reserved_connections="0", reserved_connections="0"
    ) as running:
        yield running


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Iterator[Site]:
    with worker_processes(tmp_path, server.url) as workers:
        site = Site(server, workers)
        site.run("manage.py", "migrate", "--run-syncdb", "--verbosity", "0")
        yield site
    site.query(
        "WITH a AS (DELETE FROM deadletter_message), b AS (DELETE FROM deadletter_poison),"
        " c AS (DELETE FROM sample_effect) SELECT 1"
    )


@pytest.fixture
def proxy(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    directory = tmp_path_factory.mktemp("p")
    between = Proxy(directory, site.server.home / ".s.PGSQL.5432")
    site.workers.url = f"postgresql://postgres@/postgres?host={directory}"
    yield between
    between.close()
