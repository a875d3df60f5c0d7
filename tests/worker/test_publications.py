"""A worker with threads and an event loop publishes what its handlers return, in order."""

from __future__ import annotations

import pytest

from deadletter import Publication, Status, send
from deadletter.models import Message, OutboxMessage
from deadletter.worker.crash_ledger import SlotState
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def broker(settings) -> None:
    transport = "tests.outbox.memory_transport.MemoryTransport"
    brokers = {"default": {"transport": transport}}
    settings.DEADLETTER = {**settings.DEADLETTER, "BROKERS": brokers}


@pytest.mark.slow
def test_threads_and_event_loop_publish_in_the_order_of_a_stream(running, handles):
    async def arrive(message):
        return message.payload

    handles("ship", lambda message: message.payload, publication=Publication("orders.shipped"))
    handles("arrive", arrive, publication=Publication("orders.arrived"))
    for n in range(20):
        send("ship" if n % 2 else "arrive", n, stream="order-7")

    with running(concurrency=4, relay=False):
        wait_until(lambda: not Message.objects.exists())

    rows = OutboxMessage.objects.order_by("id").values_list("topic", "key", "payload")
    topics = ("orders.arrived", "orders.shipped")
    assert list(rows) == [(topics[n % 2], "order-7", n) for n in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, Status.EVENT_STORED])
def test_an_event_that_is_not_stored_yet_leaves_its_message_running(stage, handles, stepped):
    """A process that dies now has lost the event: its message must run again."""
    handles("ship", lambda message: ship(message, stage), publication=Publication("t"))
    send("ship")
    process = stepped(concurrency=1)
    process.pump.turn()
    wait_until(lambda: process.pump._executors.outcomes.ready)

    states = [entry.state for entry in process.pump._in_flight.ledger.entries()]

    assert states == [SlotState.RUNNING]
    assert OutboxMessage.objects.count() == 0


def ship(message, stage):
    if stage and not message.status & stage:
        message.next_stage(stage)
    return 7
