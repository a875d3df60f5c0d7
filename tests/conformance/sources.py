"""The tests of others: source distributions in a cache, and a folder of tests for each suite."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".conformance"

#: The Django whose tests the backport runs: its own source distribution holds none.
DJANGO = "6.1.3"
TASKS_DB = "0.13.0"

#: Where the backport has another name, or another text, for the same.
BACKPORT = {
    r"(from django)\.tasks import Task,": r"\1_tasks.base import Task\n\1_tasks import",
    r"\bdjango\.tasks\b": "django_tasks",
    r"\bInvalidTask\b": "InvalidTaskError",
    r"\bInvalidTaskBackend\b": "InvalidTaskBackendError",
    r"does not support async Tasks": "does not support async tasks",
}
#: django-tasks-db's source distribution lacks its module of tasks; Django's own differs in a text.
TASKS_OF_TASKS_DB = {r"This Task failed": "This task failed"}
TESTS_OF_TASKS_DB = {r"from tests import tasks\b": "from tasks import tasks"}


def django_suite(version: str, library: str) -> Path:
    """Return a folder with the package `tasks` of Django's own tests, for one library."""
    rewrite = BACKPORT if library == "django_tasks" else {}
    folder = CACHE / f"django-{version}-{library}"
    for name, text in _read("django", version, "tests/tasks").items():
        _write(folder / "tasks" / name, text, rewrite)
    return folder


def tasks_db_suite(library: str) -> Path:
    """Return a folder with a package `tasks` of the tests of django-tasks-db."""
    rewrite = BACKPORT if library == "django_tasks" else {}
    folder = CACHE / f"django_tasks_db-{TASKS_DB}-{library}"
    tasks = _read("django", DJANGO, "tests/tasks")["tasks.py"]
    tests = _read("django_tasks_db", TASKS_DB, "tests")["tests.py"]
    _write(folder / "tasks" / "__init__.py", "", {})
    _write(folder / "tasks" / "tasks.py", tasks, rewrite | TASKS_OF_TASKS_DB)
    # It tries `django.tasks` first, then the backport, and says so itself: nothing to rewrite.
    _write(folder / "tasks" / "test_database_backend.py", tests, TESTS_OF_TASKS_DB)
    return folder


def _read(name: str, version: str, folder: str) -> dict[str, str]:
    """Return the texts of the Python files of one folder of a source distribution."""
    with tarfile.open(_download(name, version)) as archive:
        inside = f"{name}-{version}/{folder}/"
        return {
            member.name.removeprefix(inside): archive.extractfile(member).read().decode()
            for member in archive
            if re.fullmatch(rf"{re.escape(inside)}\w+\.py", member.name)
        }


def _download(name: str, version: str) -> Path:
    archive = CACHE / "sdists" / f"{name}-{version}.tar.gz"
    if not archive.exists():
        # Only read, never installed: it may need another Python than this one.
        options = ["--no-deps", "--no-binary", ":all:", "--ignore-requires-python", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", archive.parent]
        subprocess.run([*command, f"{name}=={version}"], check=True)
    return archive


def _write(path: Path, text: str, rewrite: dict[str, str]) -> None:
    for pattern, replacement in rewrite.items():
        text = re.sub(pattern, replacement, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
