"""Release by name: a message may pass a waiting or poisoned predecessor."""

from __future__ import annotations

import pytest

from deadletter import Status, operations, send
from deadletter.lifecycle import (
    Completion,
    Failure,
    claim,
    complete,
    fail,
    process_batch,
    release,
)
from deadletter.models import Message, PoisonRecord

from .streams import attempts, cascade, run_of_three


def by_release(token, failed, let_go, rest):
    fail(token, [Failure(failed)])
    release(token, let_go, by_name=True)
    release(token, rest)


def by_completion(token, failed, let_go, rest):
    process_batch(
        worker="w1",
        token=token,
        failures=[Failure(failed)],
        completions=[Completion(id, 0) for id in let_go],
        releases=rest,
    )


def by_complete_with_status_nothing(token, failed, let_go, rest):
    fail(token, [Failure(failed)])
    complete(token, let_go, status=Status(0))
    release(token, rest)


def by_operator(token, failed, let_go, rest):
    fail(token, [Failure(failed)])
    release(token, [*let_go, *rest])
    operations.release(let_go)


every_way = pytest.mark.parametrize(
    "way", [by_release, by_completion, by_complete_with_status_nothing, by_operator]
)
every_policy = pytest.mark.parametrize("stream_policy", ["strict", "release", "halt"])
strict_and_halt = pytest.mark.parametrize("stream_policy", ["strict", "halt"])


@every_way
@strict_and_halt
def test_the_released_pass_the_waiting_head_at_once(
    clock, counts, policy, way, stream_policy
):  # C10, C11
    policy(stream_policy=stream_policy)
    m1, m2, m3 = run_of_three()
    batch = claim()

    way(batch.token, m1, [m2, m3], [])

    assert attempts() == {"m1": 1, "m2": 0, "m3": 0}
    taken = claim()
    assert taken.ids == [m2, m3]
    assert {message.status for message in taken} == {Status.STORED}
    assert counts() == {"failed": 1, "active": 2}


@every_way
@strict_and_halt
def test_release_is_per_message(clock, counts, policy, way, stream_policy):  # C15
    policy(stream_policy=stream_policy)
    m1, m2, m3 = run_of_three()
    batch = claim()

    way(batch.token, m1, [m3], [m2])
    taken = claim()

    assert taken.ids == [m3]
    assert counts() == {"failed": 1, "blocked": 1, "active": 1}
    complete(taken.token, [m3])
    assert claim().ids == []
    clock.advance(60)
    assert claim().ids == [m1, m2]


@every_way
def test_a_release_by_name_is_written_down(clock, way):
    m1, m2, m3 = run_of_three()
    batch = claim()

    way(batch.token, m1, [m2], [m3])

    assert Message.objects.get(pk=m2).released_at == clock.now
    assert Message.objects.get(pk=m3).released_at is None


@every_policy
def test_the_released_pass_a_poisoned_head(clock, counts, policy, stream_policy):
    policy(stream_policy=stream_policy)
    _m1, _m2, m3 = run_of_three()
    cascade(claim(), permanent=True)

    operations.release(m3)

    taken = claim()
    assert taken.ids[-1] == m3
    assert (taken.ids == [m3]) == (stream_policy == "halt")
    assert counts()["dead"] == 1


def test_the_released_pass_a_halted_stream_also_when_parked(clock, counts, policy):
    policy(stream_policy="halt")
    _m1, m2, m3 = run_of_three()
    cascade(claim(), permanent=True)
    assert claim().ids == []
    assert counts() == {"blocked": 2, "dead": 1}

    verdicts = operations.release([m3])

    assert verdicts.done == [m3]
    assert claim().ids == [m3]
    assert Message.objects.get(pk=m2).available_at is None


@every_policy
def test_the_released_never_pass_a_leased_one(clock, counts, policy, stream_policy):  # C11
    policy(stream_policy=stream_policy)
    m1, m2, m3 = run_of_three()
    holder = claim(limit=1, lease=60)

    operations.release([m2, m3])

    assert claim().ids == []
    assert counts() == {"active": 1, "blocked": 2}
    complete(holder.token, [m1])
    assert claim().ids == [m2, m3]


def test_a_release_behind_a_lease_acts_when_the_holder_fails(clock, counts):
    m1, m2, m3 = run_of_three()
    holder = claim(limit=1, lease=600)
    operations.release([m3])
    claim()

    fail(holder.token, [Failure(m1)])

    assert claim().ids == [m3]
    assert Message.objects.get(pk=m2).available_at is None


def test_a_leased_message_is_released_by_its_worker_only(clock, counts):
    m1, *_ = run_of_three()
    claim()

    verdicts = operations.release([m1])

    assert verdicts.done == []
    assert "only its worker can release it" in verdicts.refused[m1]
    assert counts() == {"active": 3}


def test_a_message_without_a_stream_needs_no_release(clock):
    message = send("mail")

    verdicts = operations.release([message.id, 10**15])

    assert (verdicts.done, verdicts.missing) == ([], [10**15])
    assert "belongs to no stream" in verdicts.refused[message.id]


def test_a_retry_by_an_operator_takes_the_release_back(clock, counts):  # D15
    m1, m2, m3 = run_of_three()
    batch = claim()
    by_release(batch.token, m1, [m2], [m3])
    taken = claim()
    assert taken.ids == [m2]
    fail(taken.token, [Failure(m2, permanent=True)])

    operations.retry_poison(PoisonRecord.objects.get().pk)

    assert Message.objects.get(pk=m2).released_at is None
    assert claim().ids == []
