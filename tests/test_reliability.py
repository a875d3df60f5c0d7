"""The tables of faults name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
PAGES = sorted((ROOT / "docs").rglob("reliab*.md")) + sorted(
    (ROOT / "docs/reliability").glob("*.md")
)
NAMED = sorted(
    {name for page in PAGES for name in re.findall(r"tests/[\w/]+\.py::\w+", page.read_text())}
)


def test_the_tables_name_tests():
    assert len(NAMED) > 60


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_holds_a_promise_is_there(name: str):
    path, _, function = name.partition("::")

    assert f"def {function}(" in (ROOT / path).read_text()
