"""Everything a worker reports and asks for, in one transaction."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from deadletter import FailureReason, Status, send
from deadletter.lifecycle import (
    ClaimRequest,
    Completed,
    Completion,
    Failure,
    Poisoned,
    Release,
    Released,
    Scheduled,
    claim,
    process_batch,
)
from deadletter.models import Message

from .streams import attempts, run_of_three

ALL = ClaimRequest(queues=None, limit=100, lease=60)


def test_mixed_reports_are_settled_each_in_its_way(clock, counts, policy):  # C10
    done, failed, dead, back, named = (send("mail", n).id for n in range(5))
    token = claim(worker="w1").token

    result = process_batch(
        worker="w1",
        token=token,
        completions=[Completion(done, Status.PUBLISHED), Completion(named, 0)],
        failures=[Failure(failed, error="boom"), Failure(dead, permanent=True)],
        releases=[back],
    )

    assert isinstance(result.outcomes.pop(failed), Scheduled)
    assert result.outcomes == {
        done: Completed(),
        dead: Poisoned(attempts=1),
        back: Released(),
        named: Released(),
    }
    assert (list(result.poisoned), list(result.lost), result.ids) == ([dead], [], [])
    assert counts() == {"failed": 1, "pending": 2, "dead": 1}


def test_a_batch_may_only_claim(clock, counts):
    message = send("mail")

    result = process_batch(worker="w1", claim=ALL)

    assert result.ids == [message.id]
    assert result.messages[0].token == result.token
    assert (result.outcomes, list(result.poisoned), list(result.lost)) == ({}, [], [])
    assert Message.objects.get().worker == "w1"
    assert counts() == {"active": 1}


def test_a_batch_without_anything_does_nothing(clock, counts):
    send("mail")

    result = process_batch(worker="w1")

    assert (result.ids, result.outcomes) == ([], {})
    assert counts() == {"pending": 1}


def test_what_failed_in_this_call_is_not_claimed_by_it(clock, counts):  # trap 5, C23
    message = send("mail")
    token = claim().token

    result = process_batch(
        worker="w1", token=token, failures=[Failure(message.id, delay=0)], claim=ALL
    )

    assert result.ids == []
    assert counts() == {"pending": 1}
    assert process_batch(worker="w1", claim=ALL).ids == [message.id]


def test_what_failed_in_this_call_is_not_passed_by_its_stream(clock, counts):  # trap 5
    m1, m2, m3 = run_of_three()
    token = claim().token

    result = process_batch(
        worker="w1", token=token, failures=[Failure(m1, delay=0)], releases=[m2, m3], claim=ALL
    )

    assert result.ids == []
    assert claim().ids == [m1, m2, m3]


def test_what_was_released_in_this_call_may_be_claimed_by_it(clock, counts):  # trap 5, C23
    message = send("mail")
    token = claim().token

    result = process_batch(worker="w1", token=token, releases=[message.id], claim=ALL)

    assert result.ids == [message.id]
    assert (result.messages[0].attempt, result.messages[0].fence) == (1, 2)
    assert counts() == {"active": 1}


def test_a_finished_head_lets_its_stream_be_claimed_in_the_same_call(clock, counts):
    m1, m2, m3 = run_of_three()
    token = claim(limit=1).token
    assert claim().ids == []

    result = process_batch(worker="w1", token=token, completions=[Completion(m1)], claim=ALL)

    assert result.ids == [m2, m3]
    assert counts() == {"active": 2}


def test_a_cascade_is_one_call_and_bystanders_are_untouched(clock, counts):  # C10, D10
    m1, m2, m3 = run_of_three()
    token = claim().token

    result = process_batch(
        worker="w1", token=token, failures=[Failure(m1, error="boom")], releases=[m2, m3], claim=ALL
    )

    assert result.ids == []
    assert attempts() == {"m1": 1, "m2": 0, "m3": 0}
    assert counts() == {"failed": 1, "blocked": 2}


def test_leases_that_are_lost_are_reported_and_the_rest_is_applied(clock, counts):
    slow, ours = send("mail"), send("mail")
    stale = claim(limit=1, lease=10).token
    token = claim(limit=1, lease=600).token
    clock.advance(10)
    claim(limit=1, lease=600)

    result = process_batch(
        worker="w1",
        token=token,
        completions=[Completion(ours.id), Completion(slow.id, token=stale), Completion(10**15)],
    )

    assert result.outcomes == {ours.id: Completed()}
    assert list(result.lost) == [slow.id, 10**15]
    assert Message.objects.get().id == slow.id
    assert counts() == {"active": 1}


@pytest.mark.parametrize("kind", ["completions", "failures", "releases"])
def test_a_lost_report_of_any_kind_changes_nothing(clock, counts, kind):
    message = send("mail", stream="a")
    token = claim(lease=10).token
    clock.advance(10)
    before = Message.objects.values().get()
    report = {
        "completions": [Completion(message.id)],
        "failures": [Failure(message.id, error="late", permanent=True)],
        "releases": [message.id],
    }[kind]

    result = process_batch(worker="w1", token=token, **{kind: report})

    assert list(result.lost) == [message.id]
    assert Message.objects.values().get() == before


def test_reports_may_bring_leases_of_their_own(clock, counts):
    a, b, c = (send("mail") for _ in range(3))
    tokens = [claim(limit=1).token for _ in range(3)]

    result = process_batch(
        worker="w1",
        completions=[Completion(a.id, token=tokens[0])],
        failures=[Failure(b.id, token=tokens[1])],
        releases=[Release(c.id, token=tokens[2])],
    )

    assert [type(result.outcomes[item.id]) for item in (a, b, c)] == [
        Completed,
        Scheduled,
        Released,
    ]
    assert Message.objects.get(pk=c.id).released_at is None
    assert counts() == {"failed": 1, "pending": 1}


def test_a_message_reported_twice_is_settled_once(clock, counts):
    message = send("mail")
    token = claim().token

    result = process_batch(
        worker="w1",
        token=token,
        completions=[Completion(message.id)],
        failures=[Failure(message.id, permanent=True)],
        releases=[message.id],
    )

    assert result.outcomes == {message.id: Completed()}
    assert list(result.lost) == []
    assert counts() == {}


def test_the_same_report_again_is_lost_and_changes_nothing(clock, counts):
    message = send("mail")
    token = claim().token
    report = {"failures": [Failure(message.id, error="boom")]}
    process_batch(worker="w1", token=token, **report)

    again = process_batch(worker="w1", token=token, **report)

    assert list(again.lost) == [message.id]
    assert Message.objects.get().attempts == 1
    assert counts() == {"failed": 1}


def test_what_the_claim_gives_up_is_among_the_poisoned(clock, counts, policy):
    policy(max_attempts=1)
    crashed, failing = send("mail"), send("mail")
    claim(limit=1, lease=10)
    token = claim(limit=1, lease=600).token
    clock.advance(10)

    result = process_batch(worker="w1", token=token, failures=[Failure(failing.id)], claim=ALL)

    assert sorted(result.poisoned) == [crashed.id, failing.id]
    assert counts() == {"dead": 2}


def test_one_bad_report_undoes_the_whole_call(clock, counts):
    done, bad = send("mail"), send("mail")
    token = claim().token

    with pytest.raises(ValueError, match="delay"):
        process_batch(
            worker="w1",
            token=token,
            completions=[Completion(done.id)],
            failures=[Failure(bad.id, delay=-1)],
        )

    assert counts() == {"active": 2}


def test_reasons_of_several_failures_stay_apart(clock):
    a, b = send("mail"), send("mail")
    token = claim().token

    process_batch(
        worker="w1",
        token=token,
        failures=[
            Failure(b.id, error="b", reason=FailureReason.TIMEOUT_EXCEEDED),
            Failure(a.id, error="a", reason=FailureReason.VALIDATION_FAILURE),
        ],
    )

    assert list(Message.objects.values_list("id", "error", "failure_reason")) == [
        (a.id, "a", FailureReason.VALIDATION_FAILURE),
        (b.id, "b", FailureReason.TIMEOUT_EXCEEDED),
    ]


@pytest.fixture
def locks():
    """Say how many streams this transaction has locked."""

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
            return cursor.fetchone()[0]

    return count


@pytest.mark.postgresql_only(reason="SQLite locks no streams")
@pytest.mark.django_db(transaction=True)
def test_a_failure_that_has_its_message_locks_its_stream(locks):
    plain, streamed = send("mail").id, send("mail", stream="s").id
    messages = {message.id: message for message in claim()}

    def failure(id: int) -> Failure:
        message = messages[id]
        return Failure(id, error="boom", token=message.token, message=message)

    with transaction.atomic():
        process_batch(worker="w1", failures=[failure(plain)])
        assert locks() == 0
        process_batch(worker="w1", failures=[failure(streamed)])
        assert locks() == 1


@pytest.mark.postgresql_only(reason="SQLite locks no streams")
@pytest.mark.django_db(transaction=True)
def test_beside_a_failure_everything_that_may_have_a_stream_is_locked(locks):
    ids = [send("mail", stream=f"s{n}").id for n in range(4)]
    known, unknown, failed, back = claim().messages

    with transaction.atomic():
        done = process_batch(
            worker="w1",
            token=known.token,
            completions=[Completion(known.id, message=known), Completion(unknown.id)],
            failures=[Failure(failed.id, error="boom")],
            releases=[back.id],
        )
        assert locks() == 4

    assert set(done.outcomes) == set(ids)


def test_messages_are_released_each_in_its_own_way(clock):
    now = clock.now
    soon, later, late = (send("mail").id for _ in range(3))
    token = claim().token

    process_batch(worker="w1", token=token, releases=[soon, Release(later, 60), Release(late, 60)])

    due = dict(Message.objects.values_list("id", "available_at"))
    assert due[soon] == now
    assert due[later] == due[late] == now + timedelta(seconds=60)
