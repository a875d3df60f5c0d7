from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import FailureReason, PayloadRejected, Status, operations, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Message, PoisonRecord
from deadletter.signals import poison_removed, poison_retried


def poison(message: Message, **failure) -> PoisonRecord:
    batch = claim()
    fail(batch.token, [Failure(message.id, permanent=True, error="boom", **failure)])
    return PoisonRecord.objects.get(message_id=message.id)


def test_a_retry_puts_the_message_back_under_its_own_id(clock, counts):  # A19, C30, D15, E6
    message = send("mail", {"to": 1}, headers={"h": 1}, stream="a", key="k", priority=3)
    record = poison(message, completed=Status.EVENT_STORED)
    clock.advance(100)

    outcome = operations.retry_poison([record.pk], by="ann")

    row = Message.objects.get()
    assert (outcome.retried, outcome.missing, outcome.refused) == ([record.pk], [], {})
    assert (row.id, row.queue.name, row.name) == (message.id, "default", "mail")
    assert (row.payload, row.headers) == ({"to": 1}, {"h": 1})
    assert (row.stream, row.key, row.priority) == ("a", "k", 3)
    assert (row.attempts, row.status) == (0, Status.STORED | Status.EVENT_STORED)
    assert (row.lease_token, row.worker, row.released_at) == (None, None, None)
    assert row.available_at == clock.now
    assert row.created_at == message.created_at
    assert counts() == {"pending": 1}


def test_the_history_and_the_fence_survive_a_retry(clock):
    message = send("mail")
    record = poison(message)

    operations.retry_poison(record.pk)

    row = Message.objects.get()
    assert (row.fence, [entry["error"] for entry in row.history]) == (1, ["boom"])
    assert claim().messages[0].fence == 2


def test_a_retried_message_may_be_poison_again_and_it_is_counted(clock, counts):  # A22, C31
    message = send("mail")
    for times in range(1, 4):
        record = poison(message)
        assert (record.poison_count, record.attempts) == (times, 1)
        operations.retry_poison(record.pk)

    assert Message.objects.get().poison_count == 3
    assert counts() == {"pending": 1}


def test_a_first_death_is_counted_from_nothing(clock):  # C31
    assert poison(send("mail")).poison_count == 1


def test_a_retry_gives_the_full_number_of_attempts(clock, counts, policy):  # A19
    policy(max_attempts=2)
    message = send("mail")
    poison(message)

    operations.retry_poison(PoisonRecord.objects.get().pk)
    for _ in range(2):
        batch = claim()
        assert batch.ids == [message.id]
        fail(batch.token, [Failure(message.id, delay=0)])

    assert PoisonRecord.objects.get().attempts == 2
    assert counts() == {"dead": 1}


def test_a_second_retry_finds_nothing(clock, counts):  # C30
    record = poison(send("mail"))
    operations.retry_poison([record.pk])

    again = operations.retry_poison([record.pk, 10**15])

    assert (again.retried, again.missing) == ([], [record.pk, 10**15])
    assert counts() == {"pending": 1}


def test_a_retry_whose_key_is_taken_is_refused_and_nothing_is_doubled(clock, counts):
    record = poison(send("mail", key="k"))
    send("mail", key="k")

    outcome = operations.retry_poison([record.pk])

    assert outcome.retried == []
    assert "key 'k'" in outcome.refused[record.pk]
    assert counts() == {"pending": 1, "dead": 1}


def test_a_retry_into_a_queue_that_is_gone_is_refused(clock, counts):
    record = poison(send("mail"))

    outcome = operations.retry_poison([record.pk], queue="nowhere")

    assert "queue 'nowhere' does not exist" in outcome.refused[record.pk]
    assert counts() == {"dead": 1}


def test_a_retry_may_go_to_another_queue(clock, counts, policy):
    policy("other")
    record = poison(send("mail"))

    operations.retry_poison([record.pk], queue="other")

    assert Message.objects.get().queue.name == "other"
    assert counts() == {"pending": 1}


def test_a_retry_may_bring_a_repaired_payload(clock):
    record = poison(send("mail", {"to": "broken"}))

    operations.retry_poison([record.pk], payload={"to": "fixed"})

    assert Message.objects.get().payload == {"to": "fixed"}


def test_a_repaired_payload_may_be_nothing(clock):
    record = poison(send("mail", {"to": "broken"}))

    operations.retry_poison([record.pk], payload=None)

    assert Message.objects.get().payload is None


def test_a_bad_repair_is_refused_before_anything_is_touched(clock, counts):
    record = poison(send("mail"))

    with pytest.raises(PayloadRejected, match="NUL"):
        operations.retry_poison([record.pk], payload="\x00")

    assert counts() == {"dead": 1}


def test_a_rate_spreads_the_retries(clock, counts):
    records = [poison(send("mail")).pk for _ in range(3)]

    operations.retry_poison(records, rate=0.5)

    waits = [row.available_at - clock.now for row in Message.objects.all()]
    assert waits == [timedelta(seconds=n) for n in (0, 2, 4)]
    assert counts() == {"pending": 1, "scheduled": 2}


@pytest.mark.parametrize("rate", [0, -1])
def test_a_bad_rate_is_refused(clock, counts, rate):
    record = poison(send("mail"))

    with pytest.raises(ValueError, match="rate"):
        operations.retry_poison([record.pk], rate=rate)

    assert counts() == {"dead": 1}


def test_a_retried_message_keeps_its_place_in_its_stream(clock, counts):
    first, second = send("mail", stream="a"), send("mail", stream="a")
    batch = claim()
    fail(batch.token, [Failure(first.id, permanent=True), Failure(second.id, delay=60)])

    operations.retry_poison([PoisonRecord.objects.get().pk])

    assert claim().ids == [first.id]
    assert counts() == {"active": 1, "failed": 1}


def test_an_expired_message_that_is_retried_gets_a_new_time(clock, counts, policy):
    policy(expire_timeout=100)
    send("mail")
    clock.advance(100)
    assert claim().dead

    operations.retry_poison([PoisonRecord.objects.get().pk])

    assert Message.objects.get().expires_at == clock.now + timedelta(seconds=100)
    assert len(claim()) == 1


def test_removed_poison_is_gone_for_good(clock, counts):  # A18, U14
    record = poison(send("mail"))
    other = poison(send("mail"))

    outcome = operations.remove_poison([record.pk, 10**15], by="ann", why="duplicate")

    assert (outcome.removed, outcome.missing) == ([record.pk], [10**15])
    assert operations.get_poison(record.pk) is None
    assert operations.get_poison(other.pk) == other
    assert counts() == {"dead": 1}


def test_listeners_hear_of_retries_and_removals_after_the_commit(
    clock, django_capture_on_commit_callbacks
):
    heard = []

    def retried(message_id, by, **kwargs):
        heard.append(("retried", message_id, by))

    def removed(message_id, by, **kwargs):
        heard.append(("removed", message_id, by))

    first, second = send("mail"), send("mail")
    records = [poison(first).pk, poison_of(second)]
    poison_retried.connect(retried)
    poison_removed.connect(removed)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            operations.retry_poison([records[0]], by="ann")
            operations.remove_poison([records[1]], by="bob")
            assert heard == []
    finally:
        poison_retried.disconnect(retried)
        poison_removed.disconnect(removed)

    assert heard == [("retried", first.id, "ann"), ("removed", second.id, "bob")]


def poison_of(message: Message) -> int:
    """The second of two was claimed together with the first: poison it by hand."""
    clocked = Message.objects.filter(pk=message.id)
    clocked.update(lease_token=None, available_at=message.available_at)
    operations.poison([message.id], why="-")
    return PoisonRecord.objects.get(message_id=message.id).pk


def test_poison_is_listed_newest_first_by_what_is_asked_for(clock, policy):  # A16
    policy("other")
    first = poison(send("mail"))
    clock.advance(10)
    second = poison(send("bill", queue="other"))

    found = {
        "all": operations.list_poison(),
        "queue": operations.list_poison(queue="other"),
        "name": operations.list_poison(name="mail"),
        "since": operations.list_poison(since=clock.now),
        "reason": operations.list_poison(reason=FailureReason.EXPIRED),
        "instance": operations.list_poison(instance="i1"),
        "limit": operations.list_poison(limit=1),
        "kind": operations.list_poison(kind="activity"),
    }

    assert found == {
        "all": [second, first],
        "queue": [second],
        "name": [first],
        "since": [second],
        "reason": [],
        "instance": [],
        "limit": [second],
        "kind": [],
    }


def test_a_list_of_poison_loads_no_payloads(clock):
    poison(send("mail"))

    (record,) = operations.list_poison()

    assert {"payload", "headers", "history"} <= record.get_deferred_fields()


def test_an_unknown_record_is_nothing(clock):  # A16
    assert operations.get_poison(10**15) is None
