"""The list of workers shows which are alive, what each runs, and the open circuit breakers."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from deadletter import send
from deadletter.models import Breaker, WorkerDeath, WorkerProcess

from .conftest import SCRIPT, url


@pytest.fixture
def worker(clock) -> Any:
    def make(name: str = "w1", *, ago: float = 1, **given: Any) -> WorkerProcess:
        values = {
            "host": "host-a",
            "pid": 7,
            "version": "0.1",
            "queues": ["default", "mail"],
            "concurrency": 4,
            "running": [],
            "started_at": clock.now - timedelta(hours=1),
            "seen_at": clock.now - timedelta(seconds=ago),
        }
        return WorkerProcess.objects.create(name=name, **values | given)

    return make


def test_the_living_and_the_dead_are_told_apart(admin_client: Client, worker) -> None:
    worker("quick", ago=5)
    worker("gone", ago=600)

    html = admin_client.get(url("workerprocess")).content.decode()

    assert re.findall(r'dl-state-(?:due|halted)">([^,<]+)', html) == ["dead", "alive"]


def test_what_a_worker_runs_counts_on_since_it_told(admin_client: Client, worker) -> None:
    running = [
        {"id": id, "name": "mail", "queue": "default", "seconds": 100 - id} for id in range(1, 6)
    ]
    made = worker(ago=3, running=running)

    html = admin_client.get(url("workerprocess")).content.decode()
    page = admin_client.get(url("workerprocess", "change", made.pk)).content.decode()

    assert "0:01:42" in html  # 99 + 3
    assert "and 2 more" in html
    assert url("message", "change", 1) in html
    assert "mail #5" not in html
    assert "mail #5" in page


@pytest.mark.parametrize(
    "running",
    [
        {},
        7,
        None,
        ["x", 3, None, {}],
        [{"id": SCRIPT, "name": SCRIPT, "seconds": "x"}],
        [{"id": None, "seconds": None}],
    ],
)
def test_whatever_a_worker_told_is_shown(admin_client: Client, worker, running: Any) -> None:
    made = worker(running=running if running is not None else [], queues={"a": 1})

    for page in (url("workerprocess"), url("workerprocess", "change", made.pk)):
        response = admin_client.get(page)
        assert response.status_code == 200
        assert "<script>alert" not in response.content.decode()


def test_an_open_breaker_says_until_when(admin_client: Client, clock) -> None:
    held = Breaker.objects.create(
        name="mail.send",
        failures=10,
        error=SCRIPT,
        opened_at=clock.now,
        until=clock.now + timedelta(seconds=25),
        opened_by="w1",
    )

    html = admin_client.get(url("breaker")).content.decode()
    page = admin_client.get(url("breaker", "change", held.pk)).content.decode()
    clock.advance(30)
    later = admin_client.get(url("breaker")).content.decode()
    page_later = admin_client.get(url("breaker", "change", held.pk)).content.decode()

    assert "held for 25 more seconds" in html
    assert "mail.send" not in later
    assert "the next message is tried" in page_later
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in html + page


@pytest.mark.parametrize("model", ["workerprocess", "breaker"])
def test_workers_are_looked_at_only(admin_client: Client, login, worker, model: str) -> None:
    made = worker()

    assert admin_client.get(url(model, "add")).status_code == 403
    assert admin_client.post(url("workerprocess", "delete", made.pk)).status_code == 403
    assert login().get(url(model)).status_code == 403
    assert WorkerProcess.objects.count() == 1


def test_deaths_say_of_what_and_what_else_was_held(admin_client: Client, clock) -> None:
    waiting = send("mail")
    held = [
        {"id": waiting.pk, "name": "mail", "queue": "default", "running": True},
        *({"id": 10**6 + n, "name": SCRIPT, "queue": "q", "running": False} for n in range(4)),
    ]
    WorkerDeath.objects.create(
        name="w-1",
        host="h",
        pid=77,
        died_at=clock.now,
        signal=9,
        peak_memory=512 * 2**20,
        held=held,
        successor="w-1",
    )
    WorkerDeath.objects.create(
        name="w-2", host="h", pid=78, died_at=clock.now, exit_code=3, held=["damaged", {"id": "x"}]
    )

    html = admin_client.get(url("workerprocess")).content.decode()

    assert "SIGKILL (9)" in html
    assert "exit code 3" in html
    assert "512 MiB" in html
    assert url("message", "change", waiting.pk) in html
    assert "and 2 more" in html
    assert "not restarted" in html
    assert "<script>alert" not in html


def test_without_deaths_the_page_says_so(admin_client: Client, db) -> None:
    html = admin_client.get(url("workerprocess")).content.decode()

    assert "No worker process has died" in html


def test_a_line_names_the_releases_when_live_workers_run_different_ones(
    admin_client: Client, worker
) -> None:
    worker("w1", release="2.7.1")
    worker("w2", release="2.7.1")
    worker("w3", release=SCRIPT)
    worker("w4")
    worker("dead", release="2.6.9", ago=600)

    response = admin_client.get(url("workerprocess"))

    assert response.context["releases"] == [("2.7.1", 2), ("", 1), (SCRIPT, 1)]
    html = response.content.decode()
    assert "Live workers run different releases:" in html
    assert "<bdi>no release</bdi> (1 worker)" in html
    assert "<script>alert" not in html


def test_one_release_for_all_live_workers_needs_no_line(admin_client: Client, worker) -> None:
    made = worker("w1", release="2.7.1")
    worker("w2", release="2.7.1")
    worker("dead", release="2.6.9", ago=600)

    html = admin_client.get(url("workerprocess")).content.decode()
    page = admin_client.get(url("workerprocess", "change", made.pk)).content.decode()

    assert "different releases" not in html
    assert "2.7.1" in html
    assert "2.6.9" in html
    assert "2.7.1" in page
