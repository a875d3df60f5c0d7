"""What the source must not do with what is in a row, and how the demonstration is deployed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
SOURCES = sorted((ROOT / "deadletter").rglob("*.py"))
TEMPLATES = sorted((ROOT / "deadletter").rglob("*.html")) + sorted((ROOT / "templates").rglob("*"))

#: Modules that make code or objects of data.
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "mark_safe", "SafeString"}
#: Names of what is imported by name, and where that is allowed: of settings and of our own modules.
#: One place imports what a row names, tasks/lookup.py; tests/tasks/test_lookup.py shows its limits.
IMPORTERS = {
    "import_string": {
        "deadletter/conf.py",
        "deadletter/outbox/brokers.py",
        "deadletter/tasks/lookup.py",
        "deadletter/tasks/task_class.py",
    },
    "import_module": {
        "deadletter/__init__.py",
        "deadletter/checks.py",
        # The modules of installed apps and of settings.
        "deadletter/schedules/declarations.py",
        "deadletter/tasks/__init__.py",
        "deadletter/tasks/frameworks.py",
        "deadletter/tasks/lookup.py",
    },
}


def named(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def problems(text: str, path: str) -> list[str]:
    """Everything in a source that could make code of a value."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = {alias.name.partition(".")[0] for alias in node.names}
            found += sorted(modules & FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN_MODULES:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            name = named(node)
            # re.compile and the like are methods of something; the builtin stands alone. What the
            # source itself says holds no value of a row.
            alone = isinstance(node.func, ast.Name)
            alone = alone and not all(isinstance(given, ast.Constant) for given in node.args)
            if (name in FORBIDDEN_CALLS and alone) or path not in IMPORTERS.get(name, {path}):
                found.append(name)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_in_a_row_can_become_code(path: Path):
    assert problems(path.read_text(), str(path.relative_to(ROOT))) == []


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from pickle import loads", "eval(row.name)", "exec(x)", "mark_safe(x)",
     "import_string(message.name)", "importlib.import_module(x)", "__import__(x)"],
)  # fmt: skip
def test_each_way_to_make_code_of_a_value_would_be_seen(text):
    assert len(problems(text, "deadletter/worker/registry.py")) == 1


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_template_trusts_what_it_shows(path: Path):
    text = path.read_text()

    assert re.findall(r"\|\s*safe\b|autoescape\s+off|\|\s*safeseq\b", text) == []


@pytest.mark.process
@pytest.mark.sqlite_only(reason="settings are the same on both")
def test_the_demonstration_site_can_be_deployed_without_a_warning():
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env={**os.environ, "HTTPS": "1", "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr


def test_a_name_that_is_a_function_of_python_is_only_an_unknown_name(clock, counts):
    from deadletter import send, testing

    for name in ("os.system", "builtins.eval", "deadletter.testing.drain"):
        send(name, {"__reduce__": ["os.system", ["true"]], "py/object": "os.system"})

    assert testing.drain().deferred == 3
    assert counts() == {"scheduled": 3}
