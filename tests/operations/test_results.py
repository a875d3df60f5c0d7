"""Results of ended messages: list and read them, and cancel what has not ended."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deadletter import operations, send, testing
from deadletter.lifecycle import claim
from deadletter.models import Act, AuditEntry, Kind, Message, PoisonRecord, Queue, Result
from tests.sample import tasks

pytestmark = pytest.mark.django_db


def ended(task=tasks.add, *args, **options) -> int:
    """Run a task and return the id of its message."""
    result = task.using(**options).enqueue(*(args or (1,)))
    testing.drain()
    return int(result.id)


def test_results_are_listed_newest_first_without_their_values(clock):
    first, second = ended(), ended(tasks.answer, "text")

    found = operations.list_results()

    assert [row.pk for row in found] == [second, first]
    assert {"payload", "value", "history"} <= found[0].get_deferred_fields()


def test_a_list_of_results_is_narrowed(clock):
    Queue.objects.create(name="tenant-a/mail")
    plain = ended()
    other = ended(tasks.answer, 1, queue_name="tenant-a/mail")
    cancelled = int(tasks.add.enqueue(1).id)
    operations.cancel(cancelled)

    def ids(*args, **given):
        return [row.pk for row in operations.list_results(*args, **given)]

    assert ids("tests.sample.tasks.add") == [cancelled, plain]
    assert ids(queue="tenant-a/mail") == ids(queue="tenant-a/*") == [other]
    assert ids(outcome="cancelled") == [cancelled]
    assert ids(kind=Kind.TASK) == [cancelled, other, plain]
    assert ids(kind=Kind.MESSAGE) == []
    assert ids(limit=1) == [cancelled]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"outcome": "lost"}, "outcome: 'lost' is none of successful, removed, cancelled"),
        ({"name": "a\x00"}, "name: the NUL character matches nothing"),
        ({"queue": "q" * 1_001}, "queue: longer than 1,000 characters"),
    ],
)
def test_a_filter_that_no_result_can_match_is_refused(given, text):
    with pytest.raises(ValueError, match=text):
        operations.list_results(**given)


def test_a_result_is_read_by_the_id_of_its_message(clock):
    id = ended()
    waiting = tasks.add.enqueue(1)

    assert operations.get_result(id).value == operations.get_result(str(id)).value == 2
    assert operations.get_result(waiting.id) is None
    assert operations.get_result("no id") is None
    assert operations.get_result(2**70) is None


def test_a_cancelled_task_has_failed_and_is_audited(clock, counts):
    result, other = tasks.add.enqueue(1), tasks.add.enqueue(2)

    outcome = operations.cancel(result, by="ada", why="sent twice")

    assert (outcome.done, outcome.missing, outcome.refused) == ([int(result.id)], [], {})
    assert counts() == {"pending": 1}
    assert Message.objects.get().pk == int(other.id)
    result.refresh()
    assert (result.status, result.state) == ("FAILED", "cancelled")
    entry = AuditEntry.objects.get(pk=outcome.entry_id)
    assert (entry.act, entry.by, entry.why, entry.done) == (Act.DISCARD, "ada", "sent twice", 1)


def test_tasks_are_cancelled_by_ids_texts_and_objects(clock, counts):
    results = [tasks.add.enqueue(n) for n in range(4)]
    first, second, third, fourth = (int(result.id) for result in results)

    outcome = operations.cancel(
        [first, str(second), results[2], SimpleNamespace(id=str(fourth)), second]
    )

    assert outcome.done == [first, second, third, fourth]
    assert counts() == {}
    assert set(Result.objects.values_list("outcome", flat=True)) == {"cancelled"}


def test_a_message_that_is_no_task_is_cancelled_and_keeps_no_result(clock, counts):
    message = send("mail")

    assert operations.cancel(message.pk).done == [message.pk]
    assert (counts(), Result.objects.count()) == ({}, 0)


def test_a_running_task_is_not_cancelled(clock, counts):
    result = tasks.add.enqueue(1)
    claim()

    outcome = operations.cancel(result.id)

    text = f"message {result.id} is active; wait for its lease to end"
    assert (outcome.done, outcome.refused) == ([], {int(result.id): text})
    assert (counts(), Result.objects.count()) == ({"active": 1}, 0)


def test_a_dead_task_is_not_cancelled(clock, counts):
    ended()  # so that the record has another id than its message
    result = tasks.fail_for_good.enqueue()
    testing.drain()
    record = PoisonRecord.objects.get()

    outcome = operations.cancel(record)

    text = f"message {result.id} is dead; remove its poison record {record.pk} instead"
    assert (outcome.done, outcome.missing) == ([], [])
    assert outcome.refused == {int(result.id): text}
    assert (counts(), Result.objects.count()) == ({"dead": 1}, 1)


def test_a_task_in_a_dead_queue_is_not_cancelled_under_either_id(clock, counts):
    dead = Queue.objects.create(name="dead", paused=True)
    Queue.objects.create(name="moving", dead_queue=dead, on_poison="dead_queue")
    result = tasks.fail_for_good.using(queue_name="moving").enqueue()
    testing.drain()
    copy = Message.objects.get()
    assert copy.pk != int(result.id)

    outcome = operations.cancel([result.id, copy.pk])

    end = f"is dead; remove it from its dead queue, as message {copy.pk}, instead"
    assert outcome.refused == {
        int(result.id): f"message {result.id} {end}",
        copy.pk: f"message {copy.pk} {end}",
    }
    assert Message.objects.get() == copy


def test_a_task_that_has_ended_is_missing(clock):
    id = ended()

    outcome = operations.cancel([id, 999_999])

    assert (outcome.done, outcome.missing, outcome.entry_id) == ([], [id, 999_999], 0)
    assert Result.objects.get().outcome == "successful"


@pytest.mark.parametrize("given", ["abc", "-1", ["1", "²"], "9" * 30])
def test_a_text_that_is_no_id_is_refused(given, counts):
    result = tasks.add.enqueue(1)

    with pytest.raises(ValueError, match="is not the id of a message or of its result"):
        operations.cancel([result.id, *([given] if isinstance(given, str) else given)])

    assert counts() == {"pending": 1}


@pytest.mark.parametrize("given", [None, 1.5, True, [None]])
def test_an_object_that_is_no_id_is_refused(given):
    with pytest.raises(TypeError, match="an id is a whole number"):
        operations.cancel(given)
