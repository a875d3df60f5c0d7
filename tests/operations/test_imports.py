"""What was exported comes back, here or elsewhere, and never twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import transaction

from deadletter import lifecycle, operations, send, testing
from deadletter.exceptions import UnknownQueue
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import AuditEntry, Count, Message, PoisonRecord, Queue, Result
from deadletter.operations import PoisonFilter, import_messages, imports

from .records import dead, entries


def exported(**options: Any) -> list[dict[str, Any]]:
    lines = operations.export_poison(PoisonFilter(), **options)
    return [json.loads(line) for line in lines]


def row(source_id: int = 7, **fields: Any) -> dict[str, Any]:
    return {"message_id": source_id, "name": "mail", "payload": {"to": "ann"}, **fields}


def poison_of(message: Message) -> PoisonRecord:
    batch = claim([message.queue.name])
    assert batch.ids == [message.pk]
    fail(batch.token, [Failure(message.pk, permanent=True, error="boom")])
    return PoisonRecord.objects.get(message_id=message.pk)


def test_what_export_writes_comes_back_as_a_message_that_is_due(clock, counts, policy):
    policy("orders")
    record = dead(
        "ship", {"to": "ann", "n": [1, 2.5, None]}, queue="orders", stream="s", key="k", priority=3,
        headers={"h": "ü"}, error="boom\n⏎",
    )  # fmt: skip
    PoisonRecord.objects.filter(pk=record.pk).update(poison_count=2, status=9 | 32768)
    [line] = exported()
    operations.remove_poison([record.pk])
    clock.advance(3600)

    found = import_messages([line], origin="berlin")

    message = Message.objects.get()
    assert (found.imported, found.ignored, found.refused) == ([record.message_id], [], {})
    assert found.ids == {record.message_id: message.pk}
    assert message.pk != record.message_id
    assert (message.origin, message.source_id) == ("berlin", record.message_id)
    assert (message.queue.name, message.name, message.kind) == ("orders", "ship", "message")
    assert message.payload == {"to": "ann", "n": [1, 2.5, None]}
    assert (message.stream, message.key, message.priority) == ("s", "k", 3)
    assert (message.headers, message.attempts, message.fence) == ({"h": "ü"}, 0, 0)
    assert (message.poison_count, message.status, message.error) == (2, 9, "boom\n⏎")
    assert message.history == record.history
    assert message.history[0]["error"] == "boom\n⏎"
    assert (message.available_at, message.created_at) == (clock.now, record.original_created_at)
    assert counts() == {"pending": 1}


def test_all_rows_go_to_the_queue_that_is_named(clock, policy):
    policy("tenant-a/mail")

    import_messages([row(1, queue="gone"), row(2)], origin="x", queue="tenant-a/mail")

    assert {message.queue.name for message in Message.objects.all()} == {"tenant-a/mail"}
    with pytest.raises(UnknownQueue):
        import_messages([row(3)], origin="x", queue="gone")
    with pytest.raises(UnknownQueue):
        import_messages([row(3)], origin="x", queue="tenant-*")


def test_a_second_import_ignores_what_waits_and_what_is_dead(clock, counts):
    first = import_messages([row(1), row(2)], origin="x", queue="default")
    operations.poison([first.ids[1]], why="a test")

    again = import_messages([row(1), row(2), row(3)], origin="x", queue="default")

    assert (again.imported, again.ignored, again.refused) == ([3], [1, 2], {})
    assert counts() == {"pending": 2, "dead": 1}
    other = import_messages([row(1)], origin="y", queue="default")
    assert other.imported == [1]


def test_the_same_id_in_another_queue_is_another_message(clock, policy):
    policy("other")
    import_messages([row(1)], origin="x", queue="default")

    assert import_messages([row(1)], origin="x", queue="other").imported == [1]


def test_an_id_is_free_again_when_its_message_is_finished(clock, handles):
    handles("mail", lambda message: None)
    import_messages([row(1)], origin="x", queue="default")
    testing.drain()

    assert import_messages([row(1)], origin="x", queue="default").imported == [1]


def test_a_row_that_comes_twice_is_imported_once(clock, monkeypatch):
    for size in (1, 500):
        monkeypatch.setattr(imports, "PIECE", size)
        Message.objects.all().delete()

        found = import_messages([row(1), row(2), row(1)], origin="x", queue="default")

        assert (found.imported, found.ignored) == ([1, 2], [1])
        assert Message.objects.count() == 2


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "no name"}, "name: 'no name' is not a name"),
        ({"name": None}, "name: None is not a name"),
        ({"message_id": None}, "source_id: expected 1 to"),
        ({"message_id": 0}, "message_id: expected 1 to"),
        ({"message_id": 2**63}, "message_id: expected 1 to"),
        ({"message_id": "7"}, "message_id: expected 1 to"),
        ({"payload": "a\x00b"}, "payload: "),
        ({"payload": "x" * 300_000}, "payload: "),
        ({"payload": {"card": "[redacted]"}}, "payload.card: is hidden"),
        ({"headers": {"token": "[redacted]"}}, "headers.token: is hidden"),
        ({"history": [{"original_payload": {"card": "[redacted]"}}]}, "history[0].original_pay"),
        ({"headers": ["a"]}, "headers: expected a dict"),
        ({"stream": ""}, "stream: expected 1 to 200"),
        ({"key": "a\nb"}, "key: "),
        ({"priority": 101}, "priority: expected -100"),
        ({"kind": "chore"}, "kind: expected one of"),
        ({"kind": "activity"}, "kind: it belongs to an instance"),
        ({"kind": "event"}, "kind: it is of the outbox"),
        ({"instance": "order-1"}, "instance: it belongs to an instance"),
        ({"status": 4}, "status: 4 says that it is finished"),
        ({"status": 1 << 16}, "status: expected 0 to"),
        ({"status": -1}, "status: expected 0 to"),
        ({"poison_count": -1}, "poison_count: expected 0 to"),
        ({"history": {"a": 1}}, "history: expected a list"),
        ({"history": [{"error": "a\x00"}]}, "history"),
        ({"history": [{}, {"traceback": [1]}]}, "history[1].traceback: expected text, got [1]"),
        ({"history": [{"exception": 5}]}, "history[0].exception: expected text"),
        ({"history": [{"attempt": "1"}]}, "history[0].attempt: expected a number"),
        ({"history": [{"seconds": True}]}, "history[0].seconds: expected a number"),
        ({"last_failure_reason": "BORED"}, "last_failure_reason: there is no reason 'BORED'"),
        ({"original_created_at": "yesterday"}, "original_created_at: expected a time"),
        ({"damaged": True}, "payload: could not be decoded"),
        ({"queue": "gone"}, "queue: there is no queue 'gone'"),
        ({"queue": None}, "queue: the row names none"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_with_its_number_and_nothing_of_it_is_stored(clock, fields, problem):
    rows = [row(1, queue="default"), row(2, queue="default") | fields, row(3, queue="default")]

    found = import_messages(rows, origin="x")

    assert found.imported == [1, 3]
    assert list(found.refused) == [2]
    assert found.refused[2].startswith(problem), found.refused[2]
    assert list(Message.objects.order_by("pk").values_list("source_id", flat=True)) == [1, 3]


def test_what_is_no_object_is_refused(clock):
    found = import_messages([[], None, "x", 1], origin="x", queue="default")

    assert list(found.refused) == [1, 2, 3, 4]
    assert all(text.startswith("row: expected an object") for text in found.refused.values())


def test_a_redacted_export_is_refused_and_a_revealed_one_is_not(clock):
    record = dead(payload={"card": "4111", "to": "ann"})
    hidden, revealed = exported(), exported(reveal=True)
    operations.remove_poison([record.pk])

    refused = import_messages(hidden, origin="x")
    imported = import_messages(revealed, origin="x")

    assert "payload.card: is hidden" in refused.refused[1]
    assert imported.imported == [record.message_id]
    assert Message.objects.get().payload == {"card": "4111", "to": "ann"}
    detail = AuditEntry.objects.filter(act="export").order_by("pk").values_list("detail", flat=True)
    assert [entry.get("reveal") for entry in detail] == [None, True]


def test_a_key_that_is_taken_refuses_the_row(clock):
    holder = send("mail", key="k")

    found = import_messages([row(1, key="k"), row(2)], origin="x", queue="default")

    assert found.imported == [2]
    assert found.refused == {
        1: f"key: 'k' is the key of message {holder.pk}, which is not finished"
    }


@pytest.mark.parametrize("origin", ["", " ", None, "x" * 201, "a\nb"])
def test_an_origin_is_a_label(clock, origin):
    with pytest.raises(ValueError, match=r"^origin: "):
        import_messages([row()], origin=origin, queue="default")


def test_an_import_is_written_down_with_what_it_did(clock):
    import_messages([row(1)], origin="x", queue="default")
    rows = [row(1), row(2), row(3), row(4, name="")]

    found = import_messages(rows, origin="x", queue="default", by="ann", why="the move")

    entry = AuditEntry.objects.get(pk=found.entry_id)
    assert (entry.act, entry.by, entry.why) == ("import", "ann", "the move")
    assert entry.selection == {"origin": "x", "queue": "default"}
    assert (entry.done, entry.missing, entry.refused) == (2, 0, 1)
    assert entry.detail == {"ignored": 1}
    assert [line.entry_id for line in operations.trail(found.ids[2])] == [entry.pk]
    before = entries()
    assert import_messages([row(1)], origin="x", queue="default").entry_id == 0
    assert entries() == before


def test_imports_are_counted_as_sent_and_announced(
    clock, handles, django_capture_on_commit_callbacks
):
    from deadletter.signals import message_sent

    heard: list[int] = []

    def hear(message_id: int, **kwargs: Any) -> None:
        heard.append(message_id)

    message_sent.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            found = import_messages([row(1), row(2)], origin="x", queue="default")
    finally:
        message_sent.disconnect(hear)

    assert heard == list(found.ids.values())
    assert sum(Count.objects.values_list("sent", flat=True)) == 2


def test_a_dry_run_says_what_would_be_and_changes_nothing(clock):
    import_messages([row(1)], origin="x", queue="default")
    send("mail", key="k")
    before = (Message.objects.count(), entries())

    rows = [row(1), row(2), row(3, name=""), row(4, key="k"), row(5), row(5)]
    found = import_messages(rows, origin="x", queue="default", dry_run=True)

    assert (found.imported, found.ignored, list(found.refused)) == ([2, 5], [1, 5], [3, 4])
    assert (found.ids, found.entry_id) == ({}, 0)
    assert (Message.objects.count(), entries()) == before


def test_it_goes_on_where_it_was_interrupted(clock, monkeypatch):
    monkeypatch.setattr(imports, "PIECE", 10)
    told: list[int] = []

    def rows():
        yield from (row(n) for n in range(1, 26))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_messages(rows(), origin="x", queue="default", progress=told.append)
    assert (Message.objects.count(), told) == (20, [10, 20])

    found = import_messages([row(n) for n in range(1, 31)], origin="x", queue="default")

    assert found.imported == list(range(21, 31))
    assert found.ignored == list(range(1, 21))
    assert Message.objects.count() == 30


def test_rows_are_stored_in_the_order_of_their_ids(clock):
    import_messages([row(n, stream="s") for n in (30, 10, 20)], origin="x", queue="default")

    ids = Message.objects.order_by("pk").values_list("source_id", flat=True)
    assert list(ids) == [10, 20, 30]


def test_origin_and_id_survive_death_and_retry(clock, policy):
    policy("other")
    import_messages([row(7)], origin="x", queue="default")
    message = Message.objects.get()

    record = poison_of(message)
    assert (record.origin, record.source_id) == ("x", 7)

    operations.retry_poison([record.pk])
    message = Message.objects.get()
    assert (message.origin, message.source_id) == ("x", 7)

    record = poison_of(message)
    operations.retry_poison([record.pk], queue="other")
    message = Message.objects.get()
    assert (message.queue.name, message.origin, message.source_id) == ("other", "x", 7)


def test_a_retry_into_a_queue_that_has_the_same_message_is_refused(clock, policy):
    policy("other")
    import_messages([row(7)], origin="x", queue="other")
    found = import_messages([row(7)], origin="x", queue="default")
    operations.poison([found.ids[7]], why="a test")
    record = PoisonRecord.objects.get()

    outcome = operations.retry_poison([record.pk], queue="other")

    assert list(outcome.refused) == [record.pk]
    assert "from the same source" in outcome.refused[record.pk]


def test_what_moved_to_a_dead_queue_still_forgets_where_it_was_when_it_goes_elsewhere(
    clock, policy
):
    dead_queue = policy("dead")
    policy("other")
    policy(dead_queue=dead_queue, on_poison="dead_queue", max_attempts=1)
    message = send("mail")
    batch = claim()
    fail(batch.token, [Failure(message.pk, permanent=True)])
    moved = Message.objects.get()
    assert (moved.source_id, moved.origin) == (message.pk, None)
    record = poison_of(moved)

    operations.retry_poison([record.pk], queue="other")

    assert Message.objects.get().source_id is None


def test_a_message_that_lies_in_a_dead_queue_is_not_imported_again(clock, policy, counts):
    policy("other")
    policy(dead_queue=policy("dead"), on_poison="dead_queue")
    rows = [row(7), row(8)]
    found = import_messages(rows, origin="x", queue="default")
    operations.poison([found.ids[7]], why="a test")

    def again(origin: str = "x", queue: str = "default", **options: Any) -> tuple[Any, Any]:
        outcome = import_messages(rows, origin=origin, queue=queue, **options)
        return outcome.imported, outcome.ignored

    assert again() == ([], [7, 8])
    assert again(dry_run=True) == ([], [7, 8])
    # Another origin, and another queue, have messages of their own.
    assert again("y", dry_run=True) == ([7, 8], [])
    assert again(queue="other", dry_run=True) == ([7, 8], [])

    # It may die there, too, and come back.
    operations.poison([Message.objects.get(queue__name="dead").pk], why="a test")
    assert counts() == {"pending": 1, "dead": 1}
    assert again() == ([], [7, 8])
    operations.retry_poison([PoisonRecord.objects.get().pk])
    assert again() == ([], [7, 8])

    operations.retry_dead([Message.objects.get(queue__name="dead").pk])
    message = Message.objects.get(pk=found.ids[7])
    assert (message.queue.name, message.origin, message.source_id) == ("default", "x", 7)
    assert again() == ([], [7, 8])
    operations.remove([message.pk])
    assert again() == ([7], [8])


def test_a_message_that_died_while_it_was_in_the_way_is_not_imported_again(clock, monkeypatch):
    """The record is looked for after storing: earlier, a dying message may not have one yet."""
    found = import_messages([row(7)], origin="x", queue="default")
    real = lifecycle.imports._find_dead
    looked: list[bool] = []

    def look(tx, ids, **where):
        looked.append(Message.objects.filter(source_id=8).exists())
        return real(tx, ids, **where)

    monkeypatch.setattr(lifecycle.imports, "_find_dead", look)
    operations.poison(list(found.ids.values()), why="a test")

    again = import_messages([row(7), row(8)], origin="x", queue="default")

    assert looked == [True]
    assert (again.imported, again.ignored) == ([8], [7])


def test_it_joins_the_transaction_of_its_caller(clock):
    with transaction.atomic():
        import_messages([row(7)], origin="x", queue="default")
        transaction.set_rollback(True)

    assert not Message.objects.exists()


def test_a_queue_with_imported_messages_lists_where_they_came_from(clock):
    import_messages([row(7)], origin="x", queue="default")

    [message] = operations.list_messages("pending")

    assert (message.origin, message.source_id) == ("x", 7)
    assert Queue.objects.get(name="default").messages.get() == message


def test_a_task_is_imported_as_a_task(clock):
    given = row(1, queue="default") | {
        "kind": "task",
        "name": "tests.sample.tasks.add",
        "payload": {"args": [1]},
    }

    found = import_messages([given], origin="x")

    assert found.imported == [1]
    stored = Message.objects.get()
    assert (stored.kind, stored.name) == ("task", "tests.sample.tasks.add")
    assert testing.drain().completed == 1
    assert Result.objects.get().pk == stored.pk
