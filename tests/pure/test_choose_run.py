from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.lifecycle.streams import StreamMember, choose_run

POLICIES = ("strict", "release", "halt")
M1, M2, M3 = StreamMember(1), StreamMember(2), StreamMember(3)
M1_WAITS = StreamMember(1, waiting=True)
M3_RELEASED = StreamMember(3, released=True)


@st.composite
def heads(draw: st.DrawFn) -> list[StreamMember]:
    ids = sorted(draw(st.sets(st.integers(1, 30), max_size=12)))
    flag = st.booleans()
    return [StreamMember(id, draw(flag), draw(flag), draw(flag), draw(flag)) for id in ids]


def choose(members, policy="strict", halted_at=None, room=10):
    return choose_run(members, policy=policy, halted_at=halted_at, room=room)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_undisturbed_stream_is_taken_in_order(policy: str):
    choice = choose([M1, M2, M3], policy)

    assert (choice.run, choice.blocked) == ([1, 2, 3], False)


def test_a_run_ends_where_the_room_does():
    assert choose([M1, M2, M3], room=2).run == [1, 2]
    assert choose([M1, M2, M3], room=0).run == []


@pytest.mark.parametrize("policy", ["strict", "halt"])
def test_a_waiting_head_blocks(policy: str):
    choice = choose([M1_WAITS, M2, M3], policy)

    assert (choice.run, choice.blocked) == ([], True)


def test_a_waiting_head_is_passed_under_release():
    choice = choose([M1_WAITS, M2, M3], "release")

    assert (choice.run, choice.blocked) == ([2, 3], False)


@pytest.mark.parametrize("policy", ["strict", "halt"])
def test_only_the_one_released_by_name_passes_a_waiting_head(policy: str):  # C15
    choice = choose([M1_WAITS, M2, M3_RELEASED], policy)

    assert choice.run == [3]


def test_what_stands_before_the_halt_goes_on():
    assert choose([M1, M2, M3], "halt", halted_at=2).run == [1, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_only_the_one_released_by_name_passes_the_halt(policy: str):
    choice = choose([M2, M3_RELEASED], policy, halted_at=1)

    assert choice.run == [3]


@pytest.mark.parametrize(("policy", "run"), [("strict", [2]), ("release", [2]), ("halt", [])])
def test_a_head_without_attempts_left_dies_and_stops_only_a_halting_stream(policy, run):
    choice = choose([StreamMember(1, exhausted=True), M2], policy)

    assert (choice.exhausted, choice.run) == ([1], run)


@given(members=heads(), policy=st.sampled_from(POLICIES),
       halted=st.none() | st.integers(1, 30), room=st.integers(0, 12))  # fmt: skip
def test_whatever_the_stream_a_run_is_in_order_and_legal(members, policy, halted, room):
    choice = choose(members, policy, halted, room)

    by_id = {member.id: member for member in members}
    assert choice.run == sorted(set(choice.run))
    assert len(choice.run) <= room
    for id in choice.run:
        member = by_id[id]
        assert not member.waiting
        assert not member.exhausted
        assert not member.expired
        if not member.released and policy != "release":
            assert not any(other.waiting for other in members if other.id < id)
        if not member.released:
            assert halted is None or id <= halted


@given(members=heads(), policy=st.sampled_from(POLICIES), room=st.integers(1, 12))
def test_a_waiting_message_never_dies_and_never_runs(members, policy, room):
    choice = choose(members, policy, None, room)

    touched = {*choice.run, *choice.exhausted, *choice.expired}
    assert touched.isdisjoint(member.id for member in members if member.waiting)
