"""Results cost what is stored and read: not the 200,000 beside them, nor messages and poison."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter import Outgoing, lifecycle, operations
from deadletter.lifecycle import Completion, Failure, KeptResult, results
from deadletter.lifecycle.enqueue import TASK, store_messages
from deadletter.lifecycle.transaction import in_transaction
from deadletter.models import PoisonRecord, Queue, Result
from deadletter.tasks import result_rows
from deadletter.testing import frozen_clock

from .conftest import MANY, NOW, SERIES, Seen, adapted, assert_bounded, look_at, run

pytestmark = pytest.mark.slow

RESULTS = """
    INSERT INTO deadletter_task_result (message_id, queue, name, kind, outcome, payload, priority,
           value, created_at, finished_at, expires_at)
    SELECT 2000000000 + %(from)s + n, 'q', 'm', 'task', 'successful', 'null', 0, '1', %(now)s,
           %(now)s, %(expires)s
      FROM {series}
"""
#: Ids of results that exist, and that never did.
STORED, NEVER = 2_000_000_005, 3_000_000_000


@pytest.fixture(scope="module", autouse=True)
def stored(crowd: None, django_db_blocker: Any) -> Iterator[None]:
    """Results that expire tomorrow, and results whose time is over."""
    text = RESULTS.format(series=SERIES[connection.vendor])
    with django_db_blocker.unblock():
        for number, expires in enumerate((NOW + timedelta(days=1), NOW - timedelta(days=1))):
            values = {"from": number * MANY, "now": NOW, "expires": expires, "n": MANY}
            with connection.cursor() as cursor:
                cursor.execute(text, {key: adapted(value) for key, value in values.items()})
        yield
        run("DELETE FROM deadletter_task_result")


@pytest.fixture(autouse=True)
def time() -> Iterator[None]:
    with frozen_clock(NOW):
        yield


def enqueue(count: int = 100) -> lifecycle.Batch:
    items = [Outgoing("m", priority=7) for _ in range(count)]
    store_messages(items, queue="q", kind=TASK)
    return lifecycle.claim(["q"], limit=count)


def test_storing_results_reads_only_their_messages(seen):
    batch = enqueue()
    kept = KeptResult("1", timedelta(days=7))

    lifecycle.process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(m.id, message=m, result=kept) for m in batch],
    )

    assert Result.objects.filter(pk__in=batch.ids).count() == 100
    assert_bounded(seen, "complete_with_results", rows=3_000)


def test_a_piece_of_old_results_is_deleted_without_reading_the_others(seen):
    deleted = in_transaction(lambda tx: results.delete_old_results(tx, limit=100))

    assert deleted == 100
    assert_bounded(seen, "delete_old_results", rows=3_000)


def test_results_of_removed_tasks_read_only_them(seen):
    batch = enqueue()
    dead, waiting = batch.ids[:50], batch.ids[50:]
    lifecycle.fail(batch.token, [Failure(id, permanent=True) for id in dead])
    lifecycle.release(batch.token, waiting)
    records = PoisonRecord.objects.filter(message_id__in=dead).values_list("pk", flat=True)

    operations.remove_poison(list(records))
    operations.remove(waiting[:5])

    assert Result.objects.filter(pk__in=batch.ids).count() == 55
    assert_bounded(seen, "keep_results_of_poison", "keep_results_of_messages", rows=3_000)


@pytest.mark.postgresql_only(reason="SQLite has no counts of what a query of the ORM read")
@pytest.mark.parametrize("id", [STORED, NEVER])
@pytest.mark.parametrize("queues", [0, 50])
def test_a_result_is_read_by_indexes_wherever_its_task_is(db, id, queues):
    Queue.objects.bulk_create(Queue(name=f"tenant-{n}") for n in range(queues))
    found = Seen()

    def look(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        if text.startswith(("SELECT", "(SELECT")):
            look_at(text, params, found)
        return execute(text, params, many, context)

    with connection.execute_wrapper(look):
        row = result_rows.find_row(id, using="default")

    assert (row is not None) == (id == STORED)
    assert found.scans == []
    assert found.rows <= 200
    assert found.buffers <= 1_000
