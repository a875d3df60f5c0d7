"""The signals and the log of the framework, at the right moments and only when wanted."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils.log import RequireDebugTrue

from deadletter import lifecycle, operations, testing
from deadletter.models import Message
from deadletter.tasks import DeadletterBackend, enqueue_many
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

SIGNALS = primary().signals

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def heard() -> Iterator[list[tuple[Any, ...]]]:
    found: list[tuple[Any, ...]] = []
    receivers: list[tuple[Any, Callable[..., None]]] = []
    for name in ("task_enqueued", "task_started", "task_finished"):

        def receive(sender: Any, task_result: Any, name: str = name, **kwargs: Any) -> None:
            assert sender is DeadletterBackend
            found.append((name, task_result.id, str(task_result.status)))

        signal = getattr(SIGNALS, name)
        signal.connect(receive)
        receivers.append((signal, receive))
    yield found
    for signal, receive in receivers:
        signal.disconnect(receive)


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async, tasks.add_atomic])
def test_a_task_is_announced_three_times(task, heard):
    result = task.enqueue(1)

    testing.drain()

    assert heard == [
        ("task_enqueued", result.id, "READY"),
        ("task_started", result.id, "RUNNING"),
        ("task_finished", result.id, "SUCCESSFUL"),
    ]


def test_a_failure_that_is_tried_again_finishes_nothing(heard, clock):
    result = tasks.fail.enqueue()
    testing.drain()
    first = list(heard)
    clock.advance(3600)
    testing.drain()

    assert first == [("task_enqueued", result.id, "READY"), ("task_started", result.id, "RUNNING")]
    assert heard[2:] == [
        ("task_started", result.id, "RUNNING"),
        ("task_finished", result.id, "FAILED"),
    ]


def test_a_task_poisoned_by_hand_is_finished(heard):
    result = tasks.add.enqueue(1)

    operations.poison([int(result.id)], why="no")

    assert heard[1:] == [("task_finished", result.id, "FAILED")]


def test_a_bulk_announces_each(heard):
    ids = enqueue_many(tasks.add, [(1,), (2,)])

    assert heard == [("task_enqueued", ids[0], "READY"), ("task_enqueued", ids[1], "READY")]


def test_a_receiver_is_called_in_the_place_of_the_log():
    heard: list[str] = []

    def receive(task_result: Any, **kwargs: Any) -> None:
        heard.append(task_result.id)

    signal, log = SIGNALS.task_enqueued, SIGNALS.log_task_enqueued
    signal.disconnect(log)
    signal.connect(receive)
    try:
        result = tasks.add.enqueue(1)
    finally:
        signal.disconnect(receive)
        signal.connect(log)

    assert heard == [result.id]


def test_a_bulk_announces_that_its_tasks_wait():
    states: list[str] = []

    def receive(task_result: Any, **kwargs: Any) -> None:
        states.append(task_result.state)

    SIGNALS.task_enqueued.connect(receive)
    try:
        enqueue_many(tasks.add.using(delay="5m"), [(1,), (2,)])
    finally:
        SIGNALS.task_enqueued.disconnect(receive)

    assert states == ["scheduled", "scheduled"]


@pytest.mark.parametrize("is_bulk", [False, True])
def test_a_receiver_cannot_change_what_the_caller_has_passed(is_bulk):
    def receive(task_result: Any, **kwargs: Any) -> None:
        task_result.args[0]["changed"] = True

    order = {"id": 1}
    SIGNALS.task_enqueued.connect(receive)
    try:
        if is_bulk:
            enqueue_many(tasks.add, [(order,)])
        else:
            tasks.add.enqueue(order)
    finally:
        SIGNALS.task_enqueued.disconnect(receive)

    assert order == {"id": 1}
    assert Message.objects.get().payload == {"args": [{"id": 1}]}


def test_a_task_whose_lease_is_lost_is_not_finished(heard, clock):
    result = tasks.add.enqueue(1)
    batch = lifecycle.claim(worker="w1", lease=60)
    clock.advance(61)
    lifecycle.process_batch(
        worker="w1",
        completions=[
            lifecycle.Completion(
                batch.ids[0],
                token=batch.token,
                message=batch.messages[0],
                result=lifecycle.KeptResult("2", None),
            )
        ],
    )

    assert heard == [("task_enqueued", result.id, "READY")]


def test_a_receiver_that_raises_undoes_nothing(caplog):
    def receive(**kwargs: Any) -> None:
        raise RuntimeError("of a receiver")

    for name in ("task_enqueued", "task_started", "task_finished"):
        getattr(SIGNALS, name).connect(receive)
    try:
        result = tasks.add.enqueue(1)
        testing.drain()
    finally:
        for name in ("task_enqueued", "task_started", "task_finished"):
            getattr(SIGNALS, name).disconnect(receive)

    result.refresh()
    assert result.return_value == 2
    failed = [record for record in caplog.records if record.name == "deadletter"]
    assert len(failed) == 3


def test_the_log_is_the_frameworks_own(caplog):
    caplog.set_level(logging.DEBUG, logger=primary().name)

    good, bad = tasks.add.enqueue(1), tasks.fail_for_good.enqueue()
    testing.drain()

    lines = [
        (record.levelname, record.getMessage(), bool(record.exc_info and record.exc_info[0]))
        for record in caplog.records
        if record.name == primary().name
    ]
    add, fail = "tests.sample.tasks.add", "tests.sample.tasks.fail_for_good"
    assert set(lines) == {
        ("DEBUG", f"Task id={good.id} path={add} enqueued backend=default", False),
        ("DEBUG", f"Task id={bad.id} path={fail} enqueued backend=default", False),
        ("INFO", f"Task id={good.id} path={add} state=RUNNING", False),
        ("INFO", f"Task id={bad.id} path={fail} state=RUNNING", False),
        ("INFO", f"Task id={good.id} path={add} state=SUCCESSFUL", False),
        ("ERROR", f"Task id={bad.id} path={fail} state=FAILED", True),
    }


def test_no_result_is_made_for_a_log_that_writes_nothing(monkeypatch, caplog):
    from deadletter.tasks import execution

    caplog.set_level(logging.CRITICAL, logger=primary().name)
    monkeypatch.setattr(execution, "running_result", lambda *a, **k: pytest.fail("made a result"))

    tasks.add.enqueue(1)

    assert testing.drain().completed == 1


def test_no_result_is_made_with_the_default_log_of_django_unless_debug_is_on(
    monkeypatch, settings, caplog
):
    from deadletter.tasks import execution

    made: list[bool] = []
    make = execution.running_result
    monkeypatch.setattr(
        execution, "running_result", lambda *a, **k: made.append(settings.DEBUG) or make(*a, **k)
    )
    logger = logging.getLogger(primary().name)
    handler = logging.StreamHandler(io.StringIO())
    handler.addFilter(RequireDebugTrue())
    caplog.set_level(logging.INFO, logger=logger.name)
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)

    for settings.DEBUG in (False, True):
        tasks.add.enqueue(1)
        assert testing.drain().completed == 1

    # One for task_started, one for task_finished.
    assert made == [True, True]


def test_the_log_is_asked_once_for_all_tasks_of_a_claim(monkeypatch):
    from deadletter.tasks import execution

    asked: list[str] = []
    monkeypatch.setattr(
        execution, "_is_wanted", lambda framework, signal, level: asked.append(signal)
    )
    enqueue_many(tasks.add, [(number,) for number in range(20)])

    assert testing.drain().completed == 20

    assert asked.count("task_started") == 1
