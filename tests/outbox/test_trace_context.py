"""An event carries the trace of the code that published it, as attributes of CloudEvents."""

from __future__ import annotations

import pytest

from deadletter import (
    OutgoingEvent,
    Publication,
    operations,
    publish,
    publish_many,
    send,
    testing,
)
from deadletter.models import OutboxMessage, PoisonRecord
from deadletter.outbox.transports.base import BrokerRefusal
from tests.test_tracing import FOREIGN, Traces, asked_anew, traces, written  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)


def test_events_carry_the_span_that_published_them(broker, relay, traces: Traces):  # noqa: F811
    with traces.tracer.start_as_current_span("request") as request:
        publish("t", 1, headers={"tenant": "a"})
        publish_many([OutgoingEvent("t", 2), OutgoingEvent("t", 3, None, {"traceparent": FOREIGN})])
    publish("t", 4)

    relay.turn()

    expected = written(request.get_span_context())
    found = {event.data: (event.traceparent, event.headers) for event in broker.arrived}
    assert found == {
        "1": (expected, {"tenant": "a"}),
        "2": (expected, {}),
        "3": (FOREIGN, {}),
        "4": (None, {}),
    }


def test_what_a_handler_returns_carries_the_span_of_its_run(
    broker,
    relay,
    handles,
    traces: Traces,  # noqa: F811
):
    handles("ship", lambda message: message.payload, publication=Publication("orders.shipped"))
    with traces.tracer.start_as_current_span("request"):
        send("ship", 7)

    testing.drain()
    relay.turn()

    (event,) = broker.arrived
    (run,) = traces.named("process ship")
    assert event.traceparent == written(run.get_span_context())


def test_a_retried_event_keeps_the_trace_of_its_first_publisher(
    broker,
    relay,
    traces: Traces,  # noqa: F811
):
    broker.judge = staticmethod(lambda event: BrokerRefusal.invalid("too large"))
    with traces.tracer.start_as_current_span("request") as request:
        publish("t", 1)
    relay.turn()
    broker.judge = staticmethod(lambda event: None)

    with traces.tracer.start_as_current_span("operator"):
        operations.retry_poison([PoisonRecord.objects.get().pk], by="ann")
    relay.turn()

    (event,) = broker.arrived
    assert event.traceparent == written(request.get_span_context())
    assert OutboxMessage.objects.count() == 0
