"""What people do with failure groups: the rules of each act, its event and its audit entry."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import operations
from deadletter.models import AuditEntry, FailureGroup, GroupEvent

from .groups import group


def test_a_group_is_acknowledged_once(clock):
    group("a", clock)

    first = operations.acknowledge_group("a", by="ann", why="looking")
    second = operations.acknowledge_group(["a", "gone"], by="bob")

    assert (first.done, first.missing, first.refused) == (["a"], [], {})
    assert (second.done, second.missing) == ([], ["gone"])
    assert second.refused == {"a": "group a is acknowledged already"}
    row = FailureGroup.objects.get()
    assert (row.state, row.state_at, row.state_by) == ("acknowledged", clock.now, "ann")
    event = GroupEvent.objects.get()
    assert (event.kind, event.by, event.text, event.at) == ("state", "ann", "looking", clock.now)
    assert event.detail == {"state": "acknowledged", "was": "new"}
    done, refused = AuditEntry.objects.order_by("id")
    assert (done.act, done.by, done.why, done.done) == ("ack_group", "ann", "looking", 1)
    assert done.selection == {"fingerprints": ["a"]}
    assert (refused.done, refused.missing, refused.refused) == (0, 1, 1)


def test_a_group_is_muted_for_a_time_or_a_growth(clock):
    group("a", clock, state="acknowledged", failures=40)

    operations.mute_group("a", duration="2h", grows_by=100, by="ann", why="known")

    row = FailureGroup.objects.get()
    end = clock.now + timedelta(hours=2)
    assert (row.state, row.muted_until, row.muted_until_failures) == ("muted", end, 140)
    assert GroupEvent.objects.get().detail == {
        "state": "muted", "was": "acknowledged", "until": end.isoformat(), "failures": 140,
        "grows_by": 100,
    }  # fmt: skip
    assert AuditEntry.objects.get().detail == {"until": end.isoformat(), "grows_by": 100}


@pytest.mark.parametrize(
    ("act", "state"), [("acknowledge", "acknowledged"), ("reopen", "new"), ("resolve", "resolved")]
)
def test_other_states_end_a_mute(clock, act, state):
    group("a", clock)
    operations.mute_group("a", grows_by=1)

    getattr(operations, f"{act}_group")("a", by="ann")

    row = FailureGroup.objects.get()
    assert (row.state, row.muted_until, row.muted_until_failures) == (state, None, None)


def test_notes_are_written_and_answered(clock):
    group("a", clock)

    first = operations.write_note("a", "the warehouse API changed", by="ann")
    second = operations.write_note("a", "fixed upstream", answers=first.note_id, by="bob")

    notes = GroupEvent.objects.order_by("id")
    assert [(n.pk, n.by, n.text, n.answers_id) for n in notes] == [
        (first.note_id, "ann", "the warehouse API changed", None),
        (second.note_id, "bob", "fixed upstream", first.note_id),
    ]


def test_merged_groups_move_along_and_split_again(clock):
    for name in "abcd":
        group(name, clock)

    operations.merge_groups("b", ["c"], by="ann")
    operations.merge_groups("a", ["b"], by="ann")
    refused = operations.merge_groups("d", ["c"])

    assert refused.refused == {"c": "group c was merged into a; split it off first"}
    merged = dict(FailureGroup.objects.values_list("fingerprint", "merged_into"))
    assert merged == {"a": "", "b": "a", "c": "a", "d": ""}
    assert operations.split_group("c", by="bob").done == ["c"]
    row = FailureGroup.objects.get(fingerprint="c")
    assert (row.merged_into, row.state, row.state_by) == ("", "new", "bob")
