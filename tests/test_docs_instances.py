"""The page about instances: its samples run, its tables are complete."""

from __future__ import annotations

from typing import Any

import pytest

from deadletter import Permanent, instance_events, testing
from deadletter.instances import Run, flows
from deadletter.models import Instance, InstanceStatus
from deadletter.worker.registry import registry

from .test_docs import ROOT, blocks, names, table

PAGE = ROOT / "docs" / "instances.md"


@pytest.fixture
def shop(db: None) -> Any:
    before = set(registry.names())
    space: dict[str, Any] = {"__name__": "shop.samples"}
    for block in blocks(PAGE):
        exec(compile(block, str(PAGE), "exec"), space)
    yield space
    for name in set(registry.names()) - before:
        registry.remove(name)
    for name in ("shop.order", "shop.parcel"):
        flows.remove(name)


def test_the_sample_ships_after_an_hour(shop, clock) -> None:
    shop["place"](17, 5)
    testing.drain()
    assert shop["status_of"](17) == InstanceStatus.RUNNING
    clock.advance(3601)
    testing.drain()

    assert shop["wait"](17) == {"receipt": {"paid": 5}, "tracking": "TRACK-1"}


def test_the_sample_ships_at_once_when_somebody_says_so(shop, clock) -> None:
    shop["place"](17, 5)
    testing.drain()
    shop["hurry"](17)
    testing.drain()

    assert shop["status_of"](17) == InstanceStatus.COMPLETED


def test_the_sample_apologises_for_what_cannot_be_charged(shop, clock, handles) -> None:
    shop["place"](17, 5)
    handles("shop.charge", refuse)
    testing.drain()

    row = Instance.objects.get()
    assert (row.status, row.error_details.text) == (InstanceStatus.FAILED, "not paid")


def refuse(message: Any) -> None:
    raise Permanent("the card has expired")


def test_the_sample_can_be_withdrawn(shop) -> None:
    shop["place"](17, 5)
    shop["withdraw"](17)

    assert Instance.objects.get().error_details.text == "cancelled: withdrawn by the customer"


def test_every_event_is_described() -> None:
    listed = {names(row[0])[0].split("(")[0] for row in table(PAGE, "event")}

    assert listed == {kind.__name__ for kind in instance_events.KINDS.values()}
    for row in table(PAGE, "event"):
        name, _, fields = names(row[0])[0].rstrip(")").partition("(")
        real = getattr(instance_events, name).__dataclass_fields__
        assert [field.strip() for field in fields.split(",")] == list(real)


def test_every_decision_is_described() -> None:
    listed = {names(row[0])[0].split("(")[0] for row in table(PAGE, "decision of a turn")}
    verbs = {f"run.{name}" for name, value in vars(Run).items() if callable(value)}

    assert listed == {verb for verb in verbs if not verb.startswith("run._")}
