"""Lists of failure groups: their order, their filters, and what they count."""

from __future__ import annotations

from datetime import timedelta

from deadletter import operations
from deadletter.operations import GroupFilter

from .groups import group, hour, record, tag


def names(*args, **kwargs) -> list[str]:
    return [row.fingerprint for row in operations.list_failure_groups(*args, **kwargs)]


def test_what_needs_a_person_comes_first_and_in_a_state_the_latest_failure(clock):
    earlier = clock.now - timedelta(minutes=5)
    group("resolved", clock, state="resolved")
    group("muted", clock, state="muted")
    group("acked", clock, state="acknowledged")
    group("new-early", clock, last_failed_at=earlier)
    group("new-late", clock)
    group("regressed", clock, state="regressed", last_failed_at=earlier)

    assert names() == ["regressed", "new-late", "new-early", "acked", "muted", "resolved"]
    assert names(limit=2, offset=1) == ["new-late", "new-early"]
    assert operations.count_failure_groups() == {
        "regressed": 1, "new": 2, "acknowledged": 1, "muted": 1, "resolved": 1,
    }  # fmt: skip


def test_a_row_adds_the_numbers_of_merged_groups_and_counts_what_is_there_now(clock):
    before = clock.now - timedelta(days=2)
    group("main", clock, failures=4, deaths=1)
    group("other", clock, failures=10, deaths=3, merged_into="main", first_failed_at=before)
    group("third", clock, failures=1, deaths=1)
    record("main", clock, 1, stream="s", halts=True)
    record("other", clock, 2)
    record("third", clock, 3)

    third, main = operations.list_failure_groups()

    assert (main.fingerprint, main.aliases, third.fingerprint) == ("main", ("other",), "third")
    assert (main.failures, main.deaths, main.records, main.halted) == (14, 4, 2, 1)
    assert main.first_failed_at == before
    assert (third.failures, third.records, third.in_dead_queues, third.halted) == (1, 1, 0, 0)


def test_a_later_failure_of_a_merged_group_moves_its_main_group_up(clock):
    earlier = clock.now - timedelta(minutes=5)
    group("other", clock, last_failed_at=earlier)
    group("main", clock, last_failed_at=earlier - timedelta(minutes=5))
    group("part", clock, merged_into="main")

    assert names() == ["main", "other"]


def test_each_filter_narrows(clock):
    group("a", clock, owner="ann", state="acknowledged", name="mail.send", queue="mail")
    group("b", clock, last_release="2.7.0", error="no such user Ü")
    group("c", clock, state="resolved", ticket="https://example.com/T-1")
    hour("c", clock.now, "2.7.0")
    tag("a", clock, "customer.id", "1041")

    assert names(GroupFilter(state="open")) == ["b", "a"]
    assert names(GroupFilter(state="resolved")) == ["c"]
    assert names(GroupFilter(owner="ann")) == ["a"]
    assert names(GroupFilter(owner="")) == ["b", "c"]
    assert names(GroupFilter(release="2.7.0")) == ["b", "c"]
    assert names(GroupFilter(name="mail.send")) == ["a"]
    assert names(GroupFilter(queue="mail")) == ["a"]
    assert names(GroupFilter(tag="customer.id=1041")) == ["a"]
    assert names(GroupFilter(tag="customer.id=104")) == []
    assert names(GroupFilter(text="such USER")) == ["b"]
    assert names(GroupFilter(text="T-1")) == ["c"]
    assert names(GroupFilter(text="a")) != []
