"""Concurrent settles of one message, or of many in opposite order: one wins, no deadlock."""

from __future__ import annotations

import pytest
from django.db import transaction

from deadletter import Status, operations, send
from deadletter.lifecycle import (
    Completion,
    Failure,
    LeaseLost,
    claim,
    complete,
    fail,
    process_batch,
    release,
    renew,
    sweep,
)
from deadletter.models import Message, PoisonRecord
from deadletter.testing import frozen_clock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]

#: What a worker may report of one message, and the statement after which it is decided.
REPORTS = {
    "complete": (lambda batch: complete(batch.token, batch.ids), "complete", "complete_streamed"),
    "fail": (lambda batch: fail(batch.token, failures(batch)), "fail", "fail"),
    "give up": (lambda batch: fail(batch.token, failures(batch, permanent=True)), *["delete"] * 2),
    "release": (lambda batch: release(batch.token, batch.ids), "release", "release"),
}


def failures(batch, **options) -> list[Failure]:
    return [Failure(id, error="x", **options) for id in batch.ids]


@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("loser", REPORTS)
@pytest.mark.parametrize("winner", REPORTS)
def test_of_two_reports_on_one_message_the_second_finds_the_lease_gone(
    queue, stage, repeated, winner, loser, stream
):
    message = send("m", queue="q", stream=stream)
    batch = claim(["q"])
    report, plain, streamed = REPORTS[winner]
    first = stage(lambda: report(batch), after=streamed if stream else plain)

    second = stage(lambda: REPORTS[loser][0](batch))
    event = second.wait_blocked(by=first)
    first.result()

    with pytest.raises(LeaseLost):
        second.result()
    assert event == ("advisory" if stream else "transactionid")
    assert repeated == []
    left = list(Message.objects.values_list("id", "attempts", "lease_token"))
    expected = {"fail": [(message.id, 1, None)], "release": [(message.id, 0, None)]}
    assert left == expected.get(winner, [])
    assert PoisonRecord.objects.count() == (1 if winner == "give up" else 0)


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_renewal_after_the_end_renews_nothing(queue, stage, stream):
    message = send("m", queue="q", stream=stream)
    batch = claim(["q"])
    first = stage(
        lambda: complete(batch.token, batch.ids),
        after="complete_streamed" if stream else "complete",
    )

    second = stage(lambda: renew(batch.token, batch.ids))
    second.wait_blocked(by=first)
    first.result()

    with pytest.raises(LeaseLost) as lost:
        second.result()
    assert lost.value.ids == [message.id]
    assert Message.objects.count() == 0


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_message_quarantined_twice_at_once_is_one_record(queue, stage, stream):
    with frozen_clock() as clock:
        queue.max_attempts = 1
        queue.save()
        message = send("m", queue="q", stream=stream, expires_in=30)
        claim(["q"], worker="gone")
        clock.advance(61)
        by_claim = stage(lambda: claim(["q"]), after="quarantine")

        by_hand = stage(lambda: operations.poison([message.id], why="bad"))
        by_hand.wait_blocked(by=by_claim)
        # The sweep leaves the stream, and a plain row, to whoever is at it.
        by_time = stage(lambda: sweep())
        batch = by_claim.result()

        assert by_hand.result().missing == [message.id]
        assert by_time.result().expired == 0
        assert (batch.ids, batch.dead) == ([], [message.id])
        assert PoisonRecord.objects.get().message_id == message.id
        assert Message.objects.count() == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_reports_on_the_same_streams_in_opposite_order_do_not_deadlock(
    queue, stage, repeated, two_streams, reverse
):
    one, two = two_streams(queue.pk)
    if reverse:
        one, two = two, one
    first = {name: send("m", queue="q", stream=name).id for name in (one, two)}
    batch = claim(["q"])
    later = {name: send("m", queue="q", stream=name).id for name in (one, two)}
    # Completes in the one, gives back by name in the other: two steps, if it were not careful.
    worker = stage(
        lambda: process_batch(
            worker="w",
            token=batch.token,
            completions=[Completion(first[one]), Completion(first[two], Status(0))],
        ),
        after="complete",
        deadlock_timeout="50ms",
    )
    people = stage(lambda: operations.release([later[one], later[two]]), deadlock_timeout="50ms")
    people.wait_blocked(by=worker)

    outcome = worker.result()

    assert sorted(outcome.outcomes) == sorted(first.values())
    assert sorted(people.result().done) == sorted(later.values())
    assert repeated == []
    assert Message.objects.count() == 3


@pytest.mark.parametrize("reverse", [False, True])
def test_two_batches_that_name_the_same_streams_in_opposite_order_do_not_deadlock(
    queue, stage, repeated, two_streams, reverse
):
    with frozen_clock() as clock:
        one, two = two_streams(queue.pk)
        ids = [send("m", queue="q", stream=name).id for name in (one, two)]
        late = claim(["q"], worker="late")
        clock.advance(61)
        holder = claim(["q"], worker="holder")
        order = ids[::-1] if reverse else ids
        first = stage(
            lambda: process_batch(
                worker="holder", token=holder.token, failures=[Failure(id) for id in order]
            ),
            after="lock_streams",
            deadlock_timeout="50ms",
        )
        second = stage(
            lambda: process_batch(
                worker="late", token=late.token, failures=[Failure(id) for id in order[::-1]]
            ),
            deadlock_timeout="50ms",
        )
        event = second.wait_blocked(by=first)

        assert event == "advisory"
        assert sorted(first.result().outcomes) == ids
        assert second.result().lost == ids
        assert repeated == []


def test_who_completes_and_who_releases_take_the_locks_of_streams_in_one_order(
    queue, stage, repeated, two_streams
):
    names = two_streams(queue.pk)
    first = [send("m", queue="q", stream=name).id for name in names]
    batch = claim(["q"])
    later = [send("m", queue="q", stream=name).id for name in names]
    last = send("m", queue="q", stream=names[1]).id
    # Whoever asks for the second stream waits here, with or without the first in its hands.
    holder = stage(lambda: operations.release([last]), after="lock_streams")
    people = stage(lambda: operations.release(later), deadlock_timeout="50ms")
    people.wait_blocked(by=holder)
    worker = stage(lambda: complete(batch.token, batch.ids), deadlock_timeout="50ms")
    worker.wait_blocked(by=people)

    holder.result()

    assert people.result().done == later
    assert sorted(worker.result()) == first
    assert repeated == []


def test_a_report_of_plain_and_streamed_messages_holds_no_row_while_it_waits_for_a_stream(
    queue, stage, repeated
):
    plain, streamed = send("m", queue="q"), send("m", queue="q", stream="s")
    batch = claim(["q"])
    later = send("m", queue="q", stream="s")
    people = stage(
        lambda: operations.remove([plain.id, later.id]),
        after="lock_streams",
        deadlock_timeout="50ms",
    )
    worker = stage(lambda: complete(batch.token, batch.ids), deadlock_timeout="50ms")
    event = worker.wait_blocked(by=people)

    removal = people.result()

    assert event == "advisory"
    assert removal.removed == [later.id]
    assert list(removal.refused) == [plain.id]  # being handled
    assert sorted(worker.result()) == [plain.id, streamed.id]
    assert repeated == []
    assert Message.objects.count() == 0


def test_a_deadlock_that_somebody_else_provokes_is_repeated_as_a_whole(queue, stage, repeated):
    one, two = (send("m", queue="q").id for _ in range(2))
    batch = claim(["q"])

    def in_the_wrong_order() -> None:
        with transaction.atomic():
            list(Message.objects.select_for_update().filter(pk=two))
            claim(["elsewhere"])  # a place to stand
            list(Message.objects.select_for_update().filter(pk=one))

    other = stage(in_the_wrong_order, after="read_levels_of")
    worker = stage(
        lambda: fail(batch.token, [Failure(one, error="x"), Failure(two, error="x")]),
        deadlock_timeout="50ms",
    )
    worker.wait_blocked(by=other)

    other.result()

    assert sorted(worker.result()) == [one, two]
    assert len(repeated) == 1
    assert "deadlock" in repeated[0]
    rows = Message.objects.order_by("id").values_list("attempts", "status", "lease_token")
    assert list(rows) == [(1, Status.STORED | Status.FAILED, None)] * 2
    assert [len(row.history) for row in Message.objects.all()] == [1, 1]
