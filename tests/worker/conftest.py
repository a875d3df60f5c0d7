"""Workers for tests: as processes of their own, or in this one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deadletter.worker.options import Options
from deadletter.worker.process import WorkerProcess
from tests.processes import Workers, database_url, worker_processes
from tests.sample.journal import DIRECTORY


@pytest.fixture
def workers(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    """Start `manage.py run_worker` on the test database: `workers.start("--processes", 2)`."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started


@pytest.fixture
def run(transactional_db: None) -> Callable[..., WorkerProcess]:
    """Drain the queues with a worker in this process; returns it, with its tally."""

    def drain(**options: Any) -> WorkerProcess:
        process = WorkerProcess(Options(name="here", drain=True, **options))
        process.run()
        return process

    return drain


@pytest.fixture
def running(transactional_db: None) -> Callable[..., Any]:
    """Let a worker run in this process for as long as a `with` block lasts."""

    @contextmanager
    def run(**options: Any) -> Iterator[WorkerProcess]:
        process = WorkerProcess(Options(name="here", **options))
        thread = threading.Thread(target=process.run, daemon=True)
        thread.start()
        try:
            yield process
        finally:
            process.stop()
            thread.join(20)
            if thread.is_alive():
                process.stop(at_once=True)
                thread.join(20)
            assert not thread.is_alive(), "the worker did not stop"

    return run
