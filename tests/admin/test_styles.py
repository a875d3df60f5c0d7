"""Style sheets work under any theme: every variable of a theme has a fallback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

STATIC = Path(settings.BASE_DIR) / "deadletter/static/deadletter"
SHEETS = sorted(STATIC.glob("*.css"))
USE = re.compile(r"var\(\s*(--[\w-]+)\s*([,)])")


def without_comments(path: Path) -> str:
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def own() -> set[str]:
    """Every variable that our pages define for their whole body."""
    (body,) = re.findall(r"^body \{(.*?)^\}", without_comments(STATIC / "theme.css"), re.M | re.S)
    return set(re.findall(r"^\s*(--dl-[\w-]+):", body, re.MULTILINE))


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.name)
def test_every_variable_of_a_theme_has_a_fallback(path: Path):
    text = without_comments(path)

    missing = {name for name, end in USE.findall(text) if end == ")"} - own()

    assert missing == set()
    assert len(own()) > 30


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.name)
def test_every_sheet_has_the_variables_it_uses(path: Path):
    """Each is loaded by itself somewhere, except the one that is always beside another."""
    text = path.read_text()

    brings = text.startswith('@import url("theme.css");\n')

    assert brings == (path.name not in ("theme.css", "instance.css"))


def test_variables_of_themes_are_read_in_one_place():
    elsewhere = {
        f"{path.name}: {name}"
        for path in SHEETS
        if path.name != "theme.css"
        for name, _ in USE.findall(without_comments(path))
        if not name.startswith("--dl-")
    }

    assert elsewhere == set()


def test_our_own_classes_and_ids_have_one_prefix():
    sources = [*STATIC.iterdir(), *STATIC.parents[1].glob("templates/**/*.html")]
    sources += STATIC.parents[1].glob("admin/**/*.py")

    other = {
        f"{path.name}: {name}"
        for path in sources
        for name in re.findall(r"\bdeadletter-[\w{-]+", path.read_text())
    }

    assert other == set()
