"""The files of named statements: the same names for both databases, each statement once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deadletter import sql

FOLDER = Path(sql.__file__).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Read the statements of a folder of the test's own."""
    (tmp_path / "sqlite").mkdir()
    monkeypatch.setattr(sql.resources, "files", lambda package: tmp_path)
    sql.statements.cache_clear()
    yield tmp_path
    sql.statements.cache_clear()


def files(vendor: str) -> list[str]:
    return sorted(path.name for path in (FOLDER / vendor).iterdir())


def test_both_databases_have_the_same_files():
    assert files("postgresql") == files("sqlite")


def test_every_statement_of_sqlite_is_one_of_postgresql():
    assert set(sql.statements("sqlite")) <= set(sql.statements("postgresql"))


def test_a_statement_of_each_file_is_found(folder: Path):
    (folder / "shared.sql").write_text("-- both --\n-- A promise.\nSELECT 1;\n")
    (folder / "sqlite/claim.sql").write_text("-- claim --\nSELECT 2;\nSELECT 3 -- why\n")

    assert sql.statements("sqlite") == {"both": ("SELECT 1",), "claim": ("SELECT 2", "SELECT 3")}


def test_a_name_in_two_files_is_an_error(folder: Path):
    (folder / "shared.sql").write_text("-- claim --\nSELECT 1;\n")
    (folder / "sqlite/claim.sql").write_text("-- claim --\nSELECT 2;\n")

    with pytest.raises(ValueError, match=r"claim\.sql has a second statement 'claim' for sqlite"):
        sql.statements("sqlite")
