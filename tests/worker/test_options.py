"""What the flags of run_worker do, seen from outside."""

from __future__ import annotations

import signal
import time

import pytest
from django.db import connection, connections

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle.internal_queue import ensure_internal_queue
from deadletter.models import Message, Queue, WorkerProcess
from tests.patience import PATIENCE
from tests.processes import Workers, wait_until

from .rows import rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]


def finished(workers: Workers) -> list[int]:
    return [line["id"] for line in workers.journal("finish")]


def test_queues_are_served_in_the_order_given(workers: Workers):
    for name in ("low", "mail.a", "mail.b", "high"):
        Queue.objects.create(name=name)
    low = send_many([Outgoing("sample.work", {}) for _ in range(5)], queue="low")
    mail = [send("sample.work", {}, queue=f"mail.{x}").pk for x in "abab"]
    high = send_many([Outgoing("sample.work", {}) for _ in range(5)], queue="high")
    other = send("sample.work", {}).pk

    workers.drain("--concurrency", 1, "--batch", 1, "--queues", "high,mail.*,low")

    order = finished(workers)
    assert order[:5] == high
    assert set(order[5:9]) == set(mail)
    assert order[9:] == low
    assert rows() == {other: 0}


def test_a_queue_paused_while_the_worker_runs_is_skipped_until_it_is_resumed(workers: Workers):
    worker = workers.start("--poll", 0.05).wait_ready()
    first = send("sample.work", {}).pk
    workers.wait_for("finish", id=first)

    Queue.objects.filter(name="default").update(paused=True)
    held = send("sample.work", {}).pk
    Queue.objects.create(name="open")
    passing = send("sample.work", {}, queue="open").pk
    workers.wait_for("finish", id=passing)
    wait_until(lambda: rows() == {held: 0}, why=worker.text)
    Queue.objects.filter(name="default").update(paused=False)

    workers.wait_for("finish", id=held)
    assert worker.stop() == 0


def test_a_queue_made_while_the_worker_runs_is_found_by_its_pattern(workers: Workers):
    Queue.objects.create(name="mail.one")
    worker = workers.start("--queues", "mail.*", "--poll", 0.05).wait_ready()

    Queue.objects.create(name="mail.two")
    Queue.objects.create(name="other")
    id = send("sample.work", {}, queue="mail.two").pk
    other = send("sample.work", {}, queue="other").pk

    workers.wait_for("finish", id=id)
    wait_until(lambda: rows() == {other: 0})
    assert worker.stop() == 0


def test_dead_queues_are_left_alone_unless_named(workers: Workers):
    dead = Queue.objects.create(name="dead")
    Queue.objects.filter(name="default").update(dead_queue=dead, on_poison="dead_queue")
    id = send("sample.work", {}, queue="dead").pk

    workers.drain()
    assert rows() == {id: 0}

    workers.drain("--queues", "*,dea[d]")
    assert rows() == {id: 0}

    workers.drain("--queues", "dead")
    assert rows() == {}


def test_a_worker_says_in_its_row_what_it_serves_patterns_and_names(workers: Workers):
    Queue.objects.create(name="tenant-a/mail")
    ensure_internal_queue("default")
    worker = workers.start("--queues", "tenant-*,default", "--poll", 0.05).wait_ready()

    def served() -> list[str] | None:
        return WorkerProcess.objects.values_list("queues", flat=True).first()

    wait_until(lambda: served() == ["tenant-*", "tenant-a/mail", "default"], why=worker.text)
    assert worker.stop() == 0


def test_drain_waits_for_what_runs_and_leaves_what_is_not_due(workers: Workers):
    slow = send("sample.work", {"sleep": 0.5}).pk
    streamed = [send("sample.work", {}, stream="s").pk for _ in range(60)]
    later = send("sample.work", {}, delay=3600).pk
    failing = send("sample.work", {"fail": 1}).pk

    worker = workers.drain("--concurrency", 2)

    assert sorted(finished(workers)) == [slow, *streamed]
    assert rows() == {later: 0, failing: 1}
    [stopped] = worker.lines("worker_stopped")
    assert (stopped["completed"], stopped["failed"]) == (61, 1)


def test_max_messages_ends_the_worker_with_the_rest_untouched(workers: Workers):
    ids = send_many([Outgoing("sample.work", {}) for _ in range(30)])

    worker = workers.start("--max-messages", 10, "--concurrency", 3)

    assert worker.wait() == 0
    assert len(finished(workers)) == 10
    left = set(ids) - set(finished(workers))
    assert rows() == dict.fromkeys(sorted(left), 0)


def test_a_worker_that_uses_too_much_memory_ends_by_itself(workers: Workers):
    worker = workers.start("--max-memory", 10, "--poll", 0.05)

    assert worker.wait() == 0
    assert "MiB of memory" in worker.lines("worker_recycling")[0]["why"]


def test_the_name_is_in_leases_and_in_the_heartbeat(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--name", "kraken", "--concurrency", 3)
    workers.wait_for("start", id=id)

    assert Message.objects.get().worker == "kraken"
    row = wait_until(lambda: WorkerProcess.objects.filter(name="kraken").first())
    assert ["message", "sample.work"] in row.handlers
    assert (row.pid, row.concurrency) == (worker.pid, 3)
    wait_until(lambda: [r["id"] for r in WorkerProcess.objects.get().running] == [id])
    workers.open("end")
    assert worker.stop() == 0
    assert not WorkerProcess.objects.exists()


def test_the_heartbeat_of_a_killed_worker_is_taken_over_by_the_next_of_its_name(workers: Workers):
    killed = workers.start("--name", "kraken")
    wait_until(lambda: WorkerProcess.objects.filter(pid=killed.pid).exists(), why=killed.text)
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert WorkerProcess.objects.filter(pid=killed.pid).exists()

    worker = workers.start("--name", "kraken")

    wait_until(lambda: WorkerProcess.objects.filter(pid=worker.pid).exists(), why=worker.text)
    assert WorkerProcess.objects.count() == 1
    assert worker.stop() == 0


@pytest.mark.django_db(transaction=True, databases=["default", "second"])
def test_a_worker_works_on_the_database_it_is_told_to(workers: Workers):
    first = send("sample.work", {}).pk
    second = send("sample.work", {}, using="second").pk
    name = connections["second"].settings_dict["NAME"]

    worker = workers.drain("--database", "second", SECOND_DATABASE=str(name))

    assert finished(workers) == [second]
    assert list(Message.objects.values_list("pk", flat=True)) == [first]
    assert not Message.objects.using("second").exists()
    assert worker.lines("worker_stopped")[0]["completed"] == 1


def test_every_line_of_a_json_log_has_the_same_keys(workers: Workers):
    send("sample.work", {"fail": 1})
    send("sample.nobody_knows", {"x": "line\nbreak"})

    worker = workers.drain()

    lines = worker.lines()
    assert {line["event"] for line in lines} == {
        "worker_started",
        "message_failed",
        "message_unregistered",
        "worker_stopped",
    }
    for line in lines:
        assert list(line)[:4] == ["time", "level", "event", "text"]
    [failed] = worker.lines("message_failed")
    keys = {"name", "message_id", "queue", "attempt", "max_attempts", "reason", "error"}
    assert keys <= set(failed)
    assert "payload" not in worker.text()


@pytest.mark.postgresql_only(reason="SQLite has no NOTIFY")
def test_a_notification_wakes_an_idle_worker_long_before_its_next_look(workers: Workers):
    # Its next look would be later than the longest wait of a test.
    worker = workers.start("--poll", 10 * PATIENCE).wait_ready()
    wait_until(is_listened_to, why=worker.text)

    for _ in range(5):
        id = send("sample.work", {}).pk
        workers.wait_for("start", id=id)
        wait_until(lambda: not rows())

    assert worker.stop() == 0


def is_listened_to() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
        )
        return bool(cursor.fetchone()[0])


@pytest.mark.postgresql_only(reason="the server counts transactions")
def test_an_idle_worker_is_quiet(workers: Workers):
    worker = workers.start().wait_ready()
    wait_until(is_listened_to, why=worker.text)
    settle = time.monotonic() + 2
    wait_until(lambda: time.monotonic() > settle)

    # Autovacuum's transactions are counted too: a worker that is not quiet is so every time.
    rates, uses = [], []
    while len(rates) < 3 and (not rates or rates[-1] >= 6):
        before, cpu, begun = transactions(), worker.cpu_seconds(), time.monotonic()
        wait_until(lambda since=begun: time.monotonic() > since + 5)
        elapsed = time.monotonic() - begun
        rates.append((transactions() - before) / elapsed)
        uses.append((worker.cpu_seconds() - cpu) / elapsed)

    assert min(rates) < 6, rates
    assert min(uses) < 0.03, uses
    assert worker.stop() == 0


def transactions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database"
            " WHERE datname = current_database()"
        )
        return cursor.fetchone()[0]
