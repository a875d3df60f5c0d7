"""The details and the timeline of a failure group: numbers, releases, tags, acts and notes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deadletter import operations
from deadletter.models import GroupEvent, PoisonRecord
from deadletter.operations.retry_outcomes import Outcomes

from .groups import group, hour, record, release, tag, worker
from .records import dead


@pytest.fixture
def noon(clock):
    clock.set(datetime(2030, 5, 15, 12, 30, tzinfo=UTC))
    return clock


def test_there_are_no_details_of_a_group_that_does_not_exist(clock):
    assert operations.get_failure_group("gone") is None
    assert operations.get_failure_group("a\x00") is None
    assert operations.timeline("gone") == []


def test_a_merged_group_is_answered_by_its_main_group(clock):
    group("main", clock)
    group("part", clock, merged_into="main", failures=10)

    found = operations.get_failure_group("part")

    assert (found.group.fingerprint, found.group.failures) == ("main", 14)
    assert [(one.fingerprint, one.failures) for one in found.merged] == [("part", 10)]


def test_the_series_has_each_hour_of_a_young_group_with_its_releases(noon):
    group("a", noon, age=2 * 3_600)
    group("b", noon, merged_into="a")
    release("2.7.0", noon, age=3_600)
    hour("a", noon.now - timedelta(hours=2), "2.6.0", failures=3)
    hour("a", noon.now, "2.7.0", failures=4, deaths=2)
    hour("b", noon.now, "2.6.0", failures=1)
    hour("other", noon.now, "2.6.0", failures=99)

    series = operations.get_failure_group("a").series

    assert series.step == timedelta(hours=1)
    assert [
        (point.at.hour, point.failures, point.deaths, point.releases, point.began)
        for point in series.points
    ] == [
        (10, 3, 0, (("2.6.0", 3),), ("2.6.0",)),
        (11, 0, 0, (), ("2.7.0",)),
        (12, 5, 2, (("2.7.0", 4), ("2.6.0", 1)), ()),
    ]


def test_the_series_of_an_old_group_has_days_of_the_sites_time_zone(noon, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    group("a", noon, age=400 * 86_400)
    hour("a", datetime(2030, 5, 14, 22, tzinfo=UTC), failures=1)  # the 15th in Berlin
    hour("a", datetime(2030, 3, 30, 22, tzinfo=UTC), failures=2)  # the day before a day of 23 hours

    found = operations.get_failure_group("a").series
    week = operations.get_failure_group("a", window=timedelta(days=7)).series
    day = operations.get_failure_group("a", window=timedelta(days=1)).series

    assert (found.step, len(found.points)) == (timedelta(days=1), 91)
    assert {f"{point.at:%m-%d}": point.failures for point in found.points if point.failures} == {
        "03-30": 2, "05-15": 1,
    }  # fmt: skip
    assert len({point.at.date() for point in found.points}) == 91
    assert (len(week.points), len(day.points), day.step) == (8, 25, timedelta(hours=1))


def test_releases_say_when_they_began_and_how_many_workers_run_them(clock):
    group("a", clock)
    release("2.7.0", clock, age=600)
    hour("a", clock.now, "2.7.0", failures=4, deaths=1)
    hour("a", clock.now - timedelta(hours=3), "2.6.0", failures=2)
    hour("a", clock.now, "", failures=1)
    worker("w1", clock, release="2.7.0")
    worker("w2", clock, release="2.7.0", seen_at=clock.now - timedelta(hours=1))

    new, old = operations.get_failure_group("a").releases

    assert (new.name, new.failures, new.deaths, new.workers) == ("2.7.0", 4, 1, 1)
    assert new.began_at == clock.now - timedelta(seconds=600)
    assert (old.name, old.failures, old.began_at, old.workers) == ("2.6.0", 2, None, 0)


def test_tags_have_their_most_frequent_values(clock):
    group("a", clock)
    group("b", clock, merged_into="a")
    for number in range(12):
        tag("a", clock, "customer.id", str(number), failures=number + 1)
    tag("b", clock, "customer.id", "11", failures=100)
    tag("a", clock, "customer.id", "", failures=7)
    tag("a", clock, "tenant", "acme", failures=3)

    customer, tenant = operations.get_failure_group("a").tags

    assert (customer.key, customer.distinct, customer.others) == ("customer.id", 12, 7)
    assert customer.failures == sum(range(1, 13)) + 100 + 7
    assert [(one.value, one.failures) for one in customer.values[:2]] == [("11", 112), ("10", 11)]
    assert len(customer.values) == 10
    assert (tenant.key, tenant.others, tenant.is_hidden) == ("tenant", 0, False)


def test_tags_that_the_rule_hides_now_are_not_shown(clock, settings):
    settings.DEADLETTER = {**settings.DEADLETTER, "REDACT": ["card"]}
    group("a", clock)
    tag("a", clock, "customer.card", "4111")
    tag("a", clock, "customer.id", "7")

    card, id = operations.get_failure_group("a").tags

    assert (card.key, card.values, card.is_hidden) == ("customer.card", (), True)
    assert [one.value for one in id.values] == ["7"]


def test_halted_streams_are_named(clock):
    group("a", clock)
    for number, stream in enumerate(["s", "t", "s"]):
        record("a", clock, number + 1, stream=stream, halts=True)
    record("a", clock, 9, stream="u")

    found = operations.get_failure_group("a")

    assert found.group.halted == 3
    assert sorted(stream.stream for stream in found.streams) == ["s", "t"]
    assert {stream.why for stream in found.streams} == {"halted"}


def test_the_timeline_is_one_list_newest_first(clock):
    first = dead("mail")
    other = dead("bill")
    fingerprint = first.fingerprint
    group(fingerprint, clock, age=500)
    hour(fingerprint, clock.now, "2.7.0", failures=3)
    release("2.7.0", clock, age=100)
    clock.advance(10)
    operations.acknowledge_group(fingerprint, by="ann", why="seen")
    clock.advance(10)
    operations.retry_poison([first.pk, other.pk], by="bob", why="fixed")
    clock.advance(10)
    operations.write_note(fingerprint, "done", by="ann")

    entries = operations.timeline(fingerprint)

    assert [(entry.kind, entry.by, entry.text) for entry in entries] == [
        ("note", "ann", "done"),
        ("retry", "bob", "fixed"),
        ("state", "ann", "seen"),
        ("release", "", "2.7.0"),
    ]
    retry = entries[1]
    assert (retry.messages, retry.outcomes) == (1, Outcomes(open=1))
    assert entries[2].detail == {"state": "acknowledged", "was": "new"}
    assert entries[3].detail == {"failures": 3, "deaths": 0}


def test_removals_and_edits_are_in_the_timeline(clock):
    edited, removed = dead("mail", {"a": 1}), dead("mail")
    group(edited.fingerprint, clock)
    operations.retry_poison(edited.pk, payload={"a": 2}, by="ann")
    clock.advance(1)
    operations.remove_poison(removed.pk, by="ann")

    entries = operations.timeline(edited.fingerprint)

    assert [(entry.kind, entry.messages) for entry in entries] == [("remove", 1), ("edit", 1)]
    assert entries[0].outcomes is None


def test_outcomes_are_those_of_the_groups_own_messages(clock):
    """One retry of two groups: each sees how its own messages ended."""
    mail, bill = dead("mail"), dead("bill")
    group(mail.fingerprint, clock)
    operations.retry_poison([mail.pk, bill.pk], by="ann")
    operations.remove([bill.message_id])

    (retry,) = operations.timeline(mail.fingerprint)

    assert retry.outcomes == Outcomes(open=1)
    (act,) = operations.list_group_acts([bill.fingerprint])
    assert (act.messages, act.entry.done, act.outcomes.open) == (1, 2, 0)


def test_answers_stand_below_their_note_and_move_it_up(clock):
    group("a", clock)
    first = operations.write_note("a", "first", by="ann")
    clock.advance(1)
    operations.write_note("a", "second")
    clock.advance(1)
    reply = operations.write_note("a", "reply", answers=first.note_id)
    clock.advance(1)
    operations.write_note("a", "reply to the reply", answers=reply.note_id)

    entries = operations.timeline("a")

    assert [(entry.text, [one.text for one in entry.replies]) for entry in entries] == [
        ("first", ["reply", "reply to the reply"]), ("second", []),
    ]  # fmt: skip
    assert entries[0].last_at == clock.now


def test_pages_of_a_timeline_lose_nothing(clock):
    group("a", clock)
    for number in range(5):
        operations.write_note("a", str(number))
        clock.advance(1 if number != 2 else 0)  # two notes of one moment
    texts, before = [], None

    while page := operations.timeline("a", limit=2, before=before):
        texts.append([entry.text for entry in page])
        before = page[-1].last_at

    assert texts == [["4", "3", "2"], ["1", "0"]]


def test_events_of_merged_groups_say_where_they_belong(clock):
    group("a", clock)
    group("b", clock)
    operations.write_note("b", "of b")
    clock.advance(1)
    operations.merge_groups("a", ["b"])

    entries = operations.timeline("a")

    assert [(entry.kind, entry.merged) for entry in entries] == [
        ("merge", ""), ("merge", "b"), ("note", "b"),
    ]  # fmt: skip


def test_a_damaged_event_breaks_no_timeline(clock):
    group("a", clock)
    GroupEvent.objects.create(fingerprint="a", at=clock.now, kind="odd", detail=["no", "object"])

    (entry,) = operations.timeline("a")

    assert (entry.kind, entry.detail) == ("odd", {})
    assert not PoisonRecord.objects.exists()
