"""The guard of every settle: id, token, lease not over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import LeaseLost, Status, send
from deadletter.lifecycle import (
    Completed,
    Failure,
    Released,
    abandon,
    claim,
    complete,
    fail,
    refund,
    release,
    renew,
)
from deadletter.models import Message, PoisonRecord

VERBS = {
    "complete": lambda token, n: complete(token, [n]),
    "complete by name": lambda token, n: complete(token, [n], status=0),
    "fail": lambda token, n: fail(token, [Failure(n, error="late")]),
    "permanent": lambda token, n: fail(token, [Failure(n, permanent=True)]),
    "release": lambda token, n: release(token, [n]),
    "release by name": lambda token, n: release(token, [n], by_name=True),
    "renew": lambda token, n: renew(token, [n], lease=60),
    "abandon": lambda token, n: abandon(token, n),
    "abandon uncounted": lambda token, n: abandon(token, n, count=False),
    "force poison": lambda token, n: abandon(token, n, force_poison=True),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
with_and_without_stream = pytest.mark.parametrize("stream", [None, "a"])


def rows() -> list[dict]:
    return list(Message.objects.order_by("id").values())


@every_verb
@with_and_without_stream
def test_a_wrong_token_changes_nothing(clock, counts, verb, stream):  # A23
    message = send("mail", stream=stream)
    claim()
    before = rows()

    with pytest.raises(LeaseLost) as lost:
        verb("0123456789abcdef", message.id)

    assert lost.value.ids == [message.id]
    assert rows() == before
    assert counts() == {"active": 1}


@every_verb
@with_and_without_stream
def test_a_lease_that_ran_out_settles_nothing_even_if_nobody_took_it(
    clock, counts, verb, stream
):  # A31
    message = send("mail", stream=stream)
    batch = claim(lease=60)
    clock.advance(60)
    before = rows()

    with pytest.raises(LeaseLost):
        verb(batch.token, message.id)

    assert rows() == before
    assert counts() == {"pending": 1}
    assert claim().ids == [message.id]


@every_verb
@with_and_without_stream
def test_a_lease_somebody_else_took_over_settles_nothing(clock, counts, verb, stream):
    message = send("mail", stream=stream)
    slow = claim(worker="slow", lease=60)
    clock.advance(61)
    quick = claim(worker="quick", lease=60)
    before = rows()

    with pytest.raises(LeaseLost):
        verb(slow.token, message.id)

    assert rows() == before
    assert counts() == {"active": 1}
    assert quick.messages[0].attempt == 2
    complete(quick.token, quick.ids)
    assert counts() == {}


@every_verb
def test_a_token_is_used_up_by_settling(clock, counts, verb):  # A23, B20
    message = send("mail")
    batch = claim()
    release(batch.token, [message.id])
    before = rows()

    with pytest.raises(LeaseLost):
        verb(batch.token, message.id)

    assert rows() == before
    assert counts() == {"pending": 1}


@every_verb
def test_a_message_that_is_gone_is_reported_as_lost(clock, counts, verb):  # C23
    message = send("mail")
    batch = claim()
    complete(batch.token, [message.id])

    with pytest.raises(LeaseLost) as lost:
        verb(batch.token, message.id)

    assert str(message.id) in str(lost.value)
    assert counts() == {}


@every_verb
def test_a_message_nobody_claimed_cannot_be_settled(clock, counts, verb):  # B20
    message = send("mail")

    with pytest.raises(LeaseLost):
        verb("", message.id)

    assert counts() == {"pending": 1}
    assert Message.objects.get().attempts == 0


@pytest.mark.parametrize("token", ["", "\x00", "' OR 1=1 --", "x" * 1000, "\ud800", None])
def test_a_token_nobody_was_given_matches_nothing(clock, counts, token):
    message = send("mail")
    claim()

    with pytest.raises(LeaseLost):
        complete(token, [message.id])

    assert counts() == {"active": 1}


def test_the_rest_of_a_call_is_applied_when_one_lease_is_lost(clock, counts):
    ours, theirs, unknown = send("mail"), send("mail"), 10**15
    batch = claim(limit=1)
    claim(limit=1)

    with pytest.raises(LeaseLost) as lost:
        complete(batch.token, [ours.id, theirs.id, unknown])

    assert lost.value.ids == [theirs.id, unknown]
    assert counts() == {"active": 1}
    assert Message.objects.get().id == theirs.id


def test_the_rest_of_the_failures_is_applied_when_one_lease_is_lost(clock, counts):
    ours, theirs = send("mail"), send("mail")
    batch = claim(limit=1)
    claim(limit=1)

    with pytest.raises(LeaseLost) as lost:
        fail(batch.token, [Failure(ours.id, error="boom"), Failure(theirs.id, error="boom")])

    assert lost.value.ids == [theirs.id]
    assert counts() == {"active": 1, "failed": 1}
    assert Message.objects.get(pk=theirs.id).error is None


def test_settling_nothing_is_nothing(clock, counts):
    send("mail")
    batch = claim()

    assert complete(batch.token, []) == {}
    assert fail(batch.token, []) == {}
    assert release(batch.token, []) == {}
    renew(batch.token, [])
    assert counts() == {"active": 1}


@with_and_without_stream
def test_completing_deletes_the_row_and_says_so(clock, counts, stream):  # C2
    message, neighbour = send("mail", stream=stream), send("mail")
    batch = claim(limit=10)

    outcome = complete(batch.token, [message.id], status=Status.PUBLISHED)

    assert outcome == {message.id: Completed()}
    assert list(Message.objects.values_list("id", flat=True)) == [neighbour.id]
    assert counts() == {"active": 1}


@with_and_without_stream
def test_a_release_refunds_the_attempt_and_frees_the_message(clock, counts, stream):  # D3, C10
    message = send("mail", stream=stream)
    batch = claim(worker="w1")
    clock.advance(1)

    outcome = release(batch.token, [message.id])

    row = Message.objects.get()
    assert outcome == {message.id: Released()}
    assert (row.attempts, row.fence, row.status) == (0, 1, Status.STORED)
    assert (row.lease_token, row.worker, row.released_at) == (None, None, None)
    assert row.available_at == clock.now
    assert counts() == {"pending": 1}


def test_a_release_never_refunds_below_zero(clock):  # A27, rule 1
    message = send("mail")
    batch = claim()
    Message.objects.update(attempts=0)

    release(batch.token, [message.id])

    assert Message.objects.get().attempts == 0


def test_a_release_refunds_one_attempt_only(clock):
    message = send("mail")
    first = claim()
    fail(first.token, [Failure(message.id, delay=0)])
    second = claim()

    release(second.token, [message.id])

    row = Message.objects.get()
    assert row.attempts == 1
    assert row.status == Status.STORED | Status.FAILED


def test_a_message_released_for_ever_is_never_poison(clock, counts, policy):  # D3
    policy(max_attempts=0)
    message = send("mail")

    for _ in range(20):
        batch = claim()
        release(batch.token, [message.id])

    assert counts() == {"pending": 1}
    assert PoisonRecord.objects.count() == 0


def test_renewing_extends_the_lease_from_now(clock, counts):  # A32
    message = send("mail")
    batch = claim(lease=60)
    clock.advance(50)

    renew(batch.token, [message.id], lease=60)

    assert Message.objects.get().available_at == clock.now + timedelta(seconds=60)
    clock.advance(59)
    assert claim().ids == []
    complete(batch.token, [message.id])
    assert counts() == {}


def test_renewing_without_a_duration_takes_the_queues(clock, policy):
    policy(lease_timeout=10)
    message = send("mail")
    batch = claim(lease=60)

    renew(batch.token, [message.id])

    assert Message.objects.get().available_at == clock.now + timedelta(seconds=10)


def test_renewing_counts_nothing(clock):
    message = send("mail")
    batch = claim()

    renew(batch.token, [message.id], lease=60)

    row = Message.objects.get()
    assert (row.attempts, row.fence, row.lease_token) == (1, 1, batch.token)


def test_the_others_are_renewed_when_one_lease_is_lost(clock):
    ours, theirs = send("mail"), send("mail")
    batch = claim(limit=1, lease=60)

    with pytest.raises(LeaseLost) as lost:
        renew(batch.token, [ours.id, theirs.id], lease=600)

    assert lost.value.ids == [theirs.id]
    assert Message.objects.get(pk=ours.id).available_at == clock.now + timedelta(seconds=600)


@with_and_without_stream
def test_a_refund_takes_the_charge_off_a_lease_that_ran_out_unused(clock, counts, stream):
    message = send("mail", stream=stream)
    batch = claim(lease=60)
    clock.advance(60)

    assert refund(batch.token, [message.id]) == [message.id]

    row = Message.objects.get()
    assert (row.attempts, row.fence, row.lease_token) == (0, 1, None)
    assert counts() == {"pending": 1}


@with_and_without_stream
def test_a_refund_is_nobodys_while_a_lease_lives_or_somebody_else_has_it(clock, stream):
    message = send("mail", stream=stream)
    slow = claim(lease=60)
    live = refund(slow.token, [message.id])
    clock.advance(60)
    claim(worker="quick", lease=60)
    before = rows()

    assert live == []
    assert refund(slow.token, [message.id]) == []
    assert rows() == before
