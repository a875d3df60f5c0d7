"""Everything that failed for one customer: groups and records by a value of a tag."""

from __future__ import annotations

import pytest

from deadletter import operations
from deadletter.models import PoisonRecord
from deadletter.operations import GroupFilter, PoisonFilter, group_tags

from .groups import group, message_tag, record, tag


def test_a_page_has_all_groups_of_a_value_the_latest_first(clock):
    for name in ("a", "b", "c", "other"):
        group(name, clock)
    group("part", clock, merged_into="a")
    tag("b", clock, "customer.id", "1041", failures=3)
    clock.advance(5)
    tag("a", clock, "customer.id", "1041", failures=2)
    tag("part", clock, "customer.id", "1041", failures=10)
    tag("c", clock, "customer.id", "10410")
    tag("other", clock, "tenant", "1041")
    record("a", clock, 1)
    record("b", clock, 2)
    record("c", clock, 3)
    for id in (1, 2, 99):  # the last one was retried since
        message_tag(id, clock, "customer.id", "1041")
    message_tag(3, clock, "customer.id", "10410")

    page = operations.tag_page("customer.id", "1041")

    assert [(one.group.fingerprint, one.failures) for one in page.groups] == [("a", 12), ("b", 3)]
    assert page.groups[0].last_at == clock.now
    assert (page.records, page.has_more, page.is_hidden) == (2, False, False)


def test_a_page_is_bounded_and_says_so(clock, monkeypatch):
    monkeypatch.setattr(group_tags, "GROUPS", 2)
    for number in range(3):
        group(str(number), clock)
        tag(str(number), clock, "k", "v")

    page = operations.tag_page("k", "v")

    assert (len(page.groups), page.has_more) == (2, True)


def test_records_are_selected_and_acted_on_by_a_tag(clock):
    for id in (1, 2, 3):
        record("a", clock, id)
    message_tag(1, clock, "customer.id", "1041")
    message_tag(2, clock, "customer.id", "a=b")
    wanted = PoisonFilter(tag="customer.id=1041")

    assert [row.message_id for row in wanted.records("default")] == [1]
    assert [row.message_id for row in PoisonFilter(tag="customer.id=a=b").records("default")] == [2]
    assert PoisonFilter.from_dict(wanted.as_dict()) == wanted
    assert bool(wanted)
    assert operations.remove_matching(wanted, by="ann").done == 1
    left = PoisonRecord.objects.order_by("message_id").values_list("message_id", flat=True)
    assert list(left) == [2, 3]


@pytest.mark.parametrize("text", ["", "x", "=x", "x=", "x=\x00", "x=\ud800", "k=" + "v" * 1_000])
def test_what_cannot_be_a_tag_is_refused(clock, text):
    for made in (PoisonFilter, GroupFilter):
        with pytest.raises(ValueError, match="tag: "):
            made(tag=text)


def test_values_that_the_rule_hides_find_nothing(clock, settings):
    """Else a reader could ask for values until one is found."""
    group("a", clock)
    record("a", clock, 1)
    tag("a", clock, "customer.shoe", "41")
    message_tag(1, clock, "customer.shoe", "41")
    assert operations.tag_page("customer.shoe", "41").records == 1

    settings.DEADLETTER = {**settings.DEADLETTER, "REDACT": ["shoe"]}

    page = operations.tag_page("customer.shoe", "41")
    assert (page.groups, page.records, page.is_hidden) == ((), 0, True)
    assert operations.list_failure_groups(GroupFilter(tag="customer.shoe=41")) == []
    assert not PoisonFilter(tag="customer.shoe=41").records("default").exists()
