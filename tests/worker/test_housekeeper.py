"""The duties of the housekeeper: a long one does not keep the others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from deadletter.lifecycle import sweep, sweeps
from deadletter.models import Result, WorkerProcess
from deadletter.worker import housekeeper
from deadletter.worker.process import Worker


def store_old_results(number: int) -> None:
    now = timezone.now()
    Result.objects.bulk_create(
        Result(
            message_id=id,
            queue="default",
            name="t",
            kind="task",
            outcome="successful",
            created_at=now,
            finished_at=now,
            expires_at=now - timedelta(seconds=1),
        )
        for id in range(1, number + 1)
    )


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sweep delete one row a transaction, and everything be due at each look."""
    monkeypatch.setattr(sweeps, "CHUNK", 1)
    monkeypatch.setattr(housekeeper, "TICK", 0)
    monkeypatch.setattr(housekeeper, "HEARTBEAT", 0)


@pytest.mark.usefixtures("small_steps")
def test_a_worker_beats_and_fires_schedules_during_a_long_sweep(
    stepped: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    store_old_results(5)
    keeper = stepped()._housekeeper
    seen: list[tuple[int, bool]] = []
    long_ago = timezone.now() - timedelta(hours=1)

    def turn() -> int:
        workers = WorkerProcess.objects.filter(seen_at__gt=long_ago)
        seen.append((Result.objects.count(), workers.exists()))
        workers.update(seen_at=long_ago)
        return 0

    monkeypatch.setattr(keeper._scheduler, "turn", turn)
    monkeypatch.setitem(keeper._due, "sweep", 0)

    keeper._round()

    assert Result.objects.count() == 0
    # Between any two of its transactions, and once more at the end of the round.
    assert {left for left, _ in seen} == {0, 1, 2, 3, 4, 5}
    assert all(has_beaten for left, has_beaten in seen if left)


@pytest.mark.usefixtures("small_steps")
def test_a_worker_that_stops_leaves_the_rest_of_a_sweep_to_others(
    stepped: Callable[..., Worker],
) -> None:
    store_old_results(3)
    keeper = stepped()._housekeeper
    keeper.stop()

    assert sweep(go_on=keeper._go_on_sweeping).results == 0
    assert Result.objects.count() == 3


def test_a_sweep_ends_between_two_transactions_when_it_is_told(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "CHUNK", 2)
    store_old_results(5)

    assert sweep(go_on=lambda: Result.objects.count() > 2).results == 4

    assert Result.objects.count() == 1
