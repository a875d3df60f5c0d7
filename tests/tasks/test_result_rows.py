"""What reading a result costs in statements, and which of two rows counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection, transaction

from deadletter import lifecycle, testing
from deadletter.models import Queue, Result
from deadletter.tasks import result_rows
from deadletter.tasks.frameworks import primary
from tests.sample import tasks

pytestmark = pytest.mark.django_db


def waiting() -> str:
    return tasks.add.enqueue(1).id


def running() -> str:
    id = waiting()
    lifecycle.claim(worker="w1")
    return id


def ended() -> str:
    id = waiting()
    testing.drain()
    return id


def dead() -> str:
    id = tasks.fail_for_good.enqueue().id
    testing.drain()
    return id


def in_a_dead_queue() -> str:
    letters = Queue.objects.create(name="letters", paused=True)
    Queue.objects.create(name="moving", dead_queue=letters, on_poison="dead_queue")
    id = tasks.fail_for_good.using(queue_name="moving").enqueue().id
    testing.drain()
    return id


@pytest.mark.parametrize(
    ("make", "state", "statements"),
    [
        (ended, "successful", 1),
        (waiting, "pending", 2),
        # What the worker wrote of it, and the time for which its queue leases.
        (running, "active", 4),
        (dead, "dead", 3),
        (in_a_dead_queue, "dead", 3),
    ],
)
def test_a_result_is_read_by_few_statements(
    make: Callable[[], str], state: str, statements: int, clock, django_assert_num_queries
):
    id = make()

    with django_assert_num_queries(statements):
        found = primary().backends["default"].get_result(id)

    assert (found.id, found.state) == (id, state)
    assert found.task.queue_name == ("moving" if make is in_a_dead_queue else "default")


def test_an_id_that_does_not_exist_takes_two_statements(clock, django_assert_num_queries):
    id = str(int(waiting()) + 1)

    with django_assert_num_queries(2), pytest.raises(primary().result_does_not_exist):
        tasks.add.get_result(id)


def test_nothing_is_asked_of_an_id_that_cannot_exist(django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(primary().result_does_not_exist):
        tasks.add.get_result("9" * 19)


def test_what_an_earlier_end_of_an_id_left_behind_does_not_count(clock, counts):
    id = ended()
    row = Result.objects.get()
    again = tasks.add.enqueue(2)
    Result.objects.filter(pk=id).delete()
    Result.objects.create(**{**_values(row), "message_id": int(again.id)})

    found = tasks.add.get_result(again.id)

    assert (found.status, found.args) == ("READY", [2])
    assert (counts(), Result.objects.count()) == ({"pending": 1}, 1)


def _values(row: Result) -> dict[str, object]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


@pytest.mark.postgresql_only(reason="SQLite has no clock of its own")
@pytest.mark.django_db(transaction=True)
def test_the_time_is_that_of_the_statement_and_not_of_the_transaction():
    id = int(waiting())

    with transaction.atomic():
        first, second = (result_rows.find_row(id, using="default") for _ in range(2))

    assert first.read_at < second.read_at


@pytest.mark.django_db(transaction=True)
def test_a_task_that_is_due_is_pending_without_a_frozen_clock():
    found = tasks.add.get_result(waiting())

    assert (found.state, found.status) == ("pending", "READY")
    assert not connection.in_atomic_block
