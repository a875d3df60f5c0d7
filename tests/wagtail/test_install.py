"""When the tests of the Wagtail site run, are skipped, or fail before they begin."""

from __future__ import annotations

import subprocess
import sys
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.conftest import ASKED_FOR
from tests.wagtail import site

OFFLINE = "WARNING: Retrying\nERROR: No matching distribution found for wagtail<9,>=8\n"


@pytest.fixture
def pip_says(monkeypatch, tmp_path) -> Any:
    """Give pip an answer, in an environment that exists."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setattr(site, "CACHE", tmp_path)

    def say(code: int, text: str) -> None:
        monkeypatch.setattr(site, "_run", lambda *_, **__: CompletedProcess([], code, "", text))

    return say


@pytest.mark.process
def test_the_site_is_not_made_unless_it_is_asked_for():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, "tests/wagtail/test_site.py"], cwd=site.ROOT, capture_output=True, text=True
    )

    assert (run.returncode, "7 skipped" in run.stdout) == (0, True), run.stdout + run.stderr
    assert ASKED_FOR["wagtail"] in run.stdout


def test_a_machine_that_cannot_install_wagtail_says_so_in_one_line(pip_says):
    pip_says(1, OFFLINE)

    with pytest.raises(site.NotInstalled) as raised:
        site.make_site(site.CACHE / "copy")

    assert str(raised.value) == (
        "Wagtail cannot be installed: ERROR: No matching distribution found for wagtail<9,>=8"
    )


def test_requirements_that_exclude_each_other_are_a_failure(pip_says):
    pip_says(1, "ERROR: ResolutionImpossible: for help visit")

    with pytest.raises(AssertionError, match="cannot be installed together"):
        site.make_site(site.CACHE / "copy")
