"""The harness itself: what it counts, and what the exit code says. No package index is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import django
import pytest

from tests.conformance import __main__ as conformance
from tests.conformance import applicability, sources

LIBRARY = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
TESTS = f"""
from {LIBRARY} import TaskResultStatus, default_task_backend
from {LIBRARY}.backends.dummy import DummyBackend
from django.test import SimpleTestCase, override_settings

from . import tasks

DUMMY = "{LIBRARY}.backends.dummy.DummyBackend"
IMMEDIATE = "{LIBRARY}.backends.immediate.ImmediateBackend"


@override_settings(TASKS={{"default": {{"BACKEND": DUMMY}}, "now": {{"BACKEND": IMMEDIATE}}}})
class DummyBackendTestCase(SimpleTestCase):
    def setUp(self):
        default_task_backend.clear()

    def test_waits(self):
        result = tasks.double.enqueue(21)
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.assertEqual(default_task_backend.results, [result])

    def test_runs(self):
        for number in (1, 2, 21):
            with self.subTest(number):
                result = tasks.double.using(backend="now").enqueue(number)
                self.assertEqual(result.return_value, 42)

    def test_refresh_result(self):
        self.fail("must not run")
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_run_counts_each_test_once_and_names_what_it_skips(tmp_path):
    package = tmp_path / "tasks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text(
        f"from {LIBRARY} import task\n\n@task\ndef double(number):\n    return number * 2\n"
    )
    (package / "test_one.py").write_text(TESTS)

    command = [sys.executable, "-m", "tests.conformance.suite", tmp_path, LIBRARY]
    # On SQLite: on this run's server it would replace the database of this run.
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    run = subprocess.run(command, cwd=sources.ROOT, env=environment, capture_output=True, text=True)

    lines = run.stdout.splitlines()
    case = "test_one.DummyBackendTestCase"
    assert run.returncode == 1, run.stderr
    assert [line for line in lines if line.startswith("FAILED")] == [f"FAILED {case}.test_runs"]
    assert "AssertionError: 4 != 42" in lines
    assert lines[-2:] == [
        f"skipped {case}.test_refresh_result: {applicability.DUMMY_LIST}",
        "1 passed, 1 failed, 1 skipped",
    ]


def test_the_counts_are_added_and_a_failure_is_an_exit_code(monkeypatch, capsys):
    counts = iter([(60, 0, 5), (58, 2, 5)])
    monkeypatch.setattr(conformance, "_has_python", lambda version: version == "3.13")
    monkeypatch.setattr(conformance, "_install", lambda version: True)
    monkeypatch.setattr(conformance.Suite, "folder", lambda suite: sources.CACHE)
    monkeypatch.setattr(conformance, "_run", lambda suite, folder, url: next(counts))

    code = conformance.main(["--sqlite", "django-6", "backport-on-6.1"])

    said = capsys.readouterr().out.splitlines()
    assert code == 1
    assert "=== django-6.0: Python 3.12 is not installed" in said
    assert said[-1] == "118 passed, 2 failed, 10 skipped"


def test_a_run_without_tests_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(conformance, "_has_python", lambda version: False)

    assert conformance.main(["--sqlite"]) == 1

    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 0 failed, 0 skipped"


def test_the_names_of_the_backport_replace_those_of_django(tmp_path):
    sources._write(
        tmp_path / "test_tasks.py",
        "from django.tasks import Task, task\n"
        "from django.tasks.exceptions import InvalidTask, InvalidTaskBackend\n",
        sources.BACKPORT,
    )

    assert (tmp_path / "test_tasks.py").read_text() == (
        "from django_tasks.base import Task\n"
        "from django_tasks import task\n"
        "from django_tasks.exceptions import InvalidTaskError, InvalidTaskBackendError\n"
    )
