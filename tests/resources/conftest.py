"""Disks that are too small."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Workers, worker_processes
from tests.sample.journal import DIRECTORY


class Disk:
    """A file system in memory that can be made larger."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def grow(self) -> None:
        options = "remount,size=64m"
        subprocess.run(["mount", "-o", options, str(self.path)], check=True, capture_output=True)

    def free(self) -> int:
        numbers = os.statvfs(self.path)
        return numbers.f_bavail * numbers.f_frsize


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount two megabytes."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0777", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk, and not in every container")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def any_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Workers whose database the test names: `workers.url = …`."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, "") as started:
        yield started
