"""What tests of metrics share: workers with a port, and a view that remembers nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deadletter.metrics import view
from tests.processes import Workers, database_url, worker_processes
from tests.sample.journal import DIRECTORY


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    """Forget what the view remembers between two scrapes."""
    view._rows.cache_clear()
    yield
    view._rows.cache_clear()


@pytest.fixture
def workers(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started
