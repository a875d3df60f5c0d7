"""The harness of `make bench` works; what so few messages say about speed is nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import outbox, work
from benchmarks.ratios import requirements
from benchmarks.results import Results, Spread
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measure deadletter and the raw limit on a private server, with a handful of messages."""
    folder = tmp_path_factory.mktemp("bench")
    measure(folder, "--only", "raw,deadletter", "--scenario", "drain-1,streams")
    return folder


@pytest.fixture(scope="module")
def measured_tasks(tmp_path_factory):
    """Measure deadletter's tasks beside its messages, with a handful of each."""
    folder = tmp_path_factory.mktemp("bench-tasks")
    measure(folder, "--tasks", "--only", "deadletter,deadletter-tasks,deadletter-results")
    return folder


@pytest.fixture(scope="module")
def measured_outbox(tmp_path_factory):
    """Measure the outbox to Redis beside a raw publisher, with a handful of messages."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    folder = tmp_path_factory.mktemp("bench-outbox")
    measured = "send-one,send-many,drain-1,latency,backlog,outage"
    systems = "outbox-insert,publisher-redis,outbox-redis"
    measure(folder, "--outbox", "--only", systems, "--scenario", measured)
    return folder


def measure(folder: Path, *options: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--no-plots", "--output", str(folder)]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_every_measurement_of_a_run_is_kept(measured):
    stored = json.loads((measured / "results.json").read_text())

    assert stored["skipped"] == {}
    assert {(row["measurement"], row["system"]) for row in stored["measured"]} == {
        (measurement, system)
        for measurement in ("drain-1", "streams")
        for system in ("raw", "deadletter")
    }
    assert all(row["figures"]["rate"] > 0 for row in stored["measured"])


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_every_message_of_a_drain_is_handled_once(measured):
    results = Results.read(measured / "results.json")

    assert results.each("streams", "deadletter", "handled") == {1: 200}
    assert results.each("streams", "raw", "handled") == {1: 200}


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_the_report_names_what_was_measured(measured):
    report = (measured / "results.md").read_text()

    assert "PostgreSQL 18" in report
    assert "| **deadletter** |" in report
    assert "Not a full run" in report


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_tasks_are_measured_beside_messages(measured_tasks):
    stored = json.loads((measured_tasks / "results.json").read_text())

    assert stored["skipped"] == {}
    assert {(row["measurement"], row["system"]) for row in stored["measured"]} == {
        ("send-one", "deadletter"),
        ("send-one", "deadletter-tasks"),
        ("send-many", "deadletter"),
        ("send-many", "deadletter-tasks"),
        ("drain-1", "deadletter"),
        ("drain-1", "deadletter-tasks"),
        ("drain-1", "deadletter-results"),
        ("get-result", "deadletter-results"),
        ("tasks", "deadletter-tasks"),
        ("tasks", "deadletter-results"),
        ("results", "deadletter-tasks"),
        ("results", "deadletter-results"),
    }
    assert all(row["figures"]["rate"] > 0 for row in stored["measured"])


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_every_task_of_a_drain_is_handled_once(measured_tasks):
    results = Results.read(measured_tasks / "results.json")

    assert results.each("results", "deadletter-tasks", "handled") == {1: 200}
    assert results.each("results", "deadletter-results", "handled") == {1: 200}


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_the_report_compares_tasks_with_messages(measured_tasks):
    report = (measured_tasks / "results.md").read_text()

    assert "## Django's tasks" in report
    assert "| drain of tasks without results, against messages | 0.9 |" in report
    assert "| deadletter's tasks with results | 500 results |" in report


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_every_measurement_of_the_outbox_is_kept(measured_outbox):
    stored = json.loads((measured_outbox / "results.json").read_text())

    assert stored["skipped"] == {}
    assert {(row["measurement"], row["system"]) for row in stored["measured"]} == {
        ("send-one", "outbox-insert"),
        ("send-many", "outbox-insert"),
        ("drain-1", "publisher-redis"),
        ("drain-1", "outbox-redis"),
        ("latency", "outbox-redis"),
        ("backlog", "outbox-redis"),
        ("outage", "outbox-redis"),
    }


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_every_message_of_an_outbox_is_confirmed_once(measured_outbox):
    results = Results.read(measured_outbox / "results.json")

    assert results.each("drain-1", "outbox-redis", "handled") == {1: 160}
    assert results.each("backlog", "outbox-redis", "messages") == {1: 500}


@pytest.mark.postgresql_only(reason="starts its own server: once is enough")
def test_the_report_compares_relays_with_publishers(measured_outbox):
    report = (measured_outbox / "results.md").read_text()

    assert "| relay, one process, to a Redis stream, against one raw publisher | 0.5 |" in report
    assert "## A broker that was away" in report
    assert "| deadletter to Redis Streams |" in report


def test_two_relays_are_compared_with_one_publisher_of_the_same_round(tmp_path):
    results = Results(tmp_path / "results.json")
    for number, publisher, one, two in ((1, 100.0, 50.0, 90.0), (2, 200.0, 120.0, 140.0)):
        results.figures[(number, "drain-1", "publisher-redis")] = {"rate": publisher}
        results.figures[(number, "drain-1", "outbox-redis")] = {"rate": one}
        results.figures[(number, "drain-2", "outbox-redis")] = {"rate": two}

    found = {one.title: one.reached for one in requirements(results) if one.reached}

    where = "to a Redis stream, against one raw publisher"
    assert found == {
        f"relay, one process, {where}": Spread(0.55, 0.5, 0.6, 2),
        f"relay, two processes, {where}": Spread(pytest.approx(0.8), 0.7, 0.9, 2),
    }


def test_requirements_of_the_outbox_are_listed_where_it_was_measured(tmp_path):
    results = Results(tmp_path / "results.json")
    results.figures[(1, "drain-1", "raw")] = {"rate": 1.0}
    without = len(requirements(results))

    results.figures[(1, "drain-1", "outbox-redis")] = {"rate": 1.0}

    assert not any("relay" in one.title for one in requirements(results)[:without])
    assert any("relay" in one.title for one in requirements(results)[without:])


def test_a_recovery_is_compared_by_thirds():
    marks = [(0.0, 100), (1.0, 400), (3.0, 700), (4.0, 1_000)]

    found = outbox._thirds(marks)

    assert found == {"rate": 225.0, "first_third": 300.0, "last_third": 300.0}


def test_a_moment_that_was_noted_twice_counts_once(tmp_path):
    notes = tmp_path / "notes"
    notes.write_text("1 500\n2 700\n1 900\n")

    assert work.read_notes(notes) == {1: 500, 2: 700}


def test_a_ratio_compares_what_was_measured_in_the_same_round(tmp_path):
    results = Results(tmp_path / "results.json")
    for number, ours, limit in ((1, 50.0, 100.0), (2, 15.0, 20.0), (3, 90.0, 100.0)):
        results.figures[(number, "drain-1", "deadletter")] = {"rate": ours}
        results.figures[(number, "drain-1", "raw")] = {"rate": limit}
    results.figures[(4, "drain-1", "deadletter")] = {"rate": 1.0}

    ratio = results.ratio(("drain-1", "deadletter"), ("drain-1", "raw"))

    assert ratio == Spread(0.75, 0.5, 0.9, 3)
    assert requirements(results)[0].is_met


def test_tasks_are_compared_with_messages_of_the_same_round(tmp_path):
    results = Results(tmp_path / "results.json")
    for number, messages, tasks, kept in ((1, 100.0, 95.0, 60.0), (2, 200.0, 170.0, 80.0)):
        results.figures[(number, "drain-1", "deadletter")] = {"rate": messages}
        results.figures[(number, "drain-1", "deadletter-tasks")] = {"rate": tasks}
        results.figures[(number, "drain-1", "deadletter-results")] = {"rate": kept}

    found = {one.title: one for one in requirements(results) if one.reached}

    without = found["drain of tasks without results, against messages"]
    with_results = found["drain of tasks with results, against messages"]
    assert without.reached == Spread(pytest.approx(0.9), 0.85, 0.95, 2)
    assert with_results.reached == Spread(0.5, 0.4, 0.6, 2)
    assert len(found) == 2


def test_what_was_not_measured_is_neither_reached_nor_missed(tmp_path):
    results = Results(tmp_path / "results.json")

    assert {requirement.is_met for requirement in requirements(results)} == {None}


@pytest.mark.parametrize("size", [100, 4_096, 65_536])
@pytest.mark.parametrize("number", [0, 7, 1_000_000])
def test_a_payload_has_the_size_asked_for(number, size):
    assert len(json.dumps(work.payload(number, size=size))) == size


def test_an_interrupted_run_can_be_read_again(tmp_path):
    results = Results(tmp_path / "results.json", about={"size": "tiny"})
    results.add((1, "drain-1", "raw"), {"rate": 12.3456})

    again = Results.read(tmp_path / "results.json")

    assert again.figures == {(1, "drain-1", "raw"): {"rate": 12.346}}
    assert again.about == {"size": "tiny"}
