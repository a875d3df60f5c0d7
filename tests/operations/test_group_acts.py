"""What people do with failure groups: the rules of each act, its event and its audit entry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from deadletter import operations
from deadletter.lifecycle.refusals import Refusal, RefusalReason
from deadletter.models import AuditEntry, FailureGroup, GroupEvent
from deadletter.operations import failure_groups, group_acts

from .groups import group

#: Text that a person may paste: NUL, a lone surrogate, a direction override, an escape sequence.
HOSTILE = "a\x00b\ud800c\u202ed\x1b[2J"


def state_of(fingerprint: str = "a") -> tuple[str, str]:
    row = FailureGroup.objects.get(fingerprint=fingerprint)
    return row.state, row.state_by


def test_a_group_is_acknowledged_once(clock):
    group("a", clock)
    group("other", clock)

    first = operations.acknowledge_group("a", by="ann", why="looking")
    second = operations.acknowledge_group(["a", "gone"], by="bob")

    assert (first.done, first.missing, first.refused) == (["a"], [], {})
    assert (second.done, second.missing) == ([], ["gone"])
    assert second.refused == {"a": "group a is acknowledged already"}
    row = FailureGroup.objects.get(fingerprint="a")
    assert (row.state, row.state_at, row.state_by) == ("acknowledged", clock.now, "ann")
    event = GroupEvent.objects.get()
    assert (event.kind, event.by, event.text, event.at) == ("state", "ann", "looking", clock.now)
    assert event.detail == {"state": "acknowledged", "was": "new"}
    done, refused = AuditEntry.objects.order_by("id")
    assert (first.entry_id, second.entry_id) == (done.pk, refused.pk)
    assert (done.act, done.by, done.why, done.done) == ("ack_group", "ann", "looking", 1)
    assert done.selection == {"fingerprints": ["a"]}
    assert (refused.done, refused.missing, refused.refused) == (0, 1, 1)
    assert state_of("other") == ("new", "")


#: The state after each act, by the state before it; None: refused.
TRANSITIONS = [
    ("new", "acknowledged", "muted", "resolved", None),
    ("regressed", "acknowledged", "muted", "resolved", None),
    ("acknowledged", None, "muted", "resolved", "new"),
    ("muted", "acknowledged", "muted", "resolved", "new"),
    ("resolved", None, None, None, "new"),
]


@pytest.mark.parametrize(
    ("before", "verb", "after"),
    [
        (row[0], verb, after)
        for row in TRANSITIONS
        for verb, after in zip(("acknowledge", "mute", "resolve", "reopen"), row[1:], strict=True)
    ],
)
def test_each_act_leads_to_one_state_or_is_refused_with_a_sentence(clock, before, verb, after):
    group("a", clock, state=before, state_by="eve")

    result = getattr(operations, f"{verb}_group")("a", by="ann")

    assert state_of() == ((before, "eve") if after is None else (after, "ann"))
    assert result.done == ([] if after is None else ["a"])
    assert GroupEvent.objects.count() == (0 if after is None else 1)
    for refusal in result.refused.values():
        assert isinstance(refusal, Refusal)
        assert refusal.startswith("group a is ")
        assert before in refusal


def test_an_act_that_finds_no_group_leaves_no_entry(clock):
    result = operations.acknowledge_group(["gone", "away"])

    assert (result.missing, result.entry_id) == (["gone", "away"], 0)
    assert not AuditEntry.objects.exists()


def test_a_group_is_muted_for_a_time_or_a_growth(clock):
    group("a", clock, state="acknowledged", failures=40)
    group("b", clock, merged_into="a", failures=2)

    operations.mute_group("a", duration="2h", grows_by=100, by="ann", why="known")

    row = FailureGroup.objects.get(fingerprint="a")
    end = clock.now + timedelta(hours=2)
    assert (row.state, row.muted_until, row.muted_until_failures) == ("muted", end, 142)
    assert GroupEvent.objects.get().detail == {
        "state": "muted", "was": "acknowledged", "until": end.isoformat(), "failures": 142,
        "grows_by": 100,
    }  # fmt: skip
    assert AuditEntry.objects.get().detail == {"until": end.isoformat(), "grows_by": 100}


def test_a_mute_without_an_end_lasts_until_somebody_ends_it(clock):
    group("a", clock)

    operations.mute_group("a")

    row = FailureGroup.objects.get()
    assert (row.muted_until, row.muted_until_failures) == (None, None)
    assert GroupEvent.objects.get().detail == {"state": "muted", "was": "new"}


@pytest.mark.parametrize(
    ("before", "was"), [("regressed", "new"), ("acknowledged", "acknowledged")]
)
def test_a_second_mute_replaces_the_end_and_remembers_the_state_before_the_first(
    clock, before, was
):
    group("a", clock, state=before)
    operations.mute_group("a", grows_by=5)

    operations.mute_group("a", until=clock.now + timedelta(days=1))

    row = FailureGroup.objects.get()
    assert (row.muted_until, row.muted_until_failures) == (clock.now + timedelta(days=1), None)
    assert [event.detail["was"] for event in GroupEvent.objects.all()] == [was, was]


@pytest.mark.parametrize(
    "given",
    [
        {"until": datetime(2020, 1, 1, tzinfo=UTC)},
        {"until": datetime(2030, 1, 1)},
        {"duration": 0},
        {"duration": "367d"},
        {"duration": "1h", "until": datetime(2030, 1, 1, tzinfo=UTC)},
        {"grows_by": 0},
        {"grows_by": True},
        {"grows_by": "7"},
        {"grows_by": 1_000_000_001},
    ],
)
def test_an_end_of_a_mute_that_makes_no_sense_is_refused_at_the_door(clock, given):
    group("a", clock)

    with pytest.raises(ValueError, match=r"^(until|duration|grows_by): "):
        operations.mute_group("a", **given)

    assert state_of() == ("new", "")
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("verb", "state"), [("acknowledge", "acknowledged"), ("reopen", "new"), ("resolve", "resolved")]
)
def test_other_states_end_a_mute(clock, verb, state):
    group("a", clock)
    operations.mute_group("a", grows_by=1, duration="1h")

    getattr(operations, f"{verb}_group")("a", by="ann")

    row = FailureGroup.objects.get()
    assert (row.state, row.muted_until, row.muted_until_failures) == (state, None, None)


def test_a_group_is_resolved_in_a_release_and_that_can_be_corrected(clock):
    group("a", clock)

    operations.resolve_group("a", in_release=" 2.7.1 ", by="ann")
    again = operations.resolve_group("a", in_release="2.7.1")
    corrected = operations.resolve_group("a", in_release="2.7.2")

    assert (again.done, again.refused) == ([], {"a": "group a is resolved already"})
    assert corrected.done == ["a"]
    assert FailureGroup.objects.get().resolved_in == "2.7.2"
    first, second = GroupEvent.objects.all()
    assert first.detail == {"state": "resolved", "was": "new", "release": "2.7.1"}
    assert second.detail == {"state": "resolved", "was": "resolved", "release": "2.7.2"}
    operations.reopen_group("a")
    assert FailureGroup.objects.get().resolved_in == ""


@pytest.mark.parametrize("name", ["x" * 101, "a\x00", "\ud800"])
def test_a_release_that_cannot_exist_is_refused(clock, name):
    group("a", clock)

    with pytest.raises(ValueError, match="in_release"):
        operations.resolve_group("a", in_release=name)

    assert state_of() == ("new", "")


def test_the_owner_is_an_active_user_of_the_site(clock):
    User.objects.create_user("ann")
    User.objects.create_user("gone", is_active=False)
    group("a", clock)

    operations.assign_group("a", "ann", by="bob", why="she knows it")
    again = operations.assign_group("a", "ann")
    for name, problem in (("eve", "there is no user 'eve'"), ("gone", "'gone' is not active")):
        with pytest.raises(ValueError, match=problem):
            operations.assign_group("a", name)

    assert again.refused == {"a": "ann is the owner of group a already"}
    assert FailureGroup.objects.get().owner == "ann"
    event = GroupEvent.objects.get()
    assert (event.kind, event.detail) == ("owner", {"owner": "ann", "was": ""})
    operations.assign_group("a", "")
    assert FailureGroup.objects.get().owner == ""
    assert operations.assign_group("a", "").refused == {"a": "group a has no owner"}
    acts = list(AuditEntry.objects.order_by("id").values_list("act", "detail"))
    assert acts[0] == ("assign_group", {"owner": "ann"})


def test_without_the_users_of_django_any_name_may_own_a_group(clock, settings, monkeypatch):
    monkeypatch.setattr(group_acts.apps, "is_installed", lambda name: False)
    group("a", clock)

    operations.assign_group("a", "eve")

    assert FailureGroup.objects.get().owner == "eve"


@pytest.mark.parametrize(
    "url",
    [
        "https://jira.example.com/browse/OPS-1?a=b#c",
        "http://jira/browse/OPS-1",
        "https://[2001:db8::1]:8443/OPS-1",
        "https://münchen.example/ä",
        "  https://example.com/1 ",
    ],
)
def test_a_ticket_is_linked(clock, url):
    group("a", clock)

    operations.link_ticket("a", url, by="ann")

    assert FailureGroup.objects.get().ticket == url.strip()
    assert GroupEvent.objects.get().detail == {"ticket": url.strip(), "was": ""}
    assert operations.link_ticket("a", url).refused == {
        "a": "the ticket of group a is this one already"
    }
    assert operations.link_ticket("a", "").done == ["a"]
    assert operations.link_ticket("a", "").refused == {"a": "group a has no ticket"}


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JaVaScRiPt://example.com/%0aalert(1)",
        "java\nscript:alert(1)",
        "data:text/html,x",
        "//example.com/1",
        "example.com/1",
        "ftp://example.com/1",
        "https://",
        "https:///path",
        "https://user:secret@example.com/1",
        "https://example.com\\@evil.example/",
        "https://example.com/a b",
        "https://example.com/\u202egnp.exe",
        "https://example.com/\x00",
        "https://example.com/\ud800",
        "https://[broken/1",
        "https://example.com:port/1",
        "https://example.com/" + "x" * 500,
    ],
)
def test_an_address_that_is_no_ticket_is_refused_at_the_door(clock, url):
    group("a", clock)

    with pytest.raises(ValueError, match=r"^url: "):
        operations.link_ticket("a", url)

    assert FailureGroup.objects.get().ticket == ""
    assert not AuditEntry.objects.exists()


def test_notes_are_written_and_answered(clock):
    group("a", clock)
    group("part", clock, merged_into="a")
    of_part = GroupEvent.objects.create(fingerprint="part", at=clock.now, kind="note", text="x")

    first = operations.write_note("a", " the warehouse API changed\n", by="ann")
    second = operations.write_note("part", "fixed upstream", answers=first.note_id, by="bob")
    third = operations.write_note("a", "thanks", answers=of_part.pk)

    notes = GroupEvent.objects.filter(fingerprint="a").order_by("id")
    assert [(n.pk, n.by, n.text, n.answers_id) for n in notes] == [
        (first.note_id, "ann", "the warehouse API changed", None),
        (second.note_id, "bob", "fixed upstream", first.note_id),
        (third.note_id, "", "thanks", of_part.pk),
    ]
    entry = AuditEntry.objects.get(pk=second.entry_id)
    assert (entry.act, entry.detail) == ("note_group", {"answers": first.note_id})
    assert state_of() == ("new", "")


@pytest.mark.parametrize("text", ["", " \n", "x" * 10_001])
def test_a_note_has_a_text_of_a_bounded_length(clock, text):
    group("a", clock)

    with pytest.raises(ValueError, match="text: "):
        operations.write_note("a", text)

    assert not GroupEvent.objects.exists()


@pytest.mark.parametrize("kind", ["of another group", "no note", "missing", "huge", "text"])
def test_only_notes_of_the_group_can_be_answered(clock, kind):
    group("a", clock)
    group("b", clock)
    theirs = GroupEvent.objects.create(fingerprint="b", at=clock.now, kind="note", text="x")
    event = GroupEvent.objects.create(fingerprint="a", at=clock.now, kind="state")
    ids = {"of another group": theirs.pk, "no note": event.pk, "missing": 10**6, "huge": 2**63}

    with pytest.raises(ValueError, match="answers: "):
        operations.write_note("a", "x", answers=ids.get(kind, "7"))

    assert GroupEvent.objects.count() == 2
    assert not AuditEntry.objects.exists()


def test_hostile_text_is_stored_in_a_form_that_every_place_accepts(clock):
    group("a", clock)

    operations.write_note("a", HOSTILE, by=HOSTILE, why=HOSTILE)
    operations.acknowledge_group("a", by=HOSTILE, why=HOSTILE)

    for event in GroupEvent.objects.all():
        assert not {"\x00", "\ud800", "\x1b"} & {*event.text, *event.by}
        assert event.text.startswith("a�b?c")
    assert FailureGroup.objects.get().state_by == AuditEntry.objects.first().by


@pytest.mark.parametrize("given", ["a\x00", "\ud800", "x" * 1_001, [*map(str, range(1_001))]])
def test_fingerprints_that_cannot_exist_and_too_many_are_refused(clock, given):
    with pytest.raises(ValueError, match="fingerprint"):
        operations.acknowledge_group(given)


@pytest.mark.parametrize("given", [[7], [None], 7])
def test_a_fingerprint_is_a_text(clock, given):
    with pytest.raises(TypeError):
        operations.acknowledge_group(given)


def test_an_act_on_a_merged_group_is_one_on_its_main_group(clock):
    group("main", clock)
    group("part", clock, merged_into="main")

    result = operations.acknowledge_group(["part", "main"])

    assert (result.done, result.missing) == (["main"], [])
    assert (state_of("main")[0], state_of("part")[0]) == ("acknowledged", "new")
    assert GroupEvent.objects.count() == 1


def test_merged_groups_move_along_and_split_again(clock):
    for name in "abcd":
        group(name, clock, state="resolved", owner=name)

    operations.merge_groups("b", ["c"], by="ann")
    moved = operations.merge_groups("a", ["b", "gone"], by="ann", why="one API")
    refused = operations.merge_groups("d", ["c"])

    assert (moved.done, moved.missing) == (["b"], ["gone"])
    assert refused.refused == {"c": "group c was merged into a; split it off first"}
    merged = dict(FailureGroup.objects.values_list("fingerprint", "merged_into"))
    assert merged == {"a": "", "b": "a", "c": "a", "d": ""}
    main = FailureGroup.objects.get(fingerprint="a")
    assert (main.state, main.owner) == ("resolved", "a")
    events = GroupEvent.objects.filter(kind="merge", text="one API").order_by("id")
    assert [(event.fingerprint, event.detail) for event in events] == [
        ("b", {"into": "a"}), ("a", {"merged": ["b", "c"]}),
    ]  # fmt: skip

    clock.advance(5)
    split = operations.split_group(["c", "a", "gone"], by="bob")

    assert (split.done, split.missing) == (["c"], ["gone"])
    assert split.refused == {"a": "group a is merged into no other; there is nothing to split off"}
    row = FailureGroup.objects.get(fingerprint="c")
    assert (row.merged_into, row.state, row.state_by, row.state_at, row.owner) == (
        "", "new", "bob", clock.now, "c",
    )  # fmt: skip
    splits = GroupEvent.objects.filter(kind="split").order_by("id")
    assert [(event.fingerprint, event.detail) for event in splits] == [
        ("c", {"from": "a"}), ("a", {"split": "c"}),
    ]  # fmt: skip
    assert FailureGroup.objects.get(fingerprint="b").merged_into == "a"


def test_a_merge_into_a_merged_group_is_one_into_its_main_group(clock):
    group("main", clock)
    group("part", clock, merged_into="main")
    group("new", clock)

    operations.merge_groups("part", "new")

    assert FailureGroup.objects.get(fingerprint="new").merged_into == "main"
    with pytest.raises(ValueError, match="group main cannot be merged into itself"):
        operations.merge_groups("part", ["main"])


def test_a_merge_needs_a_main_group_that_exists(clock):
    group("a", clock)

    with pytest.raises(ValueError, match="there is no group 'gone'"):
        operations.merge_groups("gone", ["a"])

    assert FailureGroup.objects.get().merged_into == ""


def test_a_group_holds_a_bounded_number_of_others(clock, monkeypatch):
    monkeypatch.setattr(group_acts, "MOST_MERGED", 2)
    for name in "abcd":
        group(name, clock)
    group("below", clock, merged_into="b")

    result = operations.merge_groups("a", ["b", "c", "d"])

    assert result.done == ["b"]
    assert result.refused == dict.fromkeys("cd", "group a cannot hold more than 2 merged groups")
    assert failure_groups.MOST_MERGED == 100


def test_an_act_inside_a_transaction_is_undone_with_it(clock):
    group("a", clock)

    with transaction.atomic():
        operations.acknowledge_group("a")
        transaction.set_rollback(True)

    assert state_of() == ("new", "")
    assert not AuditEntry.objects.exists()


def test_every_refusal_of_groups_has_a_sentence_in_german(clock):
    from django.utils import translation

    group("a", clock, state="resolved")
    refusal = operations.acknowledge_group("a").refused["a"]

    with translation.override("de"):
        assert refusal.label == "Gruppe a ist behoben; öffnen Sie sie zuerst wieder"
        for reason in RefusalReason:
            if reason.name.startswith("GROUP_"):
                assert translation.gettext(reason.value) != reason.value
