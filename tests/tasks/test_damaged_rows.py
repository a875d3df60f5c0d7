"""Rows of tasks that were damaged by hand: their results can be read, and the tasks run."""

from __future__ import annotations

from typing import Any

import pytest

from deadletter import lifecycle, testing
from deadletter.models import Message, WorkerProcess
from tests.sample import tasks

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("seconds", [1e308, -1e308, "x", True, [], None])
def test_the_length_of_an_attempt_may_be_anything(seconds: Any, clock):
    result = tasks.add.enqueue(1)
    entry = {"at": "2026-01-01T00:00:00+00:00", "seconds": seconds, "reason": 2}

    Message.objects.update(history=[entry])

    result.refresh()
    assert (result.status, len(result.errors)) == ("READY", 1)


@pytest.mark.parametrize("seconds", [1e308, "x", [], None])
def test_the_report_of_a_worker_may_be_anything(seconds: Any, clock):
    result = tasks.add.enqueue(1)
    lifecycle.claim(worker="w1")

    WorkerProcess.objects.create(
        name="w1",
        host="h",
        pid=1,
        version="1",
        concurrency=1,
        started_at=clock.now,
        seen_at=clock.now,
        running=[{"id": int(result.id), "seconds": seconds}, 7],
    )

    result.refresh()
    assert (result.status, result.started_at) == ("RUNNING", clock.now)


@pytest.mark.parametrize("damage", [{"a": 1}, 7, "x", [[]], [None]])
def test_workers_progress_and_history_may_be_any_json(damage: Any, clock, counts):
    result = tasks.add.enqueue(1)
    neighbour = tasks.add.enqueue(2)
    Message.objects.filter(pk=result.id).update(workers=damage, progress=damage, history=damage)

    result.refresh()
    tally = testing.drain()

    assert (tally.completed, counts()) == (2, {})
    result.refresh()
    neighbour.refresh()
    assert (result.return_value, neighbour.return_value) == (2, 3)
    assert result.worker_ids[-1] == "drain"
