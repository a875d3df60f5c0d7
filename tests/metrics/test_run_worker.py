"""`run_worker --metrics-port`: one port for all processes, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest
from django.core.management import CommandError, call_command

from deadletter import Outgoing, send, send_many
from deadletter.models import Message, Queue
from tests.processes import Workers, wait_until

from .scrapes import Samples, get, port_of, scrape

pytestmark = pytest.mark.django_db(transaction=True)

DURATION = "deadletter_handler_duration_seconds_count"


def wait_for(port: int, name: str, value: float, /, **labels: str) -> Samples:
    def seen() -> Samples | None:
        found = scrape(port)
        return found if found(name, **labels) == value else None

    return wait_until(seen, why=lambda: str(scrape(port).named(name)))


@pytest.mark.process
def test_a_lone_worker_tells_what_it_did(workers: Workers):
    send_many([Outgoing("sample.work", {}) for _ in range(3)])
    send("sample.effect", {})
    send("sample.async", {})
    worker = workers.start("--metrics-port", 0)
    port = port_of(worker)

    wait_for(port, DURATION, 1, name="sample.effect")
    wait_for(port, DURATION, 1, name="sample.async")
    wait_for(port, DURATION, 3, name="sample.work")
    found = wait_for(port, "deadletter_workers_alive", 1)

    assert found("deadletter_up") == 1
    assert found("deadletter_handler_duration_seconds_bucket", name="sample.work", le="+Inf") == 3
    assert found("deadletter_claim_duration_seconds_count") >= 1
    assert found("deadletter_settle_duration_seconds_count") >= 1
    assert found("deadletter_leases_lost_total") == 0
    assert found("deadletter_token_repairs_total") == 0
    assert found("deadletter_queue_workers", queue="default") == 1
    assert worker.stop() == 0


@pytest.mark.process
def test_one_port_adds_up_all_processes_and_a_killed_one_keeps_its_counts(workers: Workers):
    gate = send("sample.work", {"gate": "go"}).pk
    second = send("sample.work", {"gate": "go"}).pk
    worker = workers.start(
        "--processes", 2, "--concurrency", 1, "--metrics-port", 0, "--poll", 0.05
    )
    port = port_of(worker)
    # One for each: both processes have something on their boards.
    workers.wait_for("start", id=gate)
    workers.wait_for("start", id=second)
    workers.open("go")
    before = wait_for(port, DURATION, 2, name="sample.work")
    pids = {line["pid"] for line in workers.journal("start")}
    assert len(pids) == 2

    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    worker.wait_for("worker_died", count=2)
    worker.wait_for("worker_started", count=4)
    kept = scrape(port)
    send("sample.work", {})
    after = wait_for(port, DURATION, 3, name="sample.work")

    for name in (DURATION, "deadletter_handler_duration_seconds_sum"):
        assert before(name, name="sample.work") <= kept(name, name="sample.work")
    for name in (
        "deadletter_claim_duration_seconds_count",
        "deadletter_claim_duration_seconds_sum",
    ):
        assert 0 < before(name) <= kept(name) <= after(name)
    assert worker.stop() == 0


@pytest.mark.process
def test_the_process_that_answers_is_replaced_on_the_same_port(workers: Workers):
    worker = workers.start("--processes", 2, "--metrics-port", 0)
    port = port_of(worker)
    worker.wait_for("worker_started", count=2)
    scrape(port)
    working = {line["pid"] for line in worker.lines("worker_started")}
    [exporter] = set(worker.children()) - working

    os.kill(exporter, signal.SIGKILL)
    worker.wait_for("metrics_died")
    wait_until(lambda: set(worker.children()) - working - {exporter})

    assert scrape(port)("deadletter_up") == 1
    assert worker.stop() == 0


@pytest.mark.process
def test_scrapes_are_answered_until_the_last_handler_has_finished(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--processes", 2, "--grace", 20, "--metrics-port", 0)
    port = port_of(worker)
    workers.wait_for("start", id=id)

    worker.signal_group(signal.SIGTERM)
    worker.wait_for("worker_stopping", count=2)
    assert scrape(port)("deadletter_up") == 1
    workers.open("end")

    assert worker.wait() == 0, worker.text()
    with pytest.raises(ConnectionRefusedError):
        scrape(port)
    assert not Message.objects.exists()
    assert "Traceback" not in worker.text()


@pytest.mark.process
def test_a_worker_that_replaces_itself_takes_its_port_along(workers: Workers):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    Queue.objects.filter(name="default").update(max_attempts=1)
    send("sample.hang", {})

    worker = workers.start("--metrics-port", port, "--grace", 0.5)
    worker.wait_for("worker_recycling")
    worker.wait_for("metrics_listening", count=2, port=port)

    assert scrape(port)("deadletter_up") == 1
    worker.wait_for("worker_started", count=2)
    assert worker.stop() == 0


@pytest.mark.process
def test_nobody_answers_for_a_killed_supervisor(workers: Workers):
    worker = workers.start("--processes", 2, "--metrics-port", 0)
    port = port_of(worker)
    worker.wait_for("worker_started", count=2)
    scrape(port)

    worker.signal(signal.SIGKILL)
    worker.process.wait()

    def is_free() -> bool:
        try:
            scrape(port)
        except (ConnectionError, TimeoutError):
            return True
        return False

    wait_until(is_free, why=worker.text)


def test_a_port_that_is_taken_is_refused_before_anything_is_claimed(workers: Workers):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        send("sample.work", {})

        with pytest.raises(CommandError, match=f"port {port} of 127.0.0.1 is taken") as refusal:
            call_command("run_worker", "--metrics-port", str(port), "--drain")

    assert "a --metrics-port of its own" in str(refusal.value)
    assert Message.objects.get().attempts == 0


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(CommandError, match=r"--metrics-host must be an address of this machine"):
        call_command("run_worker", "--metrics-port", "0", "--metrics-host", "192.0.2.1", "--drain")


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_bad_port_is_refused(port):
    with pytest.raises(CommandError, match="--metrics-port"):
        call_command("run_worker", f"--metrics-port={port}", "--drain")


def test_without_prometheus_client_the_option_is_refused_and_nothing_else(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "deadletter.metrics.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(CommandError, match=r"pip install 'django-deadletter\[metrics\]'"):
        call_command("run_worker", "--metrics-port", "0", "--drain")
    with pytest.raises(SystemExit) as left:
        call_command("run_worker", "--drain")

    assert left.value.code == 0


@pytest.mark.process
def test_the_answer_can_be_had_in_both_formats(workers: Workers):
    worker = workers.start("--metrics-port", 0)
    port = port_of(worker)
    wait_for(port, "deadletter_workers_alive", 1)

    plain = get(port)
    modern = get(port, accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")

    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.body.endswith(b"# EOF\n")
    assert plain.samples.names == modern.samples.names
    assert worker.stop() == 0
