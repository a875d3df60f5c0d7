"""Two people change the same failure groups, and one changes a group while failures are added."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.utils import timezone

from deadletter import operations, sql
from deadletter.lifecycle.groups import fold_groups
from deadletter.models import AuditEntry, FailureGroup, GroupChange, GroupEvent
from tests.operations.groups import group

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


class Now:
    """The clock of the rows: the database's own time is used by the acts."""

    @property
    def now(self):
        return timezone.now()


@pytest.fixture
def groups(transactional_db: None) -> None:
    for name in "abc":
        group(name, Now())


def holding(act):
    """Return a call that does the act and stands before `read_group_sizes`, its locks held."""

    def call():
        with transaction.atomic():
            result = act()
            limits = {"fingerprints": ["a"], "counted": 1, "halted": 1}
            sql.run(connection, "read_group_sizes", limits)
            return result

    return call


def state_of(fingerprint: str) -> str:
    return FailureGroup.objects.get(fingerprint=fingerprint).state


def test_of_two_acknowledgements_the_second_is_refused(groups, stage, repeated):
    first = stage(
        holding(lambda: operations.acknowledge_group("a", by="ann")), before="read_group_sizes"
    )
    second = stage(lambda: operations.acknowledge_group("a", by="bob"))
    second.wait_blocked(by=first)

    assert first.result().done == ["a"]

    assert second.result().refused == {"a": "group a is acknowledged already"}
    assert FailureGroup.objects.get(fingerprint="a").state_by == "ann"
    assert GroupEvent.objects.count() == 1
    assert list(AuditEntry.objects.order_by("id").values_list("done", "refused")) == [
        (1, 0), (0, 1),
    ]  # fmt: skip
    assert repeated == []


def test_an_act_sees_the_state_that_another_gave_a_moment_earlier(groups, stage, repeated):
    first = stage(holding(lambda: operations.resolve_group(["a", "b"])), before="read_group_sizes")
    second = stage(lambda: operations.acknowledge_group(["c", "b"]))
    second.wait_blocked(by=first)

    first.result()

    result = second.result()
    assert (result.done, list(result.refused)) == (["c"], ["b"])
    assert [state_of(name) for name in "abc"] == ["resolved", "resolved", "acknowledged"]
    assert repeated == []


def test_acts_on_the_same_groups_in_other_orders_do_not_deadlock(groups, stage, repeated):
    first = stage(
        holding(lambda: operations.acknowledge_group(["b", "a"])), before="read_group_sizes"
    )
    second = stage(lambda: operations.mute_group(["a", "c", "b"]))
    second.wait_blocked(by=first)

    first.result()

    assert second.result().done == ["a", "b", "c"]
    assert repeated == []


def test_two_groups_are_not_merged_into_each_other(groups, stage):
    first = stage(holding(lambda: operations.merge_groups("a", "b")), before="read_group_sizes")
    second = stage(lambda: operations.merge_groups("b", "a"))
    second.wait_blocked(by=first)

    first.result()

    with pytest.raises(ValueError, match="group b was merged or removed meanwhile; try again"):
        second.result()
    merged = dict(FailureGroup.objects.values_list("fingerprint", "merged_into"))
    assert merged == {"a": "", "b": "a", "c": ""}


def test_a_group_that_is_merged_while_its_main_moves_makes_no_chain(groups, stage):
    first = stage(holding(lambda: operations.merge_groups("b", "c")), before="read_group_sizes")
    second = stage(lambda: operations.merge_groups("a", "b"))
    second.wait_blocked(by=first)

    first.result()

    assert second.result().done == ["b"]
    merged = dict(FailureGroup.objects.values_list("fingerprint", "merged_into"))
    assert merged == {"a": "", "b": "a", "c": "a"}


def test_an_act_on_a_group_that_is_being_merged_is_refused(groups, stage):
    first = stage(holding(lambda: operations.merge_groups("a", "b")), before="read_group_sizes")
    second = stage(lambda: operations.acknowledge_group("b"))
    second.wait_blocked(by=first)

    first.result()

    assert second.result().refused == {"b": "group b was merged into a meanwhile; try again"}
    assert state_of("b") == "new"


def test_a_fold_leaves_a_group_that_a_person_changes_for_the_next_one(groups, stage):
    GroupChange.objects.bulk_create(
        GroupChange(
            fingerprint=name, name="m", queue="q", exception="E", frame="", reason=2, error="x",
            release="", failures=1, at=timezone.now(),
        )
        for name in "ab"
    )  # fmt: skip
    person = stage(holding(lambda: operations.resolve_group("a")), before="read_group_sizes")

    assert fold_groups() == 1
    person.result()
    assert fold_groups() == 1

    counts = dict(FailureGroup.objects.values_list("fingerprint", "failures"))
    assert counts == {"a": 5, "b": 5, "c": 4}
    # The failure came before the resolution: it is no regression.
    assert state_of("a") == "resolved"
