"""Concurrent imports of one message, and an import during its death or retry: one message."""

from __future__ import annotations

import pytest

from deadletter import operations
from deadletter.models import Message, PoisonRecord

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


def take_in(*ids: int) -> tuple[list[int], list[int]]:
    rows = [{"source_id": id, "name": "m"} for id in ids]
    found = operations.import_messages(rows, origin="x", queue="q")
    return found.imported, found.ignored


def everywhere() -> list[int | None]:
    waiting = Message.objects.values_list("source_id", flat=True)
    return sorted([*waiting, *PoisonRecord.objects.values_list("source_id", flat=True)])


def test_two_imports_at_once_store_each_message_once(queue, stage, repeated):
    first = stage(lambda: take_in(1, 2, 3), after="import_messages")
    second = stage(lambda: take_in(4, 3, 2))
    second.wait_blocked(by=first)

    assert first.result() == ([1, 2, 3], [])
    assert second.result() == ([4], [2, 3])
    assert everywhere() == [1, 2, 3, 4]
    assert repeated == []


def test_what_is_dying_while_it_is_imported_again_is_not_stored_twice(queue, stage):
    take_in(1)
    id = Message.objects.get().pk
    death = stage(lambda: operations.poison([id], why="a test").done, after="delete")
    again = stage(lambda: take_in(1, 2))
    again.wait_blocked(by=death)

    assert death.result() == [id]
    assert again.result() == ([2], [1])
    assert everywhere() == [1, 2]


def test_what_is_being_retried_while_it_is_imported_again_is_not_stored_twice(queue, stage):
    take_in(1)
    operations.poison([Message.objects.get().pk], why="a test")
    record = PoisonRecord.objects.get().pk
    retry = stage(lambda: operations.retry_poison([record]).retried, after="retry")
    again = stage(lambda: take_in(1))
    again.wait_blocked(by=retry)

    assert retry.result() == [record]
    assert again.result() == ([], [1])
    assert everywhere() == [1]


def test_a_retry_that_begins_while_its_message_is_imported_again_succeeds(queue, stage):
    take_in(1)
    operations.poison([Message.objects.get().pk], why="a test")
    record = PoisonRecord.objects.get().pk
    again = stage(lambda: take_in(1), after="import_messages")
    retry = stage(lambda: operations.retry_poison([record]).retried)
    retry.wait_blocked(by=again)

    assert again.result() == ([], [1])
    assert retry.result() == [record]
    assert everywhere() == [1]
