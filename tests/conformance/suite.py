"""
Run the tests of one folder: `python -m tests.conformance.suite FOLDER LIBRARY [--reference]`.

LIBRARY is `django.tasks` or `django_tasks`. The database is that of DATABASE_URL, or SQLite. With
`--reference` the library's own backends are tested, which shows whether a failure is one of ours.
The last line is `N passed, N failed, N skipped`; the exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import unittest
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import django
from django.db import connections
from django.test import TransactionTestCase
from django.test.runner import DiscoverRunner

from . import applicability


class Outcomes(unittest.TestResult):
    """The names of the tests, by what came of them. A test with subtests counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed.append(_name(test))

    def failed(self) -> dict[str, str]:
        """Return the traceback of each test that failed; of several, the last."""
        return {_name(test): text for test, text in (*self.errors, *self.failures)}

    def report(self) -> Iterator[str]:
        for name, text in self.failed().items():
            yield f"FAILED {name}\n{text}"
        for test, reason in self.skipped:
            yield f"skipped {_name(test)}: {reason}"
        yield f"{len(self.passed)} passed, {len(self.failed())} failed, {len(self.skipped)} skipped"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.suite", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("library", choices=["django.tasks", "django_tasks"])
    parser.add_argument("--reference", action="store_true")
    asked = parser.parse_args(arguments)
    sys.path.insert(0, str(asked.folder))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.conformance.settings"
    os.environ["CONFORMANCE_LIBRARY"] = asked.library
    django.setup()
    tests = unittest.TestSuite(_tests(asked.folder, asked.library, reference=asked.reference))
    outcomes = Outcomes()
    runner = DiscoverRunner(verbosity=0, interactive=False)
    runner.setup_test_environment()
    databases = runner.setup_databases(aliases={"default": False})
    try:
        tests.run(outcomes)
        print("\n".join(outcomes.report()), flush=True)
    finally:
        runner.teardown_databases(databases)
    return 1 if outcomes.failed() or not outcomes.passed else 0


def _tests(folder: Path, library: str, *, reference: bool) -> Iterator[unittest.TestCase]:
    for case in _cases(folder, library, reference=reference):
        names = unittest.defaultTestLoader.getTestCaseNames(case)
        attributes = {} if reference else _attributes(case, names, library)
        # Most of theirs are SimpleTestCase, to which Django refuses every query.
        bases = (case,) if issubclass(case, TransactionTestCase) else (case, TransactionTestCase)
        made = type(case.__name__, bases, {"__module__": case.__module__, **attributes})
        yield from map(made, names)


def _cases(folder: Path, library: str, *, reference: bool) -> list[type[unittest.TestCase]]:
    """Import the modules of tests and return their classes."""
    if not reference:
        from . import backends  # imports models: the apps are ready by now

        backends.replace_backends(library)
    import_module("tasks.tasks")
    found = []
    for path in sorted(folder.glob("tasks/test_*.py")):
        base = nullcontext()
        if path.stem == "test_custom_backend" and not reference:
            # Its backends and tasks are subclasses: here, of ours.
            base = mock.patch(
                f"{library}.backends.base.BaseTaskBackend", backends.DeadletterBackend
            )
        with base:
            module = import_module(f"tasks.{path.stem}")
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, unittest.TestCase)
            and value.__module__ == module.__name__
        ]
    return found


def _attributes(case: type, names: list[str], library: str) -> dict[str, Any]:
    """Return what a test case of theirs gets in the place of its own."""
    from .backends import TASKS_DB_CASE

    # An app that is not named here would have no tables.
    attributes: dict[str, Any] = {"available_apps": None}
    if case.__module__ == "tasks.test_database_backend":
        attributes |= TASKS_DB_CASE
    for name in names:
        if reason := applicability.reason(case.__name__, name, library):
            attributes[name] = unittest.skip(reason)(lambda self: None)
        elif f"{case.__name__}.{name}" in applicability.QUERIES_IN_A_COROUTINE:
            attributes[name] = _with_queries(getattr(case, name))
    return attributes


def _with_queries(test: Any) -> Any:
    """Allow a coroutine to query; the event loop has a thread and connections of its own."""

    async def run(self: Any) -> None:
        with mock.patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="1"):
            try:
                await test(self)
            finally:
                connections.close_all()

    return run


def _name(test: Any) -> str:
    test = getattr(test, "test_case", test)  # of a subtest
    return test.id().removeprefix("tasks.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
