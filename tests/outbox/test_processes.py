"""Relays as processes: started, killed at every point, several at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from deadletter import OutgoingEvent, crash_points, publish, publish_many
from deadletter.lifecycle.outbox import LANES
from deadletter.models import OutboxLane, OutboxMessage, OutboxRelay, PoisonRecord
from tests.patience import wait_until
from tests.processes import Worker, database_url, worker_processes

from .file_transport import REFUSED, arrived

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

KEYS = 5
OF_A_RELAY = sorted(
    point
    for point in crash_points.POINTS
    if point.startswith(("relay.", "outbox.")) or point == "transaction.committing"
)
OF_A_PUBLISHER = ["publish.stored", "publish_many.stored"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "arrived"


@pytest.fixture
def start(tmp_path: Path, file: Path) -> Iterator[Callable[..., Worker]]:
    with worker_processes(tmp_path, database_url()) as workers:

        def run(*arguments: Any, **environment: str) -> Worker:
            about = {"DJANGO_SETTINGS_MODULE": "tests.outbox.relay_settings"}
            return workers.start(
                *arguments, "--poll", "0.05", OUTBOX_FILE=str(file), **about, **environment
            )

        yield run


def publish_some(count: int = 200) -> list[str]:
    events = [OutgoingEvent("t", n, f"k{n % KEYS}") for n in range(count)]
    return [str(id) for id in publish_many(events)]


def assert_in_order(lines: list[dict[str, Any]]) -> None:
    """Each message arrived for the first time after those before it of its key."""
    for key in {line["key"] for line in lines}:
        first = list(dict.fromkeys(line["data"] for line in lines if line["key"] == key))
        assert first == sorted(first)


def wait_until_empty(workers: Worker) -> None:
    wait_until(
        lambda: not OutboxMessage.objects.exists(),
        why=lambda: f"{OutboxMessage.objects.count()} are left:\n{workers.text()}",
    )


def end_leases(*dead: Worker) -> None:
    """Do what a minute does: the leases of these relays are over, and they are not seen."""
    for worker in dead:
        OutboxLane.objects.filter(worker__endswith=f":{worker.pid}").update(leased_until=None)
        OutboxRelay.objects.filter(worker__endswith=f":{worker.pid}").delete()


def test_a_worker_publishes_and_gives_its_lanes_back(start, file):
    ids = publish_some()
    worker = start().wait_ready()
    wait_until_empty(worker)
    more = publish("t", -1)
    wait_until_empty(worker)

    assert worker.stop() == 0

    lines = arrived(file)
    assert sorted(line["id"] for line in lines) == sorted([*ids, str(more.pk)])
    assert_in_order(lines)
    assert not OutboxLane.objects.exclude(leased_until=None).exists()


def test_a_drain_publishes_what_is_there(start, file):
    ids = publish_some()

    worker = start("--drain")

    assert worker.wait() == 0, worker.text()
    assert [line["id"] for line in arrived(file)] == ids


def test_a_relay_alone_is_no_worker(start, file):
    ids = publish_some(20)

    worker = start("--relay")
    worker.wait_for("relay_started")
    wait_until_empty(worker)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert [line["id"] for line in arrived(file)] == ids
    assert worker.lines("worker_started") == []
    (line,) = worker.lines("relay_stopped")
    assert line["published"] == 20


@pytest.mark.postgresql_only("SQLite has no sessions")
def test_a_relay_has_two_connections(start):
    """One publishes and one listens: docs/worker.md counts them."""
    worker = start("--relay")
    worker.wait_for("relay_started")

    wait_until(lambda: OutboxLane.objects.filter(leased_until__isnull=False).count() == LANES)
    wait_until(lambda: "LISTEN deadletter_outbox" in _sessions())
    assert len(_sessions()) == 2
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    wait_until(lambda: _sessions() == [])


def _sessions() -> list[str]:
    """Return the last statement of each session of others."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return [query for (query,) in cursor.fetchall()]


def test_a_worker_may_leave_the_outbox_to_others(start, file):
    publish_some(1)

    worker = start("--no-relay", "--drain")

    assert worker.wait() == 0
    assert arrived(file) == []


@pytest.mark.parametrize(
    ("arguments", "brokers", "text"),
    [
        (["--relay"], {}, "names no broker"),
        (["--relay", "--processes", "2"], {"default": {"url": "redis://h"}}, "Start it several"),
    ],
)
def test_a_relay_that_cannot_be_is_refused(settings, arguments, brokers, text):
    settings.DEADLETTER = {"BROKERS": brokers}

    with pytest.raises(CommandError, match=text):
        call_command("run_worker", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("point", OF_A_RELAY)
def test_a_relay_that_dies_at_any_point_loses_nothing(start, file, point):
    ids = publish_some(100)
    publish(REFUSED, 1, key="k1")
    ids += [str(publish("t", 1_000 + n, key="k1").pk) for n in range(5)]

    nth = 1 if point == "outbox.quarantined" else 3
    dying = start("--relay", DEADLETTER_CRASH_AT=f"{point}:{nth}", DEADLETTER_CRASHES="1")
    assert dying.wait() == -signal.SIGKILL, dying.text()
    end_leases(dying)
    assert start("--relay", "--drain").wait() == 0

    lines = arrived(file)
    assert {line["id"] for line in lines} == set(ids)
    assert_in_order(lines)
    # Only a batch whose confirms were not settled arrives again.
    assert len(lines) - len(ids) <= 40
    assert PoisonRecord.objects.get().name == REFUSED
    assert not OutboxMessage.objects.exists()


@pytest.mark.slow
def test_four_relays_of_which_two_are_killed(start, file):
    relays = [start("--relay") for _ in range(4)]
    for relay in relays:
        relay.wait_for("relay_started")
    ids = publish_some(1_000)
    wait_until(lambda: len(arrived(file)) > 100)
    for relay in relays[:2]:
        relay.signal(signal.SIGKILL)
        relay.wait()
    ids += publish_some(1_000)
    end_leases(*relays[:2])

    wait_until_empty(relays[2])

    lines = arrived(file)
    assert {line["id"] for line in lines} == set(ids)
    assert len(lines) - len(ids) <= 2 * 40
