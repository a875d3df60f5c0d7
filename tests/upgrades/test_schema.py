"""The new schema under old statements, and the old schema under the new code."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from .release import ROOT, Release

pytestmark = pytest.mark.process

#: Table and column: whether an INSERT must name it, since the database has nothing to fill it with.
Columns = dict[tuple[str, str], bool]

SQLITE = """
    SELECT m.name, c.name, c."notnull" AND c.dflt_value IS NULL AND NOT c.pk
    FROM sqlite_master m, pragma_table_info(m.name) c
    WHERE m.type = 'table' AND m.name LIKE 'deadletter%'
"""
POSTGRESQL = """
    SELECT table_name, column_name,
        is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'
    FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name LIKE 'deadletter%'
"""


@pytest.fixture(scope="module")
def old_file(old_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of SQLite as the old release migrates it."""
    path = tmp_path_factory.mktemp("old_schema") / "old.sqlite3"
    old = Release(old_root, f"sqlite:///{path}", path.parent)
    old.manage("migrate", "--run-syncdb", "--verbosity", "0")
    return path


@pytest.fixture
def old_columns(old_file: Path) -> Columns:
    file = sqlite3.connect(old_file)
    try:
        return {(table, column): bool(must) for table, column, must in file.execute(SQLITE)}
    finally:
        file.close()


@pytest.fixture
def columns(db: None) -> Columns:
    with connection.cursor() as cursor:
        cursor.execute(SQLITE if connection.vendor == "sqlite" else POSTGRESQL)
        return {(table, column): bool(must) for table, column, must in cursor.fetchall()}


def test_what_old_statements_name_is_still_there(old_columns: Columns, columns: Columns):
    assert len(old_columns) > 100
    assert sorted(old_columns.keys() - columns.keys()) == []


def test_what_old_statements_do_not_name_is_filled_by_the_database(
    old_columns: Columns, columns: Columns
):
    """
    A column in a table that the old release writes to is NULL or has a default in the database.

    Django's `default` is not one: it takes `db_default`.
    """
    tables = {table for table, _ in old_columns}
    new = {place: must for place, must in columns.items() if place not in old_columns}

    assert sorted(place for place, must in new.items() if must and place[0] in tables) == []


def test_a_column_has_not_become_required(old_columns: Columns, columns: Columns):
    # Compared on one database: the two do not agree on what a primary key needs.
    became = [place for place, must in columns.items() if must and old_columns.get(place) is False]

    assert [place for place in became if place[1] != "id"] == []


def test_new_workers_refuse_the_old_schema_and_say_why(old_file: Path):
    """As when a deployment forgets to migrate; the old workers go on."""
    arguments = ("manage.py", "run_worker", "--drain")
    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{old_file}"}
    environment["DJANGO_SETTINGS_MODULE"] = "tests.settings"

    run = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )

    assert run.returncode == 1, run.stdout + run.stderr
    assert "lacks migrations of deadletter: " in run.stderr
    assert "0013_rules" in run.stderr
    assert "Traceback" not in run.stderr
