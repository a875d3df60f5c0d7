"""PostgreSQL goes away in every way it can: nothing is lost, and the worker needs no help."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from deadletter import Outgoing, send_many
from deadletter.models import PoisonRecord, Queue
from tests.processes import Workers, wait_until
from tests.sample.models import Effect

from .proxy import Proxy
from .rows import rows
from .site import Site, drained

pytestmark = pytest.mark.postgresql_only(reason="SQLite has no server that could go away")


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_backends_terminated_in_the_middle_of_batches_cost_no_message(workers: Workers):
    Queue.objects.filter(name="default").update(cooldown=timedelta(0), max_attempts=20)
    plain = send_many([Outgoing("sample.work", {"sleep": 0.002}) for _ in range(600)])
    atomic = send_many([Outgoing("sample.effect", {}) for _ in range(200)])
    worker = workers.start("--concurrency", 4, "--poll", 0.1)

    kills = 0
    while rows():
        # The rhythm is that of the work: on a slow machine there are no more kills than on another.
        ran = len(workers.journal("start"))
        wait_until(lambda ran=ran: len(workers.journal("start")) >= ran + 25 or not rows())
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            kills += cursor.fetchone()[0]

    assert kills > 5
    assert worker.stop() == 0
    assert sorted(Effect.objects.values_list("message", flat=True)) == atomic
    starts = Counter(line["id"] for line in workers.journal("start", name="sample.work"))
    # What was executed is reported until it is known: never executed again.
    assert starts == Counter(plain)
    assert not PoisonRecord.objects.exists()
    assert "Traceback" not in "".join(line["text"] for line in worker.lines("text"))


@pytest.mark.process
def test_a_server_that_crashes_and_comes_back_during_load_loses_nothing(site: Site):
    plain = site.send("sample.work", {"sleep": 0.002}, 800, attempts=20)
    atomic = site.send("sample.effect", {}, 200, attempts=20)
    worker = site.workers.start("--concurrency", 2, "--poll", 0.1, "--lease", 20)

    for count in (100, 400):
        site.workers.wait_for("finish", count=count)
        site.server.crash()
        worker.wait_for("database_away")
        site.server.start()
    wait_until(lambda: drained(site), why=worker.text)

    starts = Counter(line["id"] for line in site.workers.journal("start", name="sample.work"))
    assert starts == Counter(plain)
    assert [id for (id,) in site.query("SELECT message FROM sample_effect ORDER BY 1")] == atomic
    assert site.query("SELECT count(*) FROM deadletter_poison") == [(0,)]
    assert worker.stop() == 0


@pytest.mark.process
def test_a_worker_started_while_the_server_is_down_begins_when_it_is_up(site: Site):
    [id] = site.send("sample.work", {})
    site.server.stop()
    worker = site.workers.start("--poll", 0.1)
    worker.wait_for("database_away", count=2)

    site.server.start()

    site.workers.wait_for("finish", id=id)
    wait_until(lambda: drained(site), why=worker.text)
    assert worker.stop() == 0


@pytest.mark.process
def test_supervised_children_outlive_an_outage_too(site: Site):
    ids = site.send("sample.work", {"sleep": 0.01}, 200)
    worker = site.workers.start("--processes", 2, "--concurrency", 2, "--poll", 0.1)
    site.workers.wait_for("finish", count=20)

    site.server.crash()
    worker.wait_for("database_away", count=2)
    site.server.start()
    wait_until(lambda: drained(site), why=worker.text)

    assert sorted(line["id"] for line in site.workers.journal("finish")) == ids
    assert not worker.lines("worker_died")
    assert worker.stop() == 0


@pytest.mark.process
def test_a_worker_that_finds_no_free_connection_waits_for_one(site: Site):
    ids = site.send("sample.effect", {}, 20, attempts=20)
    holders: list[psycopg.Connection] = []
    with pytest.raises(psycopg.OperationalError, match="too many clients"):
        take_all_connections(site.server.url, holders)
    worker = site.workers.start("--concurrency", 2, "--poll", 0.1)
    worker.wait_for("database_away", count=2)

    for holder in holders:
        holder.close()

    wait_until(lambda: drained(site), why=worker.text)
    assert [id for (id,) in site.query("SELECT message FROM sample_effect ORDER BY 1")] == ids
    assert worker.stop() == 0


def take_all_connections(url: str, holders: list[psycopg.Connection]) -> None:
    while True:
        holders.append(psycopg.connect(url))


@pytest.mark.process
def test_a_stop_while_the_server_is_away_ends_the_worker_in_time(site: Site):
    site.send("sample.work", {"gate": "end"})
    worker = site.workers.start("--grace", 0.5, "--poll", 0.1)
    site.workers.wait_for("start")
    site.server.crash()
    worker.wait_for("database_away")

    try:
        code = worker.stop()  # the server is started only after it
    finally:
        site.server.start()

    assert code == 0
    assert len(worker.lines("database_away")) < 60


@pytest.mark.process
@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_completion_whose_commit_had_an_unknown_fate_is_applied_once(
    site: Site, proxy: Proxy, mode: str
):
    [id] = site.send("sample.work", {"gate": "end"})
    worker = site.workers.start("--poll", 0.1)
    site.workers.wait_for("start", id=id)

    proxy.only, proxy.mode = b"DELETE FROM deadletter_message", mode
    site.workers.open("end")
    worker.wait_for("database_away")
    wait_until(lambda: drained(site), why=worker.text)

    assert worker.stop() == 0
    assert proxy.cuts == 1
    assert len(site.workers.journal("start")) == 1
    assert not worker.lines("lease_lost")
    assert worker.lines("worker_stopped")[0]["completed"] == 1


@pytest.mark.process
@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_failure_whose_commit_had_an_unknown_fate_is_applied_once(
    site: Site, proxy: Proxy, mode: str, attempts: int
):
    [id] = site.send("sample.work", {"gate": "end", "fail": 1}, attempts=attempts)
    # Not due again before its report was repeated, however slow the machine is.
    site.execute("UPDATE deadletter_queue SET cooldown = interval '1 hour'")
    worker = site.workers.start("--poll", 0.1)
    site.workers.wait_for("start", id=id)

    proxy.only, proxy.mode = b"jsonb_to_recordset", mode
    site.workers.open("end")
    worker.wait_for("database_away")
    if attempts == 1:
        wait_until(lambda: site.query("SELECT 1 FROM deadletter_poison"), why=worker.text)
        [(history, count)] = site.query("SELECT history, attempts FROM deadletter_poison")
        assert (len(history), count) == (1, 1)
    else:
        # Failed once, and succeeds at the second attempt.
        # The next claim comes with the repeated report or after it.
        [other] = site.send("sample.work", {}, attempts=attempts)
        site.workers.wait_for("finish", id=other)
        waiting = f"id = {id} AND lease_token IS NULL"
        site.execute(f"UPDATE deadletter_message SET available_at = now() WHERE {waiting}")
        wait_until(lambda: drained(site), why=worker.text)
        assert [line["attempt"] for line in site.workers.journal("start", id=id)] == [1, 2]
    wait_until(lambda: drained(site), why=worker.text)

    assert worker.stop() == 0
    assert proxy.cuts == 1
    assert not worker.lines("lease_lost")


@pytest.mark.process
@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_claim_whose_commit_had_an_unknown_fate_charges_nothing_and_does_not_wait(
    site: Site, proxy: Proxy, mode: str
):
    worker = site.workers.start("--poll", 0.1, "--lease", 60)
    worker.wait_ready()
    # Only a claim that found something is cut.
    proxy.only, proxy.only_answered, proxy.mode = b"EXECUTE deadletter_claim", b"cut me", mode

    ids = site.send("sample.work", {"note": "cut me"}, 5, attempts=1)
    wait_until(lambda: drained(site), why=worker.text)

    assert worker.stop() == 0
    assert proxy.cuts == 1
    starts = site.workers.journal("start")
    assert sorted(line["id"] for line in starts) == ids
    assert {line["attempt"] for line in starts} == {1}
    assert site.query("SELECT count(*) FROM deadletter_poison") == [(0,)]
