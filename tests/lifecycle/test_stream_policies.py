"""The decision table: the effect of M1's failure on M2, M3 and later arrivals, by policy."""

from __future__ import annotations

import pytest

from deadletter import Outgoing, Status, operations, send, send_many
from deadletter.lifecycle import Failure, claim, complete, fail
from deadletter.models import Message, PoisonRecord

from .streams import attempts, cascade, fail_head, run_of_three

every_policy = pytest.mark.parametrize("stream_policy", ["strict", "release", "halt"])
strict_and_halt = pytest.mark.parametrize("stream_policy", ["strict", "halt"])
strict_and_release = pytest.mark.parametrize("stream_policy", ["strict", "release"])


@every_policy
def test_a_claim_takes_the_run_in_order(clock, counts, policy, stream_policy):
    policy(stream_policy=stream_policy)
    m1, m2, m3 = run_of_three()

    assert claim().ids == [m1, m2, m3]
    assert counts() == {"active": 3}


@every_policy
def test_the_rest_of_a_failed_run_is_given_back_untouched(
    clock, counts, policy, stream_policy
):  # D10
    policy(stream_policy=stream_policy)
    run_of_three()

    cascade(claim(), error="boom")

    rest = Message.objects.exclude(name="m1")
    assert attempts() == {"m1": 1, "m2": 0, "m3": 0}
    assert {(row.status, row.lease_token, row.released_at, row.error) for row in rest} == {
        (Status.STORED, None, None, None)
    }


@strict_and_halt
def test_followers_and_later_arrivals_wait_for_the_retry(
    clock, counts, policy, stream_policy
):  # C11, C13
    policy(stream_policy=stream_policy)
    m1, m2, m3 = run_of_three()
    cascade(claim())

    m4 = send("m4", stream="a").id
    nothing = claim()
    clock.advance(59)
    still_nothing = claim()
    clock.advance(1)

    assert nothing.ids == still_nothing.ids == []
    assert claim().ids == [m1, m2, m3, m4]
    assert counts() == {"active": 4}


@strict_and_halt
def test_what_waits_behind_a_failed_head_is_blocked_in_the_counts(
    clock, counts, policy, stream_policy
):
    policy(stream_policy=stream_policy)
    run_of_three()
    cascade(claim())

    claim()

    assert counts() == {"failed": 1, "blocked": 2}


def test_under_release_followers_and_later_arrivals_go_on_at_once(clock, counts, policy):
    policy(stream_policy="release")
    m1, m2, m3 = run_of_three()
    cascade(claim())

    m4 = send("m4", stream="a").id
    going_on = claim()
    complete(going_on.token, going_on.ids)

    assert going_on.ids == [m2, m3, m4]
    assert counts() == {"failed": 1}
    clock.advance(60)
    retried = claim()
    assert (retried.ids, retried.messages[0].attempt) == ([m1], 2)


def test_under_release_the_retry_waits_for_whoever_holds_the_stream(clock, counts, policy):
    policy(stream_policy="release")
    m1, m2, m3 = run_of_three()
    cascade(claim())
    holder = claim(lease=600)

    clock.advance(60)
    nothing = claim()

    assert (holder.ids, nothing.ids) == ([m2, m3], [])
    complete(holder.token, holder.ids)
    assert claim().ids == [m1]
    assert counts() == {"active": 1}


@strict_and_release
def test_when_the_head_is_poisoned_the_stream_goes_on(clock, counts, policy, stream_policy):  # D11
    policy(stream_policy=stream_policy)
    m1, m2, m3 = run_of_three()

    cascade(claim(), permanent=True)

    m4 = send("m4", stream="a").id
    assert PoisonRecord.objects.get().message_id == m1
    assert claim().ids == [m2, m3, m4]
    assert counts() == {"active": 3, "dead": 1}


def test_parked_followers_are_woken_when_the_head_is_poisoned(clock, counts, policy):  # A15
    policy(max_attempts=2)
    _m1, m2, m3 = run_of_three()
    fail_head()
    assert claim().ids == []
    assert counts() == {"failed": 1, "blocked": 2}

    clock.advance(60)
    fail_head()

    assert claim().ids == [m2, m3]
    assert counts() == {"active": 2, "dead": 1}


def test_under_release_a_parked_follower_is_woken_when_the_one_before_it_is_poisoned(
    clock, counts, policy
):
    policy(stream_policy="release")
    _m1, m2, m3 = run_of_three()
    fail_head()
    second = claim(limit=1)
    assert claim().ids == []
    assert counts() == {"failed": 1, "active": 1, "blocked": 1}

    fail(second.token, [Failure(m2, permanent=True)])

    assert claim().ids == [m3]
    assert counts() == {"failed": 1, "active": 1, "dead": 1}


def test_under_halt_the_stream_stands_still_until_an_operator_decides(clock, counts, policy):
    policy(stream_policy="halt")
    run_of_three()

    cascade(claim(), permanent=True)

    send("m4", stream="a")
    clock.advance(100_000)
    assert claim().ids == []
    assert claim().ids == []
    assert counts() == {"blocked": 3, "dead": 1}
    assert PoisonRecord.objects.get().halts is True


def test_under_halt_removing_the_poison_lets_the_stream_go_on(clock, counts, policy):
    policy(stream_policy="halt")
    _m1, m2, m3 = run_of_three()
    cascade(claim(), permanent=True)
    claim()

    operations.remove_poison(PoisonRecord.objects.get().pk)

    assert claim().ids == [m2, m3]
    assert counts() == {"active": 2}


def test_under_halt_a_retried_head_runs_first_and_the_others_behind_it(clock, counts, policy):
    policy(stream_policy="halt")
    m1, m2, m3 = run_of_three()
    cascade(claim(), permanent=True)
    claim()

    operations.retry_poison(PoisonRecord.objects.get().pk)

    batch = claim()
    assert batch.ids == [m1, m2, m3]
    assert [message.attempt for message in batch] == [1, 1, 1]
    assert counts() == {"active": 3}


def test_under_halt_two_deaths_are_two_decisions(clock, counts, policy):
    policy(stream_policy="halt")
    m1, m2, m3 = run_of_three()
    cascade(claim(), permanent=True)
    operations.release(m2)
    cascade(claim(), permanent=True)
    assert counts() == {"blocked": 1, "dead": 2}

    operations.remove_poison(PoisonRecord.objects.get(message_id=m1).pk)
    still = claim().ids
    operations.remove_poison(PoisonRecord.objects.get(message_id=m2).pk)

    assert still == []
    assert claim().ids == [m3]


def test_under_halt_a_head_that_exhausts_its_leases_stops_the_stream_too(clock, counts, policy):
    policy(stream_policy="halt", max_attempts=1)
    run_of_three()
    claim(limit=1, lease=60)
    clock.advance(60)

    assert claim().ids == []
    assert claim().ids == []
    assert counts() == {"blocked": 2, "dead": 1}


@every_policy
def test_bystanders_keep_their_attempts_while_a_neighbour_fails_ten_times(
    clock, counts, policy, stream_policy
):
    policy(stream_policy=stream_policy, max_attempts=11)
    m1, *_ = run_of_three()

    for _ in range(10):
        batch = claim()
        head = batch.ids.index(m1)
        assert head == 0
        cascade(batch)
        clock.advance(3600)

    assert attempts() == {"m1": 10, "m2": 0, "m3": 0}
    assert {row.status for row in Message.objects.exclude(pk=m1)} == {Status.STORED}


@every_policy
@pytest.mark.parametrize("permanent", [False, True])
def test_two_streams_never_block_each_other(clock, policy, stream_policy, permanent):  # C14
    policy(stream_policy=stream_policy)
    send("m1", stream="a")
    cascade(claim(), permanent=permanent)
    send("m2", stream="a")
    others = list(run_of_three("b"))

    taken = claim()

    assert [message.id for message in taken if message.stream == "b"] == others


@every_policy
def test_a_stream_that_is_held_does_not_block_another(clock, counts, policy, stream_policy):  # C14
    policy(stream_policy=stream_policy)
    run_of_three("a")
    claim(limit=1)
    others = list(run_of_three("b"))

    assert claim().ids == others
    assert counts() == {"active": 4, "blocked": 2}


@every_policy
def test_messages_without_a_stream_neither_block_nor_are_blocked(
    clock, counts, policy, stream_policy
):  # C14
    policy(stream_policy=stream_policy)
    first, second = send("plain").id, send("plain").id
    run_of_three()
    batch = claim(limit=1)
    cascade(batch)

    taken = claim()

    assert first not in taken.ids
    assert second in taken.ids
    assert len(taken.ids) == 4


@every_policy
def test_the_same_stream_name_in_two_queues_is_two_streams(clock, policy, stream_policy):
    policy(stream_policy=stream_policy)
    policy("other", stream_policy=stream_policy)
    m1 = send("mail", stream="a").id
    elsewhere = send("mail", stream="a", queue="other").id
    holder = claim(queues=["default"])

    assert holder.ids == [m1]
    assert claim().ids == [elsewhere]


FOLLOWERS = 1_000


@pytest.mark.slow
@strict_and_release
def test_behind_a_head_that_fails_for_ever_a_thousand_followers_go_on_or_wait_unharmed(
    clock, policy, stream_policy
):
    policy(stream_policy=stream_policy, max_attempts=None)
    head, *followers = send_many([Outgoing("mail", stream="a")] * (1 + FOLLOWERS))
    handled: list[int] = []

    for _ in range(60):
        batch = claim(limit=100)
        if head in batch.ids:
            cascade(batch)
        else:
            complete(batch.token, batch.ids)
            handled += batch.ids
        clock.advance(1)

    if stream_policy == "release":
        # Once each, and in order; the head comes back in between.
        assert handled == followers
        assert list(Message.objects.values_list("pk", flat=True)) == [head]
    else:
        assert handled == []
        assert set(Message.objects.exclude(pk=head).values_list("attempts", flat=True)) == {0}
        assert Message.objects.count() == 1 + FOLLOWERS
    assert PoisonRecord.objects.count() == 0
