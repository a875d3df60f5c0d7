"""What tests of metrics share: workers with a port, and a view that remembers nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deadletter import views
from tests.processes import Workers, database_url, worker_processes
from tests.sample.journal import DIRECTORY


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    """Clear what the view keeps between two scrapes."""
    views._tables.cache_clear()
    yield
    views._tables.cache_clear()


@pytest.fixture
def workers(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started
