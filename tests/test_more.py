"""The parts of `make test-more`: what runs on which day, and what the exit code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import both_databases, more

ROOT = Path(more.ROOT)


def test_every_file_of_a_part_exists():
    patterns = {pattern for part in more.parts().values() for pattern in part.files}

    assert [pattern for pattern in sorted(patterns) if not list(ROOT.glob(pattern))] == []


@pytest.mark.process
def test_a_year_of_days_runs_every_part_that_can_run_here():
    able = {name for name, part in more.parts().items() if part.is_available}

    assert {more.part_of_the_day(day, []).name for day in range(1, 366)} == able


@pytest.mark.process
def test_a_change_near_the_database_is_tried_on_another_server():
    chosen = {
        more.part_of_the_day(day, ["deadletter/sql/sqlite/claim.sql"]) for day in range(1, 60)
    }

    assert {bool(part.server) for part in chosen} == {True}


def test_a_change_near_django_is_tried_on_another_pair(monkeypatch):
    monkeypatch.setattr(more, "_has_python", lambda version: True)
    chosen = {more.part_of_the_day(day, ["deadletter/alerts/mail.py"]) for day in range(1, 60)}

    assert {part.python for part in chosen} == set(more.PAIRS)


def test_a_change_of_the_tasks_is_tried_on_the_tests_of_others(monkeypatch):
    called = []
    monkeypatch.setattr(more, "_has_python", lambda version: True)
    monkeypatch.setattr(more, "_call", lambda command: called.append(command[1:]) or 0)

    for day in (0, 1):
        code = more.part_of_the_day(day, ["deadletter/tasks/backend.py"]).run(["-k", "name"])
        assert code == 0

    site = ["-m", "tests.both_databases", "-m", "wagtail", "tests/wagtail", "-k", "name"]
    assert called == [["-m", "tests.conformance"], site]


def test_the_pairs_are_those_of_the_matrix():
    matrix = (ROOT / ".ci/matrix").read_text()

    assert [f'"{version} django' in matrix for version in more.PAIRS] == [True] * 3


def test_a_server_that_is_not_installed_is_skipped_and_named(capsys, monkeypatch):
    monkeypatch.setattr(more, "is_available", lambda version: False)

    assert more.main(["postgresql-15-plans"]) == 0

    assert "skipped: PostgreSQL 15 is not installed" in capsys.readouterr().out


def test_an_interpreter_that_is_not_installed_is_skipped_and_named(capsys, monkeypatch):
    monkeypatch.setattr(more, "_has_python", lambda version: False)

    assert more.main(["python-3.12-django"]) == 0

    assert "skipped: Python 3.12 is not installed" in capsys.readouterr().out


@pytest.mark.process
def test_the_matrix_knows_which_interpreters_are_there():
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"

    assert (more._has_python(here), more._has_python("3.99")) == (True, False)


def test_a_part_that_nobody_knows_is_an_error(capsys):
    assert more.main(["postgresql-9-plans"]) == 1

    assert "no such part: postgresql-9-plans" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize(("selection", "code"), [("every_point", 0), ("nothing_has_this_name", 1)])
def test_the_exit_code_is_that_of_the_tests_and_their_count_is_shown(tmp_path, selection, code):
    (tmp_path / "test_one.py").write_text("def test_every_point():\n    pass\n")
    program = (
        "import sys; from tests import more\n"
        f"part = more.Part('here', (), (), server='16')\n"
        f"sys.exit(more._run_all([part], ['-k', {selection!r}, {str(tmp_path / 'test_one.py')!r}]))"
    )

    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert run.returncode == code, run.stdout + run.stderr
    assert ("1 passed" if code == 0 else "1 deselected") in run.stdout


@pytest.mark.process
def test_a_whole_run_adds_the_plans_on_the_older_server(monkeypatch):
    ran = []
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("PRIVATE_POSTGRES_VERSION", raising=False)
    for arguments in ([], ["-k", "x"]):
        run = both_databases.Run(arguments)
        monkeypatch.setattr(run, "start", lambda url=None, said=None, more=(): (url, tuple(more)))
        monkeypatch.setattr(run, "end", lambda name, half, said=None: ran.append((name, half[1])))
        run.also_on_older()

    assert ran == [("PostgreSQL 16: tests/plans", ("tests/plans",))]
