"""The old release beside this one, on a database that this one migrated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Workers, database_url, worker_processes
from tests.sample.journal import DIRECTORY

from .release import ROOT, Release, extract


@pytest.fixture(scope="session")
def old_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("old_release"))


@pytest.fixture
def old(old_root: Path, transactional_db: None, tmp_path: Path) -> Release:
    """Programs of the old release."""
    return Release(old_root, database_url(), tmp_path)


@pytest.fixture
def new(transactional_db: None, tmp_path: Path) -> Release:
    """Programs of this release."""
    return Release(ROOT, database_url(), tmp_path)


@pytest.fixture
def old_workers(old_root: Path, new_workers: Workers, tmp_path: Path) -> Iterator[Workers]:
    with worker_processes(tmp_path, database_url(), old_root) as started:
        yield started


@pytest.fixture
def new_workers(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started
