"""Groups, hours and tags are kept for their time, and groups that are needed beyond it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deadletter.lifecycle import sweep
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    FailureGroup,
    GroupEvent,
    GroupHour,
    GroupState,
    GroupTag,
    Message,
    MessageTag,
    OnPoison,
    PoisonRecord,
)

YEAR = timedelta(days=365)


@pytest.fixture
def old(clock, failed):
    """A group that failed a year ago, and belongs to nothing."""
    failed(tags=[("tenant", "a")])
    fold_all_groups()
    Message.objects.all().delete()
    found = FailureGroup.objects.get()
    GroupEvent.objects.create(
        fingerprint=found.fingerprint, at=clock.now, kind=GroupEvent.Kind.NOTE, text="?"
    )
    clock.advance(YEAR)
    return found


def left() -> dict[str, int]:
    models: list[Any] = [FailureGroup, GroupHour, GroupTag, GroupEvent]
    return {model.__name__: model.objects.count() for model in models}


def test_an_old_group_goes_with_all_that_belongs_to_it(old):
    swept = sweep()

    assert swept.groups == 1
    assert set(left().values()) == {0}


def test_a_moment_before_its_time_it_stays(clock, old):
    clock.advance(-1)

    assert sweep().groups == 0
    assert left() == {"FailureGroup": 1, "GroupHour": 0, "GroupTag": 0, "GroupEvent": 1}


def test_none_keeps_all(clock, old, settings):
    settings.DEADLETTER = {"GROUPS_KEPT": None, "TAGS_KEPT": None}

    assert sweep().groups == 0
    assert left() == {"FailureGroup": 1, "GroupHour": 0, "GroupTag": 1, "GroupEvent": 1}


def test_a_muted_group_stays(old):
    FailureGroup.objects.update(state=GroupState.MUTED)

    assert sweep().groups == 0


@pytest.mark.parametrize(
    ("state", "count"),
    [(GroupState.NEW, 0), (GroupState.ACKNOWLEDGED, 0), (GroupState.RESOLVED, 1)],
)
def test_an_open_group_with_a_newer_note_stays(clock, old, state, count):
    FailureGroup.objects.update(state=state)
    GroupEvent.objects.update(at=clock.now - YEAR + timedelta(seconds=1))

    assert sweep().groups == count


def test_a_group_with_records_stays(clock, failed, policy, settings):
    policy(max_attempts=1)
    failed()
    fold_all_groups()
    clock.advance(YEAR)

    assert sweep().groups == 0
    PoisonRecord.objects.all().delete()
    assert sweep().groups == 1


def test_a_group_with_messages_in_a_dead_queue_stays(clock, failed, policy):
    policy("dead")
    policy(max_attempts=1, on_poison=OnPoison.DEAD_QUEUE, dead_queue=policy("dead"))
    failed()
    fold_all_groups()
    clock.advance(YEAR)

    assert sweep().groups == 0
    Message.objects.all().delete()
    assert sweep().groups == 1


def test_a_group_that_others_are_merged_into_stays(clock, old):
    other = FailureGroup.objects.create(
        fingerprint="0" * 16,
        name="mail",
        merged_into=old.fingerprint,
        first_failed_at=clock.now,
        last_failed_at=clock.now,
        state_at=clock.now,
    )
    assert sweep().groups == 0

    other.delete()
    assert sweep().groups == 1


def test_hours_are_kept_for_ninety_days(clock, failed):
    hour = clock.now.replace(minute=0, second=0)
    clock.set(hour)
    failed()
    fold_all_groups()
    clock.advance(timedelta(days=90) - timedelta(seconds=1))
    sweep()
    assert GroupHour.objects.count() == 1

    clock.advance(1)
    sweep()
    assert (GroupHour.objects.count(), FailureGroup.objects.count()) == (0, 1)


def test_tags_are_kept_for_their_time(clock, failed, policy, settings):
    settings.DEADLETTER = {"TAGS_KEPT": "2d"}
    policy(max_attempts=1)
    failed(tags=[("tenant", "a")])
    fold_all_groups()
    clock.advance(timedelta(days=2, seconds=-1))
    sweep()
    assert (GroupTag.objects.count(), MessageTag.objects.count()) == (1, 1)

    clock.advance(1)
    sweep()
    assert (GroupTag.objects.count(), MessageTag.objects.count()) == (0, 0)
    assert FailureGroup.objects.count() == 1


def test_more_than_one_piece_is_deleted(clock, failed, monkeypatch):
    monkeypatch.setattr("deadletter.lifecycle.sweeps.CHUNK", 2)
    for n in range(5):
        failed(exception=f"shop.Error{n}", tags=[("tenant", str(n))])
    fold_all_groups()
    Message.objects.all().delete()
    clock.advance(YEAR)

    assert sweep().groups == 5
    assert set(left().values()) == {0}
