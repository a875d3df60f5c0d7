"""Names that a newcomer can guess: what the tree must keep, whatever is added to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import tree

FOUND = tree.modules()

#: How many files a typical change touches, by the recipe of CONTRIBUTING.md.
RECIPES = {"A failure reason": 5, "A queue option": 9, "An admin page": 7}


def test_no_module_has_the_name_of_a_gerund_or_a_participle() -> None:
    assert tree.gerunds(FOUND) == []


def test_no_name_stands_twice_in_a_sub_package() -> None:
    assert tree.duplicate_stems(FOUND) == {}


def test_no_class_name_stands_twice() -> None:
    assert tree.duplicate_classes(FOUND) == {}


def test_no_module_is_hidden_by_a_function_of_its_package() -> None:
    assert tree.hidden_modules(FOUND) == []


def test_docstrings_open_with_statements() -> None:
    assert tree.questions(FOUND) == []


def test_pages_know_the_class_of_their_model_admin() -> None:
    assert tree.untyped_admins(FOUND) == 0


@pytest.mark.parametrize(("recipe", "most"), RECIPES.items())
def test_a_recipe_names_files_that_exist_and_not_too_many(recipe: str, most: int) -> None:
    text = (tree.ROOT / "CONTRIBUTING.md").read_text()
    section = re.search(rf"^### {recipe}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, recipe

    files = re.findall(r"^\d+\. `([^`]+)`", section[1], re.MULTILINE)

    assert 0 < len(files) <= most
    for file in files:
        place = tree.ROOT / file
        # A name in angle brackets is one that the change makes.
        assert "<" in file or place.exists(), Path(file)


def test_the_measures_find_what_they_look_for(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("from .ship import ship\n")
    (tmp_path / "shop" / "ship.py").write_text('"""Is it there?"""\nclass Box: ...\n')
    (tmp_path / "shop" / "sub").mkdir()
    (tmp_path / "shop" / "sub" / "ship.py").write_text("class Box: ...\n")
    (tmp_path / "shop" / "sending.py").write_text("def page(model_admin: Any): ...\n")

    found = tree.modules(tmp_path)

    assert tree.gerunds(found) == ["shop/sending.py"]
    assert list(tree.duplicate_stems(found)) == ["shop: ship"]
    assert list(tree.duplicate_classes(found)) == ["Box"]
    assert tree.hidden_modules(found) == ["shop/ship.py"]
    assert tree.questions(found) == ["shop/ship.py: Is it there?"]
    assert tree.untyped_admins(found) == 1
