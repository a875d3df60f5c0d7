"""Tasks whose process dies: a task ends with its result, or it runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from deadletter import lifecycle, testing
from deadletter.models import Message, Result
from deadletter.worker.crash_ledger import CrashLedger
from deadletter.worker.execute import execute
from deadletter.worker.in_flight import HandlerOutcomes, InFlight
from deadletter.worker.orphans import free
from tests.sample import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def die_unreported() -> Callable[[], None]:
    """Run what is due in a process that dies before it reports; its supervisor frees the rest."""

    def die() -> None:
        ledger = CrashLedger(slots=10)
        in_flight = InFlight(ledger)
        outcomes = HandlerOutcomes(ledger=ledger, waiting_runs=[], woken=threading.Event())
        for message in lifecycle.claim(worker="dead"):
            item = in_flight.add(message, since=0.0, handler=None)
            in_flight.start(item)
            outcomes.add(item, execute(message))
        free("dead", ledger.entries(), "signal SIGKILL", using="default")

    return die


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
def test_a_result_that_died_with_its_process_is_made_again(
    task: Any, die_unreported: Callable[[], None], clock, counts
):
    result = task.enqueue(1)

    die_unreported()

    assert counts() == {"pending": 1}
    assert (Result.objects.count(), Message.objects.get().attempts) == (0, 1)
    testing.drain()
    result.refresh()
    assert (result.status, result.return_value, result.worker_ids) == (
        "SUCCESSFUL",
        2,
        ["dead", "drain"],
    )


def test_a_task_that_keeps_no_result_is_not_run_again(
    die_unreported: Callable[[], None], clock, counts
):
    tasks.forget.enqueue()

    die_unreported()

    assert counts() == {}
    assert Result.objects.count() == 0


def test_an_atomic_task_that_has_committed_has_its_result(
    die_unreported: Callable[[], None], clock, counts
):
    result = tasks.add_atomic.enqueue(1)

    die_unreported()

    result.refresh()
    assert counts() == {}
    assert (result.status, result.return_value) == ("SUCCESSFUL", 2)
