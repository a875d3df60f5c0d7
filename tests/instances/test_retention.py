"""Instances past their retention are deleted with their logs."""

from __future__ import annotations

import pytest

from deadletter import raise_event, start, testing
from deadletter.lifecycle import sweep
from deadletter.lifecycle.instances import retention
from deadletter.models import Instance, InstanceEvent


@pytest.fixture
def old(clock, flow):
    """Three ended, one of them later, and one that runs."""
    flow("end", lambda run, event: run.complete())
    flow("wait", lambda run, event: None)
    for id in ("a", "b"):
        start("end", instance=id)
    start("wait", instance="running")
    testing.drain()
    clock.advance(3600)
    start("end", instance="late")
    testing.drain()


def ids() -> list[str]:
    return sorted(Instance.objects.values_list("id", flat=True))


def test_they_are_kept_by_default(clock, old):
    clock.advance(10**8)

    assert sweep().instances == 0
    assert ids() == ["a", "b", "late", "running"]


def test_what_ended_before_is_removed_and_nothing_else(clock, old, settings):
    settings.DEADLETTER = {"INSTANCES_KEPT": 7200}
    clock.advance(3600)

    assert sweep().instances == 2

    assert ids() == ["late", "running"]
    assert set(InstanceEvent.objects.values_list("instance", flat=True)) == {"late", "running"}


def test_a_long_timeline_goes_in_pieces(clock, flow, settings, monkeypatch):
    monkeypatch.setattr(retention, "LINES", 3)
    settings.DEADLETTER = {"INSTANCES_KEPT": 60}

    def end(run, event):
        if getattr(event, "name", "") == "end":
            run.complete()

    flow("end", end)
    start("end", instance="a")
    for name in ("one", "two", "three", "four", "five", "end"):
        raise_event("a", name)
    testing.drain()
    assert InstanceEvent.objects.count() == 8
    clock.advance(60)

    sweep()

    assert (ids(), InstanceEvent.objects.count()) == ([], 0)
