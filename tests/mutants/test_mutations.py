"""The mutations cannot rot: each still applies to the source, and its tests are still there."""

from __future__ import annotations

import pytest

from .mutation import ROOT, Edit
from .mutations import mutations

ALL = mutations()


@pytest.mark.parametrize("mutation", ALL, ids=lambda one: f"{one.name} ({one.on})")
def test_a_mutation_changes_the_source_and_names_tests_that_exist(mutation):
    for edit in mutation.edits:
        before = (ROOT / edit.path).read_text()
        assert edit.changed(before) != before

    for test in mutation.tests:
        path, _, function = test.partition("::")
        assert (ROOT / path).exists()
        assert not function or f"def {function}(" in (ROOT / path).read_text()


def test_every_mutation_has_a_name_of_its_own():
    names = [(mutation.name, mutation.on) for mutation in ALL]

    assert len(names) == len(set(names))


def test_a_text_that_is_gone_or_in_another_statement_is_refused():
    text = "-- one --\nSELECT 1;\n-- two --\nSELECT 2;\n"

    assert Edit("x", "SELECT", "UPDATE", "two").changed(text).count("SELECT") == 1
    with pytest.raises(ValueError, match="0 times"):
        Edit("x", "SELECT 1", "", "two").changed(text)
    with pytest.raises(ValueError, match="2 times"):
        Edit("x", "SELECT", "").changed(text)
    with pytest.raises(ValueError, match="no statement three"):
        Edit("x", "SELECT", "", "three").changed(text)
