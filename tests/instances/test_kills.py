"""Workers are killed during turns: each turn takes effect exactly once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadletter import instance_status, raise_event, start
from deadletter.models import Instance, InstanceEvent, Message, PoisonRecord, Queue
from tests.processes import Workers, database_url, wait_until, worker_processes
from tests.sample.journal import DIRECTORY
from tests.sample.models import Effect

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

#: What the flow decided or was told, in the order in which it must happen.
DECIDED = {"called", "child_started", "timer_set", "completed"}


@pytest.fixture
def workers(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started


def test_every_turn_takes_effect_once_however_often_workers_are_killed(workers: Workers):
    Queue.objects.filter(name="default").update(max_attempts=20)
    ids = [f"order-{number}" for number in range(6)]
    for id in ids:
        start("sample.order", instance=id)

    # Two at a time; each dies with everything written and nothing committed.
    for moments in (("turn 1", "result 1"), ("turn 3", "result 3"), ("turn 2", "turn 4")):
        pair = [
            workers.start("--lease", 1, "--poll", 0.05, SAMPLE_DIES_AT=moment) for moment in moments
        ]
        assert [worker.wait() for worker in pair] == [-signal.SIGKILL] * 2
    for id in ids:
        raise_event(id, "deliver", "the door")
    last = [workers.start("--lease", 1, "--poll", 0.05) for _ in range(2)]
    running = Instance.objects.filter(status="running")
    wait_until(lambda: not running.exists(), why=last[0].text)
    wait_until(lambda: not Message.objects.exists(), why=last[0].text)

    assert [worker.stop() for worker in last] == [0, 0]
    for id in ids:
        assert instance_status(id).output == {
            "results": {"reserve": True, "charge": True, "label": True},
            "parcel": {"heavy": True},
            "waits": True,
            "to": "the door",
        }
        assert happened(id) == {
            "started": 1,
            "raised": 1,
            "called": 3,
            "activity_completed": 3,
            "child_started": 1,
            "child_completed": 1,
            "timer_set": 1,
            "timer_fired": 1,
            "completed": 1,
        }
        assert happened(f"{id}:1.4") == {"started": 1, "completed": 1}
    # What the flows themselves wrote is what the log says they were told.
    log = InstanceEvent.objects.exclude(event__in=DECIDED).values_list(
        "instance", "event", "activity_id"
    )
    told = Counter(" ".join(str(part) for part in line if part is not None) for line in log)
    assert Counter(Effect.objects.values_list("note", flat=True)) == told
    assert set(told.values()) == {1}
    assert not PoisonRecord.objects.exists()


def happened(instance: str) -> dict[str, int]:
    rows = InstanceEvent.objects.filter(instance=instance)
    return dict(Counter(rows.values_list("event", flat=True)))


def test_a_rolling_deployment_completes_without_poison(workers: Workers):  # U9, U10
    Queue.objects.filter(name="default").update(max_attempts=200)
    settings = {"UNREGISTERED": "0.02"}
    start("sample.rolling", instance="activity", input="sample.new_step")
    start("sample.rolling", instance="version", input="x", version="2.0.0")
    old = [workers.start("--poll", 0.05, **settings) for _ in range(2)]

    def deferred(instance: str) -> int:
        fields = {"instance": instance}
        return sum(len(worker.lines("message_unregistered", **fields)) for worker in old)

    wait_until(lambda: deferred("activity") and deferred("version"), why=old[0].text)
    new = workers.start("--poll", 0.05, SAMPLE_KNOWS_NEW="1", **settings)
    running = Instance.objects.filter(status="running")
    wait_until(lambda: not running.exists(), why=new.text)

    assert instance_status("activity").output == "done by the new release"
    assert instance_status("version").output == "decided by the new release"
    assert happened("version") == {"started": 1, "completed": 1}
    assert not PoisonRecord.objects.exists()
    assert [worker.stop() for worker in (*old, new)] == [0, 0, 0]


def test_what_no_worker_knows_ends_as_poison_after_its_series(workers: Workers):  # U5, U12
    Queue.objects.filter(name="default").update(unregistered_attempts=3)
    start("sample.rolling", instance="o", input="sample.nowhere")
    fleet = [workers.start("--poll", 0.05, UNREGISTERED="0.1") for _ in range(2)]

    running = Instance.objects.filter(status="running")
    wait_until(lambda: not running.exists(), why=fleet[0].text)

    lines = [line for worker in fleet for line in worker.lines("message_unregistered")]
    series = sorted((line["attempt"], line["remaining"], line["delay"]) for line in lines)
    assert series == [(1, 2, 0.1), (2, 1, 0.2), (3, 0, 0.4)]
    assert instance_status("o").error_details.text == (
        "poison: activity sample.nowhere#1 exceeded 3 attempts (max 3)"
    )
    assert happened("o") == {"started": 1, "called": 1, "activity_failed": 1, "failed": 1}
    assert [worker.stop() for worker in fleet] == [0, 0]
