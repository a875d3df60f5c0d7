"""The server runs and does not answer, or answers other sessions only: rows 15, 18 and 21."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.processes import wait_until

from .proxy import Proxy
from .site import Site, drained

pytestmark = pytest.mark.postgresql_only(reason="SQLite has no server that could be silent")

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def starts(site: Site) -> Counter[int]:
    return Counter(line["id"] for line in site.workers.journal("start"))


@pytest.mark.process
def test_a_killed_backend_ends_all_sessions_and_the_worker_begins_new_ones(site: Site):
    ids = site.send("sample.work", {"sleep": 0.005}, 100, attempts=20)
    worker = site.workers.start("--concurrency", 2, "--poll", 0.1)
    site.workers.wait_for("finish", count=20)

    [(pid, *_), *_] = site.query(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND pid <> pg_backend_pid() ORDER BY pid"
    )
    os.kill(pid, signal.SIGKILL)

    worker.wait_for("database_away")
    wait_until(lambda: drained(site), why=worker.text)
    assert starts(site) == Counter(ids)
    assert worker.stop() == 0


@pytest.fixture
def hanging(site: Site) -> Iterator[Site]:
    """Let commits wait for a standby that does not exist, until the end of the test."""
    yield site
    let_commit(site)


def let_commits_wait(site: Site) -> None:
    _set_standby(site, "ghost")


def let_commit(site: Site) -> None:
    _set_standby(site, "")


def _set_standby(site: Site, name: str) -> None:
    # Both statements end at once: neither waits for a standby.
    for statement in (
        f"ALTER SYSTEM SET synchronous_standby_names = '{name}'",
        "SELECT pg_reload_conf()",
    ):
        site.execute(statement)


@pytest.mark.process
@pytest.mark.parametrize("end", ["the standby comes back", "the session is terminated"])
def test_a_report_whose_commit_hangs_is_applied_once(hanging: Site, end: str):
    site = hanging
    [id] = site.send("sample.work", {"gate": "end"})
    worker = site.workers.start("--poll", 0.1)
    site.workers.wait_for("start", id=id)

    let_commits_wait(site)
    site.workers.open("end")
    waiting = wait_until(lambda: site.query(WAITING), why=worker.text)
    if end == "the session is terminated":
        for (pid,) in waiting:
            site.query(f"SELECT pg_terminate_backend({pid})")
        worker.wait_for("database_away")
    let_commit(site)

    wait_until(lambda: drained(site), why=worker.text)
    assert worker.stop() == 0
    assert starts(site) == {id: 1}
    assert not worker.lines("lease_lost")
    assert worker.lines("worker_stopped")[0]["completed"] == 1


@pytest.mark.process
def test_a_worker_that_hears_nothing_more_is_replaced_and_lives_on(site: Site, proxy: Proxy):
    [id] = site.send("sample.work", {"gate": "end"})
    cut_off = site.workers.start("--poll", 0.1, "--lease", 1, "--name", "cut-off")
    site.workers.wait_for("start", id=id)

    proxy.swallow()
    site.workers.url = site.server.url
    other = site.workers.start("--poll", 0.1, "--lease", 5, "--name", "other")
    site.workers.wait_for("start", id=id, count=2)
    site.workers.open("end")
    wait_until(lambda: drained(site), why=other.text)
    proxy.flow()

    # What it reports now changes nothing, and it works as before.
    cut_off.wait_for("database_away")
    assert other.stop() == 0
    [later] = site.send("sample.work", {})
    site.workers.wait_for("finish", id=later, pid=cut_off.pid)
    wait_until(lambda: drained(site), why=cut_off.text)
    assert cut_off.stop() == 0
    assert starts(site) == {id: 2, later: 1}
    assert site.query("SELECT count(*) FROM deadletter_poison") == [(0,)]
