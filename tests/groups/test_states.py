"""Resolved groups come back, mutes end, and nothing else changes a state by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deadletter import FailureReason, operations, send
from deadletter.lifecycle import sweep
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    ApplicationRelease,
    FailureGroup,
    GroupEvent,
    GroupState,
    Message,
)


@pytest.fixture
def change(clock, failed):
    """Let a message fail once, fold, and set the state of its group by hand."""

    def set_state(state: str, **fields: Any) -> FailureGroup:
        failed(release="2.7.0")
        fold_all_groups()
        clock.advance(60)
        FailureGroup.objects.update(state=state, state_at=clock.now, state_by="ada", **fields)
        return FailureGroup.objects.get()

    return set_state


def seen(clock, *names: str) -> None:
    """Workers ran these releases, one after the other, before the clock's time."""
    for days, name in enumerate(reversed(names), 1):
        at = clock.now - timedelta(days=days)
        ApplicationRelease.objects.create(name=name, first_seen_at=at, last_seen_at=at)


@pytest.mark.parametrize("state", [GroupState.NEW, GroupState.ACKNOWLEDGED, GroupState.REGRESSED])
def test_a_failure_changes_no_open_state(clock, failed, group, change, state):
    before = change(state)
    clock.advance(60)
    failed()

    found = group()
    assert (found.failures, found.state, found.state_at) == (2, state, before.state_at)
    assert GroupEvent.objects.count() == 0


def test_a_resolved_group_that_fails_again_has_regressed(clock, failed, group, change):
    change(GroupState.RESOLVED)
    clock.advance(60)
    failed(release="2.7.1")
    at = clock.now
    clock.advance(60)
    failed(release="2.7.2")

    found = group()
    assert (found.state, found.state_at, found.state_by) == (GroupState.REGRESSED, at, "")
    event = GroupEvent.objects.get()
    assert (event.fingerprint, event.at, event.by) == (found.fingerprint, at, "worker")
    assert (event.kind, event.detail) == ("regressed", {"release": "2.7.1"})


def test_failures_from_before_the_resolution_are_no_regression(clock, failed, group, change):
    change(GroupState.RESOLVED)
    clock.advance(-30)
    failed()

    assert group().state == GroupState.RESOLVED


def test_a_failure_at_the_moment_of_the_resolution_is_no_regression(failed, group, change):
    change(GroupState.RESOLVED)
    failed()

    assert group().state == GroupState.RESOLVED


@pytest.mark.parametrize(
    ("releases", "release", "state"),
    [
        # Known and older than the repair.
        (["2.7.0", "2.8.0", "2.9.0"], "2.7.0", GroupState.RESOLVED),
        # The repair itself, and what came after it.
        (["2.7.0", "2.8.0", "2.9.0"], "2.8.0", GroupState.REGRESSED),
        (["2.7.0", "2.8.0", "2.9.0"], "2.9.0", GroupState.REGRESSED),
        # The repair runs nowhere yet: what runs is older.
        (["2.7.0"], "2.7.0", GroupState.RESOLVED),
        # Nobody knows when these began.
        (["2.8.0"], "2.7.0", GroupState.REGRESSED),
        (["2.7.0", "2.8.0"], "", GroupState.REGRESSED),
        ([], "2.8.0", GroupState.REGRESSED),
    ],
)
def test_a_group_that_is_resolved_in_a_release(
    clock, failed, group, change, releases, release, state
):
    change(GroupState.RESOLVED, resolved_in="2.8.0")
    seen(clock, *releases)
    clock.advance(60)
    failed(release=release)

    found = group()
    assert (found.state, found.failures) == (state, 2)
    details = [event.detail for event in GroupEvent.objects.all()]
    regressed = state == GroupState.REGRESSED
    assert details == ([{"release": release, "resolved_in": "2.8.0"}] if regressed else [])
    assert found.resolved_in == ("" if regressed else "2.8.0")


def test_the_first_failure_of_the_repaired_release_is_the_regression(clock, failed, group, change):
    change(GroupState.RESOLVED, resolved_in="2.8.0")
    seen(clock, "2.7.0", "2.8.0")
    clock.advance(60)
    failed(release="2.7.0")
    clock.advance(60)
    failed(release="2.8.0")

    assert (group().state, group().state_at) == (GroupState.REGRESSED, clock.now)


def test_the_death_of_a_message_that_failed_before_is_no_regression(clock, failed, group, change):
    change(GroupState.RESOLVED)
    clock.advance(60)
    operations.poison([Message.objects.get().pk], why="a test")

    assert (group().state, group().deaths) == (GroupState.RESOLVED, 1)


def test_messages_that_expire_are_a_regression_of_their_group(clock, group):
    def expire() -> None:
        send("mail", {}, expires_in=60)
        clock.advance(120)
        sweep()

    expire()
    FailureGroup.objects.update(state=GroupState.RESOLVED, state_at=clock.now)
    expire()

    assert (group().state, group().reason) == (GroupState.REGRESSED, FailureReason.EXPIRED)


def test_a_failure_of_a_merged_group_is_a_regression_of_its_main_group(
    clock, failed, group, change
):
    main = change(GroupState.RESOLVED)
    failed(exception="shop.Other")
    fold_all_groups()
    other = FailureGroup.objects.exclude(pk=main.pk).get()
    FailureGroup.objects.filter(pk=other.pk).update(merged_into=main.fingerprint)
    clock.advance(60)
    failed(exception="shop.Other")

    assert group(pk=main.pk).state == GroupState.REGRESSED
    assert group(pk=other.pk).state == GroupState.NEW
    assert group(pk=main.pk).failures == 1
    assert GroupEvent.objects.get().fingerprint == main.fingerprint


def muted_event(group: FailureGroup, at: Any, was: str) -> None:
    GroupEvent.objects.create(
        fingerprint=group.fingerprint,
        at=at,
        by="ada",
        kind=GroupEvent.Kind.STATE,
        detail={"state": "muted", "was": was},
    )


@pytest.mark.parametrize(
    ("was", "state"),
    [
        ("acknowledged", GroupState.ACKNOWLEDGED),
        ("new", GroupState.NEW),
        ("regressed", GroupState.NEW),
        (None, GroupState.NEW),
    ],
)
def test_a_mute_ends_at_its_time(clock, group, change, was, state):
    muted = change(GroupState.MUTED, muted_until=clock.now + timedelta(hours=1, minutes=1))
    muted_event(muted, clock.now, was)
    clock.advance(3599)
    sweep()
    assert group().state == GroupState.MUTED

    clock.advance(1)
    sweep()
    found = group()
    assert (found.state, found.state_at, found.state_by) == (state, clock.now, "")
    assert (found.muted_until, found.muted_until_failures) == (None, None)
    event = GroupEvent.objects.latest("pk")
    assert (event.kind, event.by, event.at) == ("unmuted", "worker", clock.now)
    assert event.detail == {"state": state}


def test_a_mute_ends_when_the_failures_have_grown(clock, failed, group, change):
    muted = change(GroupState.MUTED, muted_until_failures=3)
    muted_event(muted, clock.now, "acknowledged")
    failed()
    assert group().state == GroupState.MUTED
    assert GroupEvent.objects.count() == 1

    failed()
    assert (group().state, group().failures) == (GroupState.ACKNOWLEDGED, 3)
    assert (group().muted_until, group().muted_until_failures) == (None, None)


def test_the_failures_of_merged_groups_end_a_mute(clock, failed, group, change):
    main = change(GroupState.MUTED, muted_until_failures=3)
    failed(exception="shop.Other")
    fold_all_groups()
    FailureGroup.objects.exclude(pk=main.pk).update(merged_into=main.fingerprint)
    assert group(pk=main.pk).state == GroupState.MUTED

    failed(exception="shop.Other")
    assert group(pk=main.pk).state == GroupState.NEW


def test_a_mute_without_an_end_stays(clock, failed, group, change):
    change(GroupState.MUTED)
    clock.advance(timedelta(days=1000))
    failed(times=5)
    sweep()

    assert group().state == GroupState.MUTED
