"""Rows that were damaged by hand stop no fold and no adoption."""

from __future__ import annotations

import pytest
from django.db import connection

from deadletter.lifecycle import sweep
from deadletter.lifecycle.group_adoption import adopt_all_groups
from deadletter.lifecycle.groups import fold_all_groups, has_changes
from deadletter.models import FailureGroup, GroupChange, GroupState, PoisonRecord


def damage(table: str, column: str, value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = {value}")


DAMAGE = {
    "sqlite": [
        ("at", "'soon'"),
        ("at", "5"),
        ("at", "'0000-00-00 00:00:00'"),
        ("failures", "'many'"),
        ("reason", "'odd'"),
        ("reason", "-5"),
        ("name", "x'00ff'"),
        ("tags", "'[1, [2]]'"),
        ("tags", "'{}'"),
    ],
    "postgresql": [
        ("at", "'infinity'"),
        ("at", "'-infinity'"),
        ("at", "'20000-01-01'"),
        ("at", "'4000-01-01 BC'"),
        ("reason", "-5"),
        ("tags", "'[1, [2]]'"),
        ("tags", "'{}'"),
        ("tags", '\'[["a", "b", "c"]]\''),
    ],
}


@pytest.mark.parametrize("case", range(9))
def test_a_damaged_change_stops_no_other_one(failed, vendor, case):
    if case >= len(DAMAGE[vendor]):
        return
    failed(exception="shop.Damaged", tags=[("a", "b")])
    damage("deadletter_group_change", *DAMAGE[vendor][case])
    failed(exception="shop.Whole")
    fold_all_groups()

    assert not has_changes()
    assert FailureGroup.objects.get(exception="shop.Whole").failures == 1
    assert len(FailureGroup.objects.all()) == 2
    sweep()


@pytest.mark.parametrize("column", ["state_at", "first_failed_at", "last_failed_at"])
def test_a_damaged_group_counts_on(failed, vendor, column):
    failed()
    fold_all_groups()
    FailureGroup.objects.update(state=GroupState.RESOLVED)
    damage("deadletter_group", column, "'infinity'" if vendor == "postgresql" else "'soon'")
    failed()
    fold_all_groups()

    assert FailureGroup.objects.get().failures == 2


def test_a_record_whose_time_is_damaged_stops_no_adoption(failed, policy, vendor):
    policy(max_attempts=1)
    failed(exception="shop.Damaged")
    failed(exception="shop.Whole")
    GroupChange.objects.all().delete()
    value = "'-infinity'" if vendor == "postgresql" else "''"
    damage("deadletter_poison", "poisoned_at", f"{value} WHERE exception = 'shop.Damaged'")
    adopt_all_groups()
    adopt_all_groups()

    assert [(row.exception, row.deaths) for row in FailureGroup.objects.all()] == [
        ("shop.Whole", 1)
    ]
    assert PoisonRecord.objects.count() == 2
