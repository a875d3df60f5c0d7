"""The choice of a run: every short stream, compared with the rule stated in another way."""

from __future__ import annotations

from itertools import product

import pytest

from deadletter.lifecycle.streams import RunChoice, StreamMember, choose_run

#: What a message can be: waiting, released by name, exhausted, expired; and both of the last pairs.
KINDS = [
    {},
    {"released": True},
    {"waiting": True},
    {"waiting": True, "released": True},
    {"exhausted": True},
    {"exhausted": True, "released": True},
    {"expired": True},
    {"exhausted": True, "expired": True},
]


def may_run(members: list[StreamMember], place: int, policy: str, halted_at: int | None) -> bool:
    """The rule for one message by itself, looking at everything in front of it."""
    member, before = members[place], members[:place]
    if member.waiting:
        return False
    if member.released:
        return True
    if halted_at is not None and halted_at < member.id:
        return False
    if policy == "release":
        return True
    waits = any(earlier.waiting for earlier in before)
    if policy == "strict":
        return not waits
    return not waits and not any(
        (earlier.exhausted or earlier.expired) and may_run(members, n, policy, halted_at)
        for n, earlier in enumerate(before)
    )


def by_rule(
    members: list[StreamMember], policy: str, halted_at: int | None, room: int
) -> RunChoice:
    free = [m for n, m in enumerate(members) if may_run(members, n, policy, halted_at)]
    run = [m.id for m in free if not m.exhausted and not m.expired][:room]
    # Nothing behind the last of a full run is looked at.
    seen = [m for m in free if len(run) < room or m.id <= run[-1]]
    return RunChoice(
        run=run,
        exhausted=[m.id for m in seen if m.exhausted],
        expired=[m.id for m in seen if m.expired and not m.exhausted],
    )


@pytest.mark.parametrize("policy", ["strict", "release", "halt"])
@pytest.mark.parametrize("halted_at", [None, 0, 2])
def test_a_run_is_what_the_rule_allows_for_every_stream_of_up_to_four(policy, halted_at):
    tried = 0
    for length, room in product(range(5), (1, 2, 9)):
        for kinds in product(KINDS, repeat=length):
            members = [StreamMember(id=n + 1, **kind) for n, kind in enumerate(kinds)]
            members = [m for m in members if m.id != halted_at]  # it is in poison
            expected = by_rule(members, policy, halted_at, room)

            choice = choose_run(members, policy=policy, halted_at=halted_at, room=room)

            found = (choice.run, choice.exhausted, choice.expired)
            assert found == (expected.run, expected.exhausted, expected.expired), members
            tried += 1
    assert tried == 3 * sum(len(KINDS) ** length for length in range(5))


@pytest.mark.parametrize("policy", ["strict", "halt"])
def test_a_stream_whose_head_waits_is_blocked(policy):
    members = [StreamMember(1, waiting=True), StreamMember(2), StreamMember(3)]

    choice = choose_run(members, policy=policy, halted_at=None, room=9)

    assert choice == RunChoice(blocked=True)


def test_no_room_is_not_a_blocked_stream():
    choice = choose_run([StreamMember(1), StreamMember(2)], policy="strict", halted_at=None, room=0)

    assert choice == RunChoice(blocked=False)
