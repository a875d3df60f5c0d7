"""An older release of deadletter, taken from the history of the repository."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.sample.journal import DIRECTORY

ROOT = Path(__file__).parent.parent.parent

#: The release that must go on working beside this one and on its schema. Its last migration is
#: 0010. Move it only when support for rolling upgrades from it has ended.
OLD = "1ffcd86d09b246d894e24ff719d8f688d216ca4e"
#: The last release without tasks.
BEFORE_TASKS = "399d99f06b1607338978ca7c4f756d6c15b9f2ef"


def extract(target: Path, release: str = OLD) -> Path:
    """Put an old release into a folder. Skips where its history cannot be, fails where it must."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed: the old release cannot be taken out of the history")
    if _git("rev-parse", "--git-dir").returncode:
        pytest.skip("not a clone of the repository: there is no history with the old release")
    if _git("cat-file", "-e", f"{release}^{{commit}}").returncode:
        is_shallow = _git("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
        assert is_shallow, f"the old release, {release}, is not in the history of this clone"
        pytest.skip("a shallow clone: the old release is not in it (git fetch --unshallow)")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", release, check=True).stdout)) as archive:
        archive.extractall(target, filter="data")
    return target


def _git(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[bytes]:
    # A clone of somebody else's, as in a container, is read all the same.
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=check)


class Release:
    """Runs programs with the code in `root` on one database."""

    def __init__(self, root: Path, url: str, directory: Path) -> None:
        self.root = root
        self.url = url
        self.directory = directory

    def run(self, program: str, *arguments: str) -> str:
        """Run Python code after django.setup(); return what it printed."""
        setup = f"import django, sys; django.setup()\n{program}"
        return self._call([sys.executable, "-c", setup, *arguments])

    def manage(self, *arguments: str) -> str:
        return self._call([sys.executable, "manage.py", *arguments])

    def _call(self, command: list[str]) -> str:
        environment = {
            **os.environ,
            "DATABASE_URL": self.url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            DIRECTORY: str(self.directory),
        }
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command} of {self.root}:\n{done.stdout}{done.stderr}"
        return done.stdout
