"""Every behaviour of the original designs is on its page, with tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
PAGE = (ROOT / "docs/behaviours.md").read_text()
#: How many behaviours each design has; D are the decisions, T the traps.
DESIGNS = {"A": 36, "B": 26, "C": 32, "U": 15, "E": 23, "D": 34, "T": 10}
ROWS = re.findall(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)


def test_every_behaviour_has_its_line():
    listed = [id for id, _text, _tests in ROWS]
    wanted = [f"{letter}{n}" for letter, last in DESIGNS.items() for n in range(1, last + 1)]

    assert sorted(listed) == sorted(wanted)


@pytest.mark.parametrize(("id", "tests"), [(id, tests) for id, _text, tests in ROWS])
def test_a_behaviour_names_tests_that_are_there(id: str, tests: str):
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)

    assert named, f"{id} names no test"
    for path, function in named:
        assert f"def {function}(" in (ROOT / path).read_text(), f"{id}: {path}::{function}"


def test_what_was_decided_otherwise_has_a_reason():
    otherwise = [text for _id, text, _tests in ROWS if "**Decided otherwise:**" in text]

    assert otherwise
    assert all(len(text.partition("**Decided otherwise:**")[2]) > 20 for text in otherwise)
