"""The orders of the demonstration: every way one can end, without processes."""

from __future__ import annotations

import pytest

from deadletter import instance_status, operations, testing
from deadletter.models import InstanceStatus, PoisonRecord, Queue
from deadletter.worker.registry import discover
from project import orders, traffic


@pytest.fixture(autouse=True)
def _queues(db: None) -> None:
    discover()
    Queue.objects.get_or_create(name="orders", defaults={"max_attempts": 3, "backoff_base": 1})


def let_time_pass(clock) -> None:
    for _ in range(10):
        testing.drain()
        clock.advance(orders.PATIENCE + 1)


@pytest.mark.parametrize("id", ["shop-1", "shop-7"], ids=["approved", "not approved in time"])
@pytest.mark.parametrize("card", ["good", "flaky"])
def test_an_order_is_charged_approved_and_shipped(clock, card: str, id: str) -> None:
    traffic.start_order(id, card=card)

    let_time_pass(clock)

    row = instance_status(id)
    assert (row.status, row.output["shipped"]) == (InstanceStatus.COMPLETED, True)
    assert row.output["tracking"] == f"TRACK-{id[-1]}"
    assert not PoisonRecord.objects.exists()


def test_a_refused_card_is_handled_by_the_flow(clock) -> None:
    traffic.start_order("shop-1", card="expired")

    let_time_pass(clock)

    row = instance_status("shop-1")
    assert (row.status, row.output["shipped"]) == (InstanceStatus.COMPLETED, False)
    assert PoisonRecord.objects.get().name == "demo.charge"


def test_an_answer_nobody_understands_fails_the_order_and_a_retry_reopens_it(clock) -> None:
    traffic.start_order("shop-1", card="garbled")
    let_time_pass(clock)
    row = instance_status("shop-1")
    assert row.status == InstanceStatus.FAILED
    assert row.error_details.text == "poison: activity demo.charge#2 exceeded 3 attempts (max 3)"

    record = PoisonRecord.objects.get()
    repaired = {"customer": "Ada", "total": 7, "provider": "good"}
    found = operations.retry_poison(record.pk, payload=repaired, by="ann")
    let_time_pass(clock)

    assert found.refused == {}
    assert instance_status("shop-1").output == {"shipped": True, "tracking": "TRACK-1"}


@pytest.mark.slow
def test_the_opening_shows_running_completed_and_failed_orders(clock) -> None:
    for name in ("mail", "payments"):
        Queue.objects.get_or_create(name=name)
    traffic.send_opening()
    testing.drain()
    found = operations.stats()
    assert sum(found.instances.values()) >= len(traffic.CARDS)
    assert found.instances["running"] > 0

    let_time_pass(clock)

    assert operations.stats().instances["failed"] == 1
    assert operations.stats().instances["completed"] >= len(traffic.CARDS) - 1
