"""The one who breaks things keeps to its plan, also where everything takes longer than planned."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sample.journal import DIRECTORY

from . import nemesis
from .nemesis import Nemesis
from .plan import Fault

pytestmark = pytest.mark.process


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setattr(nemesis, "RECOVERY", 0.05)
    return []


def attack(faults: list[Fault], **server: Any) -> None:
    site: Any = SimpleNamespace(server=SimpleNamespace(**server), is_blocked_by=lambda pids: False)
    crew: Any = SimpleNamespace(replace_dead=lambda: None)
    Nemesis(site, crew, seed=1).run(faults)


def test_a_server_that_comes_back_late_suffers_the_next_fault_later(
    done: list[str], tmp_path: Path
):
    def start() -> None:
        # Longer than the plan leaves until the next faults.
        begun = time.monotonic()
        while time.monotonic() < begun + 0.2:
            pass
        done.append("start")

    faults = [
        Fault(0.0, "crash", 0, 0.01),
        Fault(0.05, "kill_server", 0, 0.1),
        Fault(0.06, "crash", 0, 0.01),
    ]

    attack(
        faults,
        start=start,
        crash=lambda: done.append("crash"),
        kill=lambda: done.append("kill"),
    )

    assert done == ["crash", "start", "kill", "start", "crash", "start"]
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["crash", "kill_server", "crash"]


def test_an_operator_does_not_wait_for_a_run_that_failed(
    done: list[str], monkeypatch: pytest.MonkeyPatch
):
    def away(**fields: Any) -> None:
        raise nemesis.Error("away")

    def start() -> None:
        raise RuntimeError("does not start")

    monkeypatch.setattr(nemesis, "_be_impatient", lambda: None)
    monkeypatch.setattr(nemesis, "set_policy", away)

    with pytest.raises(RuntimeError, match="does not start"):
        attack(
            [Fault(0.0, "pause", 0, 0.01), Fault(0.1, "crash", 0, 0.1)],
            start=start,
            crash=lambda: None,
        )
