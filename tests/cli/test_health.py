"""`manage.py deadletter health`: reasons for people, an exit code for probes."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from django.conf import settings

from deadletter import send
from deadletter.models import WorkerProcess
from tests.operations.records import dead
from tests.patience import PATIENCE
from tests.silence import silent_database


@pytest.fixture
def worker(clock) -> None:
    WorkerProcess.objects.create(
        name="w1",
        host="h1",
        pid=1,
        version="1",
        queues=["default"],
        concurrency=8,
        started_at=clock.now,
        seen_at=clock.now - timedelta(seconds=20),
    )


def test_health_exits_0_and_names_who_works(cli, worker) -> None:
    result = cli("health")

    assert (result.code, result.lines) == (0, ["healthy: 1 live worker(s): w1"])


def test_ill_health_exits_1_and_says_why(cli, clock) -> None:
    send("mail")

    result = cli("health")

    assert result.code == 1
    assert result.lines == [
        "not healthy:",
        "- no worker was seen in the last 30 s; is `manage.py run_worker` running?",
        "- queue default has messages due and no live worker serves it",
    ]


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (["--max-age", "10"], 1),
        (["--max-age", "20"], 0),
        (["--min-workers", "2"], 1),
        (["--max-wait", "4"], 1),
        (["--max-wait", "5"], 0),
        (["--max-poison", "0"], 1),
        (["--max-poison", "1"], 0),
        (["--max-poison", "0", "--window", "5"], 0),
        (["--worker", "w1", "--max-poison", "0"], 0),
        (["--host", "h2"], 1),
    ],
)
def test_every_limit_is_an_option(cli, worker, clock, limits: list[str], code: int) -> None:
    dead()
    send("mail")
    clock.advance(5)
    WorkerProcess.objects.update(seen_at=clock.now - timedelta(seconds=20))

    assert cli("health", *limits).code == code


def test_json_has_the_same_for_scripts(cli, worker, clock) -> None:
    send("mail")
    clock.advance(5)

    result = cli("health", "--format", "json", "--max-wait", 1)

    assert result.code == 1
    assert result.json == {
        "ok": False,
        "problems": ["queue default: a message has been due for 5 s (more than 1)"],
        "warnings": [],
        "workers": ["w1"],
        "queues": [{"name": "default", "waited": 5.0, "workers": 1}],
        "brokers": [],
        "breakers": [],
        "halted_streams": 0,
        "poison": 0,
        "reachable": True,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        ["--max-age", "0"],
        ["--max-wait", "soon"],
        ["--max-wait", "nan"],
        ["--max-poison", "-1"],
        ["--max-poison", "10001"],
        ["--max-poison", "many"],
        ["--min-workers", "1.5"],
        ["--timeout", "inf"],
        ["--database", "nowhere"],
    ],
)
def test_wrong_use_exits_2(cli, wrong: list[str]) -> None:
    assert cli("health", *wrong).code == 2


@pytest.mark.django_db(transaction=True)
def test_a_database_that_hangs_is_away_in_time(cli) -> None:
    with silent_database() as alias:
        result = cli("health", "--database", alias, "--timeout", "0.2")

    assert result.code == 1
    assert result.lines[1] == "- the database 'silent' did not answer within 0.2 s"


@pytest.mark.process
def test_a_database_that_is_not_migrated_is_said_to_be_so(tmp_path) -> None:
    ran = subprocess.run(
        [sys.executable, "manage.py", "deadletter", "health"],
        env={"DATABASE_URL": f"sqlite:///{tmp_path / 'new.sqlite3'}"},
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "no such table" in ran.stdout
