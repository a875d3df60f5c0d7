"""Stages: a completion without PUBLISHED keeps the message, which has all its attempts again."""

from __future__ import annotations

import logging

import pytest

from deadletter import LeaseLost, Status, send
from deadletter.exceptions import CompletionRefused
from deadletter.lifecycle import (
    ClaimRequest,
    Completed,
    Completion,
    Failure,
    Refused,
    Released,
    Scheduled,
    Staged,
    claim,
    complete,
    fail,
    process_batch,
    release,
)
from deadletter.models import Count, Message, PoisonRecord
from deadletter.signals import message_completed

PACKED = Status(8)
LAST = Status(1 << 14)

with_and_without_stream = pytest.mark.parametrize("stream", [None, "s"])


def failed_once(stream=None) -> Message:
    """A message that has failed, is due again, and remembers it."""
    message = send("mail", stream=stream)
    batch = claim()
    fail(batch.token, [Failure(message.id, "boom", delay=0)])
    Message.objects.update(reason_counts={"2": 1}, unregistered_count=3)
    return message


@with_and_without_stream
@pytest.mark.parametrize("status", [Status.EVENT_STORED, PACKED, LAST, PACKED | Status.STORED])
def test_a_stage_keeps_the_message_and_gives_it_all_its_attempts(clock, counts, stream, status):
    message = failed_once(stream)
    batch = claim()
    clock.advance(1)

    outcome = complete(batch.token, batch.ids, status=status)

    row = Message.objects.get()
    assert outcome == {message.id: Staged(Status.STORED | status)}
    assert (row.status, row.attempts, row.fence) == (Status.STORED | status, 0, 2)
    assert (row.lease_token, row.worker, row.released_at) == (None, None, None)
    assert (row.reason_counts, row.unregistered_count) == (None, None)
    assert (row.available_at, len(row.history)) == (clock.now, 1)
    assert counts() == {"pending": 1}


def test_the_next_claim_sees_the_stage_and_the_last_one_ends_the_message(clock, counts):
    send("mail")
    complete((batch := claim()).token, batch.ids, status=Status.EVENT_STORED)
    complete((batch := claim()).token, batch.ids, status=PACKED)

    batch = claim()
    (message,) = batch.messages

    assert message.status == Status.STORED | Status.EVENT_STORED | PACKED
    assert (message.attempt, message.fence) == (1, 3)
    assert complete(batch.token, batch.ids) == {message.id: Completed()}
    assert counts() == {}


def test_between_two_stages_there_are_max_attempts_starts(clock, policy):
    policy(max_attempts=3)
    message = send("mail")
    starts = []

    for stage in (Status.EVENT_STORED, PACKED, Status(16)):
        for _ in range(2):
            fail((batch := claim()).token, [Failure(message.id, delay=0)])
            starts.append(batch.messages[0].attempt)
        batch = claim()
        starts.append(batch.messages[0].attempt)
        complete(batch.token, batch.ids, status=stage)

    assert starts == [1, 2, 3] * 3
    assert PoisonRecord.objects.count() == 0
    for _ in range(3):
        fail((batch := claim()).token, [Failure(message.id, delay=0)])
    assert PoisonRecord.objects.get().attempts == 3


@pytest.mark.parametrize(
    ("before", "status"),
    [
        (Status(0), Status.PUBLISHED | PACKED),
        (Status.PUBLISHED, PACKED),
        (Status.PUBLISHED, Status.PUBLISHED),
        (Status.PUBLISHED, Status.STORED),
    ],
)
@with_and_without_stream
def test_published_now_or_before_deletes(clock, counts, stream, before, status):
    message = send("mail", stream=stream)
    behind = send("mail", stream=stream)
    fail((batch := claim(limit=1)).token, [Failure(message.id, completed=before, delay=0)])
    batch = claim(limit=1)
    assert batch.ids == [message.id] or stream is None
    taken = batch.ids[0]
    Message.objects.filter(pk=taken).update(status=int(Status.STORED | before))

    outcome = complete(batch.token, [taken], status=status)

    assert outcome == {taken: Completed()}
    assert Message.objects.exclude(pk=taken).get().pk in (message.id, behind.id)
    assert counts() == {"pending": 1}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (Status.STORED, "status 1 adds no stage to 3"),
        (Status.EVENT_STORED, "status 2 adds no stage to 3"),
        (Status.FAILED, "names FAILED"),
        (Status.FAILED | PACKED, "names FAILED"),
        (Status.FAILED | Status.PUBLISHED, "names FAILED"),
        (1 << 16, "has bits above 14"),
        (1 << 30 | 8, "has bits above 14"),
    ],
)
@with_and_without_stream
def test_a_completion_that_makes_no_stage_is_refused(clock, counts, stream, status, why):
    message = send("mail", stream=stream)
    Message.objects.update(status=3)
    batch = claim()
    before = Message.objects.values().get()

    with pytest.raises(CompletionRefused, match=f"message {message.id}: .*{why}") as raised:
        complete(batch.token, batch.ids, status=status)

    assert isinstance(raised.value, ValueError)
    assert (raised.value.ids, raised.value.lost) == ([message.id], [])
    assert Message.objects.values().get() == before
    assert counts() == {"active": 1}
    complete(batch.token, batch.ids, status=PACKED)
    assert counts() == {"pending": 1}


def test_the_others_of_a_refused_call_are_applied_and_the_lost_are_named(clock, counts):
    good, old, gone = send("mail"), send("mail"), send("mail")
    Message.objects.filter(pk=old.id).update(status=1 | 8)
    batch = claim(limit=3)
    release(batch.token, [gone.id])

    with pytest.raises(CompletionRefused, match="is not yours") as raised:
        complete(batch.token, batch.ids, status=PACKED)

    assert (raised.value.ids, raised.value.lost) == ([old.id], [gone.id])
    assert Message.objects.get(pk=good.id).status == 1 | 8
    assert counts() == {"pending": 2, "active": 1}


@pytest.mark.parametrize("known", [False, True])
def test_a_batch_names_what_is_refused_and_applies_the_rest(clock, counts, known):
    ids = [send("mail").id for _ in range(6)]
    batch = claim(limit=6)
    messages = {m.id: m for m in batch.messages} if known else {}
    flags = [Status.PUBLISHED, PACKED, Status.STORED, Status.FAILED, 0]

    result = process_batch(
        worker="w",
        token=batch.token,
        completions=[
            Completion(id, flag, message=messages.get(id))
            for id, flag in zip(ids, flags, strict=False)
        ],
        failures=[Failure(ids[5], delay=60)],
    )

    assert (result.refused, result.lost) == ([ids[2], ids[3]], [])
    assert result.outcomes[ids[0]] == Completed()
    assert result.outcomes[ids[1]] == Staged(Status.STORED | PACKED)
    assert isinstance(result.outcomes[ids[2]], Refused)
    assert "adds no stage" in result.outcomes[ids[2]].why
    assert "FAILED" in result.outcomes[ids[3]].why
    assert result.outcomes[ids[4]] == Released()
    assert isinstance(result.outcomes[ids[5]], Scheduled)
    assert counts() == {"pending": 2, "active": 2, "failed": 1}


@pytest.mark.parametrize("status", [-1, 1 << 31, 1 << 64, -(1 << 40)])
def test_flags_that_no_row_can_hold_are_refused_before_anything_is_stored(clock, counts, status):
    message, other = send("mail"), send("mail")
    batch = claim(limit=2)
    reports = {"worker": "w", "token": batch.token}

    with pytest.raises(ValueError, match="not a valid set of status flags"):
        complete(batch.token, batch.ids, status=status)
    with pytest.raises(ValueError, match=f"status of message {message.id}"):
        process_batch(**reports, completions=[Completion(other.id), Completion(message.id, status)])
    with pytest.raises(ValueError, match=f"completed of message {message.id}"):
        fail(batch.token, [Failure(other.id), Failure(message.id, completed=status)])
    with pytest.raises(ValueError, match=f"completed of message {message.id}"):
        process_batch(
            **reports,
            completions=[Completion(other.id)],
            failures=[Failure(message.id, completed=status)],
        )

    assert counts() == {"active": 2}


def test_a_failure_keeps_flags_that_nobody_knows_but_no_bits_above_14(clock, counts):
    message = send("mail")
    batch = claim()
    with pytest.raises(ValueError, match="is not a valid stage"):
        fail(batch.token, [Failure(message.id, completed=1 << 16)])

    every = sum(1 << bit for bit in range(15)) & ~int(Status.PUBLISHED)
    fail(batch.token, [Failure(message.id, completed=every | Status.FAILED)])

    assert Message.objects.get().status == every | Status.FAILED
    assert counts() == {"failed": 1}


@pytest.mark.parametrize("stream_policy", ["strict", "release", "halt"])
def test_a_stage_gives_back_the_rest_of_its_run(clock, counts, policy, stream_policy):
    policy(stream_policy=stream_policy)
    first, *rest = (send("mail", stream="s").id for _ in range(4))
    alone, elsewhere = send("mail").id, send("mail", stream="t").id
    batch = claim(limit=10)
    assert len(batch) == 6

    outcome = complete(batch.token, [first], status=PACKED)

    assert outcome == {first: Staged(Status.STORED | PACKED), **dict.fromkeys(rest, Released())}
    rows = Message.objects.filter(pk__in=rest).values_list("attempts", "status", "lease_token")
    assert set(rows) == {(0, 1, None)}
    assert counts() == {"pending": 4, "active": 2}
    assert claim(limit=10).ids == [first, *rest]
    with pytest.raises(LeaseLost):
        complete(batch.token, rest)
    assert set(complete(batch.token, [alone, elsewhere])) == {alone, elsewhere}


def test_what_stands_before_a_stage_in_its_run_stays_with_its_holder(clock, counts):
    ids = [send("mail", stream="s").id for _ in range(3)]
    batch = claim(limit=3)

    complete(batch.token, [ids[1]], status=PACKED)

    assert counts() == {"active": 1, "pending": 2}
    assert not claim(limit=3)
    complete(batch.token, [ids[0]])
    assert claim(limit=3).ids == ids[1:]


@pytest.mark.parametrize("known", [False, True])
def test_what_is_reported_with_a_stage_is_settled_as_reported(clock, counts, known):
    ids = [send("mail", stream="s").id for _ in range(6)]
    batch = claim(limit=6)
    messages = {m.id: m for m in batch.messages} if known else {}

    result = process_batch(
        worker="w",
        token=batch.token,
        completions=[
            Completion(ids[0], PACKED, message=messages.get(ids[0])),
            Completion(ids[1], message=messages.get(ids[1])),
        ],
        failures=[Failure(ids[2], delay=60, message=messages.get(ids[2]))],
        releases=[ids[3]],
    )

    assert result.lost == []
    assert result.outcomes == {
        ids[0]: Staged(Status.STORED | PACKED),
        ids[1]: Completed(),
        ids[2]: Scheduled(Message.objects.get(pk=ids[2]).available_at),
        ids[3]: Released(),
        ids[4]: Released(),
        ids[5]: Released(),
    }
    assert not Message.objects.filter(lease_token__isnull=False).exists()
    assert dict(Message.objects.values_list("id", "attempts")) == {
        ids[0]: 0,
        ids[2]: 1,
        ids[3]: 0,
        ids[4]: 0,
        ids[5]: 0,
    }


def test_a_whole_run_can_finish_its_stage_at_once(clock, counts):
    ids = [send("mail", stream="s").id for _ in range(3)]
    batch = claim(limit=3)

    outcome = complete(batch.token, ids, status=PACKED)

    assert outcome == dict.fromkeys(ids, Staged(Status.STORED | PACKED))
    assert claim(limit=3).ids == ids


def test_a_stage_wakes_what_is_parked_in_its_stream(clock, counts):
    first = send("mail", stream="s").id
    batch = claim()
    later = send("mail", stream="s").id
    assert not claim()
    assert counts() == {"active": 1, "blocked": 1}

    complete(batch.token, [first], status=PACKED)

    assert claim(limit=2).ids == [first, later]


@with_and_without_stream
def test_only_the_holder_of_a_live_lease_finishes_a_stage(clock, counts, stream):
    ids = [send("mail", stream=stream).id for _ in range(2)]
    batch = claim(limit=2)
    before = list(Message.objects.order_by("id").values())

    with pytest.raises(LeaseLost):
        complete("0" * 16, ids, status=PACKED)
    clock.advance(61)
    with pytest.raises(LeaseLost):
        complete(batch.token, ids, status=PACKED)

    assert list(Message.objects.order_by("id").values()) == before


def test_the_next_stage_can_be_claimed_by_the_report_of_the_one_before(clock):
    message = send("mail")
    batch = claim()

    result = process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(message.id, PACKED)],
        claim=ClaimRequest(limit=1),
    )

    assert result.ids == [message.id]
    assert result.messages[0].status == Status.STORED | PACKED


@pytest.mark.django_db(transaction=True)
def test_a_stage_is_no_completion_for_counters_and_signals_and_is_logged(caplog):
    send("mail")
    batch = claim()
    heard = []

    def hear(**values):
        heard.append(values)

    message_completed.connect(hear)
    try:
        with caplog.at_level(logging.DEBUG, "deadletter"):
            complete(batch.token, batch.ids, status=PACKED)
    finally:
        message_completed.disconnect(hear)

    assert heard == []
    assert sum(Count.objects.values_list("completed", flat=True)) == 0
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "stage_completed"]
    assert record.fields == {"message_id": batch.ids[0], "status": 9, "stream": None}
