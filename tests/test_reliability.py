"""The tables of faults name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
PAGE = (ROOT / "docs/reliability.md").read_text()
NAMED = sorted(set(re.findall(r"tests/[\w/]+\.py(?:::\w+)?", PAGE)))


def test_the_tables_name_tests():
    assert len(NAMED) > 100


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_holds_a_promise_is_there(name: str):
    path, _, function = name.partition("::")

    assert (f"def {function}(" if function else "def test_") in (ROOT / path).read_text()


def test_every_fault_has_its_line_in_order():
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]

    assert numbers == list(range(1, 71))
