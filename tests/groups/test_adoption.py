"""The dead of earlier releases become groups, once, beside failures that are counted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deadletter import operations, send
from deadletter.fingerprints import fingerprint
from deadletter.lifecycle import Failure, claim, fail, group_adoption
from deadletter.lifecycle.group_adoption import adopt_all_groups, adopt_groups
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    FailureGroup,
    GroupChange,
    GroupEvent,
    GroupHour,
    GroupState,
    OnPoison,
    PoisonRecord,
)

from .conftest import CAUSE

BOOM = fingerprint("mail", CAUSE["exception"], CAUSE["frame"])


@pytest.fixture
def before(clock, failed, policy):
    """Let messages die as in a release that counted no groups."""
    policy(max_attempts=1)

    def die(**options: Any) -> None:
        failed(**options)
        GroupChange.objects.all().delete()

    return die


def numbers() -> dict[str, tuple[int, int]]:
    rows = FailureGroup.objects.order_by("pk")
    return {row.fingerprint: (row.failures, row.deaths) for row in rows}


def test_records_become_a_group(clock, before):
    before(error="first")
    first = clock.now
    clock.advance(60)
    before(error="second", times=2)

    adopt_all_groups()
    found = FailureGroup.objects.get()
    assert (found.fingerprint, found.failures, found.deaths) == (BOOM, 3, 3)
    assert (found.name, found.queue, found.error) == ("mail", "default", "second")
    assert (found.exception, found.frame) == (CAUSE["exception"], CAUSE["frame"])
    assert (found.first_failed_at, found.last_failed_at) == (first, clock.now)
    assert (found.first_died_at, found.last_died_at) == (first, clock.now)
    assert (found.state, found.state_at) == (GroupState.NEW, first)
    assert (GroupHour.objects.count(), GroupEvent.objects.count()) == (0, 0)


def test_a_second_adoption_adds_nothing(clock, before, failed):
    before(times=2)
    clock.advance(60)
    adopt_all_groups()
    adopt_all_groups()
    assert numbers() == {BOOM: (2, 2)}

    failed()
    adopt_all_groups()
    fold_all_groups()
    adopt_all_groups()
    assert numbers() == {BOOM: (3, 3)}


@pytest.mark.parametrize("is_folded", [False, True])
def test_deaths_that_a_change_has_counted_are_not_adopted(clock, before, failed, is_folded):
    before(times=2)
    clock.advance(60)
    failed()
    if is_folded:
        fold_all_groups()

    adopt_all_groups()
    fold_all_groups()
    adopt_all_groups()
    assert numbers() == {BOOM: (3, 3)}


def test_a_group_that_failed_but_has_no_counted_death_adopts_all(clock, before, failed, policy):
    before(times=2)
    policy(max_attempts=5)
    clock.advance(60)
    failed()
    fold_all_groups()
    at = clock.now

    adopt_all_groups()
    found = FailureGroup.objects.get()
    assert (found.failures, found.deaths, found.last_failed_at) == (3, 2, at)


def test_messages_in_dead_queues_are_adopted(clock, before, policy):
    policy("dead")
    policy(max_attempts=1, on_poison=OnPoison.DEAD_QUEUE, dead_queue=policy("dead"))
    before(times=2)
    policy("default", on_poison=OnPoison.QUARANTINE, dead_queue=None)
    before()
    before(exception="shop.Other")
    PoisonRecord.objects.filter(fingerprint=BOOM).delete()

    adopt_all_groups()
    other = fingerprint("mail", "shop.Other", CAUSE["frame"])
    assert numbers() == {BOOM: (2, 2), other: (1, 1)} or numbers() == {
        other: (1, 1),
        BOOM: (2, 2),
    }
    found = FailureGroup.objects.get(fingerprint=BOOM)
    assert (found.queue, found.exception) == ("default", CAUSE["exception"])
    assert (found.frame, found.error) == (CAUSE["frame"], "boom")


def test_a_death_that_no_attempt_preceded_is_no_failure(clock, policy):
    send("mail", {})
    id = claim().ids[0]
    clock.advance(timedelta(days=1))
    operations.poison([id], why="a test")
    GroupChange.objects.all().delete()
    PoisonRecord.objects.update(last_failure_reason=None)

    adopt_all_groups()
    assert [*numbers().values()] == [(0, 1)]


def test_groups_are_adopted_in_pieces(clock, before, monkeypatch):
    monkeypatch.setattr(group_adoption, "PIECE", 2)
    for n in range(5):
        before(exception=f"shop.Error{n}")
    ordered = sorted(PoisonRecord.objects.values_list("fingerprint", flat=True))

    places = [""]
    while (place := adopt_groups(places[-1])) is not None:
        places.append(place)
        assert len(numbers()) == min(2 * len(places) - 2, 5)
    assert places == ["", ordered[1], ordered[3], ordered[4]]
    assert numbers() == dict.fromkeys(ordered, (1, 1)) | numbers()


def test_the_state_of_a_known_group_stays(clock, before, failed):
    before()
    clock.advance(60)
    failed()
    fold_all_groups()
    FailureGroup.objects.update(state=GroupState.RESOLVED, state_at=clock.now)

    adopt_all_groups()
    found = FailureGroup.objects.get()
    assert (found.state, found.deaths) == (GroupState.RESOLVED, 2)


def test_a_damaged_copy_is_adopted_as_far_as_it_can_be_read(clock, before, policy):
    from deadletter.models import Message

    policy("dead")
    policy(max_attempts=1, on_poison=OnPoison.DEAD_QUEUE, dead_queue=policy("dead"))
    before()
    Message.objects.update(death=["damaged"])

    adopt_all_groups()
    assert numbers() == {BOOM: (1, 1)}
    assert FailureGroup.objects.get().error == "boom"


def test_a_redeath_after_the_adoption_of_its_record_is_counted_once(clock, before):
    before()
    adopt_all_groups()
    clock.advance(60)
    operations.retry_poison([PoisonRecord.objects.get().pk])
    batch = claim()
    fail(batch.token, [Failure(batch.ids[0], **CAUSE)])
    fold_all_groups()
    adopt_all_groups()

    assert numbers() == {BOOM: (2, 2)}
