"""A user who may not view a model does not see its numbers on the dashboard either."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from deadletter import lifecycle, send
from deadletter.models import Breaker, Count, Queue, WorkerProcess

pytestmark = pytest.mark.slow

HOME = "/admin/deadletter/"
#: Words that only the numbers of a model bring to the page.
TOLD = {
    "view_message": [
        "blocked",
        "Blocked and halted streams",
        "by attempts",
        "1 stream",
    ],
    "view_poisonrecord": [
        "Causes that need a person",
        "1 dead letter of the last hour",
        "fingerprint=",
    ],
    "view_workerprocess": ["Live workers", "worker-of-mail"],
    "view_breaker": ["Open circuit breakers", "held.name"],
    "view_count": ["/count/?what=sent"],
}
#: Charts are told by the rows or by their counters.
CHARTS = {
    "view_message": ["throughput", "failures"],
    "view_poisonrecord": ["poison"],
    "view_count": ["throughput", "failures", "poison"],
}


@pytest.fixture
def incident(clock, poisoned) -> None:
    """Something wrong with everything."""
    Queue.objects.create(name="ledger", stream_policy="halt")
    poisoned("book", queue="ledger", stream="account-7", error="Boom: no")
    send("book", queue="ledger", stream="account-7")
    lifecycle.claim(["ledger"], limit=5, worker="w1")
    Count.objects.create(
        span=60, at=clock.now.replace(second=0), queue="ledger", name="x", kind="message", sent=77
    )
    now = clock.now
    WorkerProcess.objects.create(
        name="worker-of-mail",
        host="h",
        pid=1,
        version="1",
        queues=[],
        concurrency=1,
        started_at=now,
        seen_at=now,
    )
    Breaker.objects.create(
        name="held.name",
        failures=5,
        error="no",
        opened_at=now - timedelta(hours=1),
        until=now + timedelta(minutes=1),
        opened_by="w1",
    )


@pytest.mark.parametrize("permission", TOLD)
def test_one_permission_shows_its_numbers_and_no_others(login, incident, permission: str) -> None:
    response = login(permission).get(HOME)
    html = response.content.decode()

    assert response.status_code == 200
    for owner, words in TOLD.items():
        for word in words:
            assert (word in html) == (owner == permission), (owner, word)
    charts = [chart.key for chart in response.context["board"].charts]
    assert charts == CHARTS.get(permission, [])
    models = set(re.findall(r'href="/admin/deadletter/(\w+)/', html))
    assert models == {permission.removeprefix("view_")}


def test_who_may_see_queues_alone_sees_their_names_and_nothing_in_them(login, incident) -> None:
    response = login("view_queue").get(HOME)
    board = response.context["board"]

    assert [line.name for line in board.queues.lines] == ["default", "ledger"]
    assert all(line.cells == [] and line.rates == [] for line in board.queues.lines)
    assert (board.charts, board.streams, board.groups, board.workers) == ([], None, None, None)
    assert (board.verdict.level, board.verdict.calm) == ("good", "All is well.")


def test_who_may_change_queues_may_look_at_them(login, incident) -> None:
    board = login("change_queue").get(HOME).context["board"]

    assert [line.name for line in board.queues.lines] == ["default", "ledger"]


def test_who_may_see_nothing_gets_no_page_and_strangers_are_asked_to_log_in(
    login, client, incident
) -> None:
    assert login().get(HOME).status_code == 404
    assert client.get(HOME).status_code == 302


@pytest.mark.parametrize(
    "site", ["ops", "only-message", "only-queue", "only-breaker", "only-count"]
)
def test_the_dashboard_is_there_in_every_site_with_what_that_site_has(
    admin_client, incident, settings, site: str
) -> None:
    settings.ROOT_URLCONF = "tests.admin.two_sites"

    html = admin_client.get(f"/{site}/deadletter/").content.decode()

    links = re.findall(r'href="(/(?!static/)[^"]+/deadletter/[^"]*)"', html)
    assert "dl-verdict" in html
    assert links
    assert [link for link in links if not link.startswith(f"/{site}/")] == []
    if site.startswith("only-"):
        models = {link.split("/")[3] for link in links} - {""}
        assert models == {site.removeprefix("only-")}
