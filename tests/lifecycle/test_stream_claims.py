"""One holder at a time, order by id, parking and waking, and the cap of a busy stream."""

from __future__ import annotations

import pytest

from deadletter import Outgoing, operations, send, send_many
from deadletter.lifecycle import Failure, claim, complete, fail, release, streams, sweep
from deadletter.models import Message, PoisonRecord, Queue

from .streams import fail_head, run_of_three


@pytest.mark.parametrize("stream_policy", ["strict", "release", "halt"])
def test_a_stream_has_one_holder(clock, counts, policy, stream_policy):  # C22
    policy(stream_policy=stream_policy)
    m1, _m2, _m3 = run_of_three()
    holder = claim(limit=1, worker="w1")

    assert holder.ids == [m1]
    assert claim(worker="w2").ids == []
    assert counts() == {"active": 1, "blocked": 2}


def test_later_arrivals_wait_for_the_holder(clock, counts):
    first = send("mail", stream="a")
    holder = claim()
    second = send("mail", stream="a")

    assert claim().ids == []
    complete(holder.token, [first.id])
    assert claim().ids == [second.id]


def test_an_earlier_message_that_was_committed_later_waits_for_the_holder_too(clock):  # trap 1
    early, late = send("mail", stream="a"), send("mail", stream="a")
    Message.objects.filter(pk=early.id).update(available_at=clock.now.replace(year=2100))
    Message.objects.filter(pk=late.id).update(lease_token="abc")
    Message.objects.filter(pk=late.id).update(available_at=clock.now.replace(year=2100))
    Message.objects.filter(pk=early.id).update(available_at=clock.now)

    assert claim().ids == []


def test_the_dead_holders_run_is_handed_out_again_from_its_head(clock, counts):  # C22, C24
    ids = list(run_of_three())
    claim(worker="dead", lease=60)
    clock.advance(60)

    batch = claim(worker="alive")

    assert batch.ids == ids
    assert {message.attempt for message in batch} == {2}
    assert counts() == {"active": 3}


def test_part_of_a_run_may_be_finished_and_the_rest_goes_on_in_order(clock, counts):
    m1, m2, m3 = run_of_three()
    first = claim()
    complete(first.token, [m1])
    release(first.token, [m2, m3])

    assert claim().ids == [m2, m3]
    assert counts() == {"active": 2}


def test_inside_a_stream_order_wins_over_priority(clock):
    last, first = send("mail", stream="a", priority=9), send("mail", stream="a", priority=0)

    assert claim().ids == [last.id, first.id]


def test_inside_a_stream_order_wins_over_time(clock):  # trap 7
    delayed = send("mail", stream="a", delay=60)
    due = send("mail", stream="a")

    nothing = claim()
    clock.advance(60)

    assert nothing.ids == []
    assert claim().ids == [delayed.id, due.id]


def test_messages_of_one_stream_are_adjacent(clock):
    for n in range(9):
        send("mail", n, stream="abc"[n % 3])

    streams = [message.stream for message in claim()]

    assert sorted(streams) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert len([n for n in range(8) if streams[n] != streams[n + 1]]) == 2


def test_runs_may_run_side_by_side(clock):  # C14, C25
    for stream in (None, "a", "a", None, "b"):
        send("mail", stream=stream)

    runs = [[message.stream for message in run] for run in claim().runs()]

    assert sorted(runs, key=str) == sorted([[None], [None], ["a", "a"], ["b"]], key=str)


def test_a_busy_stream_gives_25_messages_at_a_time(clock, counts):  # C24
    ids = send_many([Outgoing("mail", n, stream="hot") for n in range(60)])

    first = claim(limit=300)

    assert first.ids == ids[:25]
    assert counts() == {"active": 25, "blocked": 35}
    complete(first.token, first.ids)
    assert claim(limit=300).ids == ids[25:50]


def test_a_busy_stream_cannot_starve_the_others(clock, settings):  # C24
    settings.DEADLETTER = {"STREAM_CAP": 2}
    send_many([Outgoing("mail", stream="hot") for _ in range(50)])
    cold = send("mail", stream="cold")
    plain = send("mail")

    batch = claim(limit=6)

    assert [message.stream for message in batch].count("hot") == 2
    assert {cold.id, plain.id} <= set(batch.ids)


def test_under_release_more_waiting_messages_than_the_cap_hide_nothing(
    clock, counts, policy, settings
):
    settings.DEADLETTER = {"STREAM_CAP": 2}
    policy(stream_policy="release")
    for _ in range(5):
        waiting = send("mail", stream="a")
        batch = claim()
        fail(batch.token, [Failure(waiting.id, delay=600)])
    due = send("mail", stream="a")

    assert claim().ids == [due.id]
    assert counts() == {"failed": 5, "active": 1}


def test_many_blocked_streams_in_front_do_not_hide_what_is_due(clock, counts):
    for n in range(30):
        send("mail", stream=f"s{n}")
    heads = claim(limit=30)
    fail(heads.token, [Failure(id) for id in heads.ids])
    for n in range(30):
        send("mail", stream=f"s{n}")
    due = send("mail").id

    assert claim(limit=5).ids == [due]
    assert counts()["failed"] == 30


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_run_is_cut_where_the_batch_is_full(clock, counts, limit):
    ids = list(run_of_three())

    batch = claim(limit=limit)

    assert batch.ids == ids[:limit]
    complete(batch.token, batch.ids)
    assert claim().ids == ids[limit:]


def test_several_streams_share_a_batch_that_is_too_small(clock):
    a, b, c = (send("mail", stream=stream).id for stream in "abc")

    first = claim(limit=2)

    assert first.ids == [a, b]
    assert claim(limit=2).ids == [c]


def wake_by_completing(token, id):
    complete(token, [id])


def wake_by_poisoning(token, id):
    fail(token, [Failure(id, permanent=True)])


def wake_by_operators_poison(token, id):
    fail(token, [Failure(id)])
    operations.poison([id], why="no longer wanted")


def wake_by_removing(token, id):
    fail(token, [Failure(id)])
    operations.remove([id])


@pytest.mark.parametrize(
    "wake", [wake_by_completing, wake_by_poisoning, wake_by_operators_poison, wake_by_removing]
)
def test_whoever_takes_the_head_out_wakes_the_next(clock, counts, wake):
    m1, m2, m3 = run_of_three()
    holder = claim(limit=1)
    assert claim().ids == []
    assert counts() == {"active": 1, "blocked": 2}

    wake(holder.token, m1)

    due = Message.objects.filter(available_at__lte=clock.now)
    assert list(due.values_list("id", flat=True)) == [m2]
    assert claim().ids == [m2, m3]
    assert sweep().repaired == 0


def test_a_released_head_is_due_itself_and_wakes_nobody(clock, counts):
    m1, m2, m3 = run_of_three()
    holder = claim(limit=1)
    claim()

    release(holder.token, [m1])

    assert counts() == {"pending": 1, "blocked": 2}
    assert claim().ids == [m1, m2, m3]


def test_a_message_taken_out_of_the_middle_disturbs_nobody(clock, counts):
    _m1, m2, _m3 = run_of_three()
    claim(limit=1, lease=600)
    claim()

    operations.poison([m2], why="wrong")

    assert counts() == {"active": 1, "blocked": 1, "dead": 1}
    assert claim().ids == []
    assert PoisonRecord.objects.get().message_id == m2


def test_a_policy_edit_acts_on_a_stream_that_waits(clock, counts, policy):  # B22
    m1, m2, m3 = run_of_three()
    batch = claim()
    fail(batch.token, [Failure(m1)])
    release(batch.token, [m2, m3])

    policy(stream_policy="release")

    assert claim().ids == [m2, m3]


def test_a_claim_that_only_parked_says_that_there_may_be_more(clock, monkeypatch):
    """A long blocked stream in front of the rest: nobody may take an empty batch for the end."""
    monkeypatch.setattr("deadletter.lifecycle.candidates.ROUNDS", 2)
    monkeypatch.setattr(streams, "REACH", 3)
    send("head", stream="s")
    fail_head(delay=3600)
    send_many([Outgoing("blocked", stream="s") for _ in range(30)])
    free = send("free").id

    batches = [claim(limit=1)]
    while batches[-1].more:
        batches.append(claim(limit=1))

    assert len(batches) > 2
    assert [batch.ids for batch in batches if batch.ids] == [[free]]
    assert batches[-1].ids == [free]
    assert not claim(limit=1).more


@pytest.mark.parametrize("name", ["null", "NULL", "Null"])
def test_a_name_that_says_null_is_a_name(db, name):
    Queue.objects.create(name=name)
    ids = [send("m", queue=name, stream=name).id for _ in range(2)]

    batch = claim([name])
    complete(batch.token, batch.ids[:1])
    release(batch.token, batch.ids[1:])

    assert batch.ids == ids
    assert claim([name]).ids == ids[1:]
