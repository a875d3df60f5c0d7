"""A release that knows no tasks meets them: it puts them off until a newer worker takes them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now

from deadletter.models import Message, PoisonRecord, Queue, Result, WorkerProcess
from deadletter.tasks import lookup
from deadletter.worker.registry import Registry
from tests.processes import Workers, database_url, wait_until, worker_processes
from tests.sample import tasks

from .release import BEFORE_TASKS, extract

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

#: Deferrals after which a name that nobody knows is given up.
LIMIT = 2


@pytest.fixture(scope="session")
def root_before_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("before_tasks"), BEFORE_TASKS)


@pytest.fixture
def workers_before_tasks(
    root_before_tasks: Path, new_workers: Workers, tmp_path: Path
) -> Iterator[Workers]:
    with worker_processes(tmp_path, database_url(), root_before_tasks) as started:
        yield started


def test_tasks_are_put_off_and_run_by_the_first_new_worker(
    workers_before_tasks: Workers, new_workers: Workers
):
    soon = timedelta(milliseconds=20)
    Queue.objects.filter(name="default").update(
        unregistered_attempts=LIMIT, backoff_base=soon, backoff_cap=soon
    )
    lookup.discover()
    handlers = Registry()
    handlers.add_tasks()
    # A new worker that is alive and happens to get none of them.
    WorkerProcess.objects.create(
        name="new",
        host="h",
        pid=1,
        version="1",
        concurrency=1,
        started_at=Now(),
        seen_at=Now() + timedelta(days=1),
        queues=["default"],
        handlers=handlers.known(),
    )
    plain, atomic = tasks.add.enqueue(1), tasks.add_atomic.enqueue(1)
    first, second = (tasks.welcome.using(key=None).enqueue(7) for _ in range(2))

    old = workers_before_tasks.start("--poll", 0.05)

    def put_off() -> bool:
        assert not PoisonRecord.objects.exists()
        rows = Message.objects.filter(unregistered_count__gt=LIMIT)
        return rows.filter(pk__in=[plain.id, atomic.id, first.id]).count() == 3

    wait_until(put_off)
    assert old.stop() == 0
    assert (Message.objects.count(), PoisonRecord.objects.count()) == (4, 0)
    assert set(Message.objects.values_list("attempts", flat=True)) == {0}
    assert Result.objects.count() == 0

    new = new_workers.start("--poll", 0.05)
    wait_until(lambda: not Message.objects.exists())

    assert new.stop() == 0
    for result in (plain, atomic, first, second):
        result.refresh()
        assert (result.status, result.attempts, result.errors) == ("SUCCESSFUL", 1, [])
