"""Documented names stay: none is ever removed, nor any of their parameters and attributes."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth import get_permission_codename

from .public_api import public_lines

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Paths that a release has documented.
DOCUMENTED = [
    "deadletter.admin.queues.QueueAdmin",
    "deadletter.backoff",
    "deadletter.health_view.health",
    "deadletter.lifecycle.burial.read_burial",
    "deadletter.lifecycle.transaction",
    "deadletter.models.Queue",
    "deadletter.operations",
    "deadletter.signals.message_poisoned",
    "deadletter.testing",
    "deadletter.urls",
    "deadletter.views.health",
]


def test_every_public_name_parameter_and_attribute_is_still_there():
    """`public_names.txt` only ever grows: one line per name, parameter and attribute."""
    frozen = (ROOT / "tests/public_names.txt").read_text().splitlines()

    missing = set(frozen) - set(public_lines())

    assert len(frozen) > 1_500
    assert sorted(missing) == []


@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_documented_path_can_be_imported(path: str):
    assert found(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_on_a_page_exists(page: Path):
    text = page.read_text()
    dotted = set(re.findall(r"(?<![\w./\"'-])deadletter(?:\.[A-Za-z_]\w*)+", text))
    for module, names in re.findall(r"^\s*from (deadletter[\w.]*) import ([\w ,]+)", text, re.M):
        given = [name.split(" as ")[0].strip() for name in names.split(",")]
        dotted |= {f"{module}.{name}" for name in given if name}

    missing = [path for path in dotted if not found(path) and path not in other_names()]

    assert sorted(missing) == []


def test_a_name_that_does_not_exist_is_noticed():
    assert not found("deadletter.lifecycle.nothing_of_that_name")
    assert not found("deadletter.nothing.of_that_name")


def found(path: str) -> bool:
    """Return True if a dotted path leads to a module or to a name in one."""
    module, *rest = path.split(".")
    value = import_module(module)
    for name in rest:
        module = f"{module}.{name}"
        try:
            value = getattr(value, name)
        except AttributeError:
            try:
                value = import_module(module)
            except ModuleNotFoundError:
                return False
    return True


def other_names() -> set[str]:
    """Return what is written with dots and is no Python name: check ids and permissions."""
    ids = {f"deadletter.{kind}{n:03}" for kind in "EW" for n in range(1, 100)}
    for model in apps.get_app_config("deadletter").get_models():
        options = model._meta
        codes = [get_permission_codename(act, options) for act in options.default_permissions]
        codes += [code for code, _ in options.permissions]
        ids |= {f"deadletter.{code}" for code in codes}
    return ids
