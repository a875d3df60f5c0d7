"""A handler gets an instance of its class; what does not match fails before the handler runs."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.db import connection

from deadletter import FailureReason, Started, handler, lifecycle, send, start, testing
from deadletter.exceptions import PayloadMismatch
from deadletter.instances import Flow, flows
from deadletter.models import Instance, Message, PoisonRecord
from deadletter.payload_types import PayloadType
from deadletter.worker.registry import registry
from tests.sample.payloads import BAD, GOOD, PLACE, TYPED, Item, OrderDict, OrderShipped

SHIPPED = OrderShipped(7, [Item(2)], on=date(2026, 1, 31))


@pytest.fixture
def seen(handles) -> list[Any]:
    """Register a typed handler that keeps what it got."""
    found: list[Any] = []
    handles("orders.ship", lambda message: found.append(message.payload), payload=TYPED)
    return found


def stored(payload: Any, name: str = "orders.ship", **options: Any) -> Message:
    """Send a message from a process that does not know the class."""
    known = registry.get(name)
    registry.remove(name)
    try:
        return send(name, payload, **options)
    finally:
        if known is not None:
            registry.add(known)


def test_a_handler_gets_an_instance_and_the_stored_text(handles, clock, counts):
    seen = []

    def ship(message):
        seen.append((message.payload, message.payload is message.payload, message.raw_payload))

    handles("orders.ship", ship, payload=TYPED)
    send("orders.ship", GOOD)

    assert testing.drain().completed == 1
    ((payload, is_same, text),) = seen
    assert (payload, is_same) == (SHIPPED, True)
    assert json.loads(text) == GOOD
    assert counts() == {}


def test_a_handler_gets_the_converted_dict_of_a_typed_dict(handles, clock):
    seen = []
    kind = PayloadType(OrderDict)
    handles("orders.ship", lambda message: seen.append(message.payload), payload=kind)
    send("orders.ship", {"order": 7, "on": "2026-01-31"})

    testing.drain()

    assert seen == [{"order": 7, "on": date(2026, 1, 31)}]


def test_a_mismatch_is_a_counted_failure_and_the_handler_is_not_called(seen, clock, counts):
    stored(BAD)

    tally = testing.drain()

    row = Message.objects.get()
    assert (tally.failed, tally.completed, seen) == (1, 0, [])
    assert row.error == f"deadletter.exceptions.PayloadMismatch: {PLACE}"
    assert (row.failure_reason, row.attempts) == (FailureReason.VALIDATION_FAILURE, 1)
    assert (row.available_at - clock.now).total_seconds() == 60
    attempt = row.history[0]
    assert attempt["exception"] == "deadletter.exceptions.PayloadMismatch"
    assert attempt["frame"] == "tests.sample.payloads:OrderShipped.items[].quantity"
    assert counts() == {"failed": 1}


def test_a_mismatch_is_dead_by_the_queues_policy_for_its_reason(seen, clock, counts, policy):
    policy(max_attempts=5, reason_policies={"VALIDATION_FAILURE": {"max_attempts": 1}})
    stored(BAD)
    stored(GOOD)

    tally = testing.drain()

    assert (tally.poisoned, tally.completed, seen) == (1, 1, [SHIPPED])
    record = PoisonRecord.objects.get()
    assert record.last_failure_reason == FailureReason.VALIDATION_FAILURE
    assert record.exception == "deadletter.exceptions.PayloadMismatch"
    assert counts() == {"dead": 1}


def test_mismatches_of_one_field_are_one_group_whatever_the_payload_has(seen, clock, policy):
    policy(max_attempts=1)
    for n in range(3):
        stored({"order": 1, "items": [{"quantity": 1}] * n + [{"quantity": f"text {n}"}]})
    stored({"order": "x"})
    for key in ("a", "b"):
        stored({"order": 1, key: 1})

    testing.drain()

    groups = [record.fingerprint for record in PoisonRecord.objects.order_by("pk")]
    assert len(groups) == 6
    assert [groups.index(group) for group in groups] == [0, 0, 0, 3, 4, 4]


def test_a_repaired_class_handles_what_failed_before(handles, clock, counts):
    handles("orders.ship", print, payload=TYPED)
    stored({"order": "seven"})
    testing.drain()
    seen = []
    handles("orders.ship", lambda message: seen.append(message.payload["order"]))
    clock.advance(60)

    assert testing.drain().completed == 1
    assert seen == ["seven"]


def test_no_value_of_a_payload_is_logged_or_stored_with_the_error(seen, clock, caplog):
    stored({"order": "4111"})

    with caplog.at_level(logging.DEBUG, logger="deadletter"):
        testing.drain()

    row = Message.objects.get()
    assert "payload.order: expected int, got str" in caplog.text
    assert "4111" not in caplog.text + row.error + json.dumps(row.history)


def test_another_error_of_the_class_fails_its_message_alone(seen, clock, counts):
    stored({"order": 13})
    stored(GOOD)

    tally = testing.drain()

    row = Message.objects.get()
    assert (tally.failed, tally.completed, seen) == (1, 1, [SHIPPED])
    assert (row.error, row.failure_reason) == (
        "KeyError: 'unlucky'",
        FailureReason.HANDLER_EXCEPTION,
    )
    assert row.history[0]["frame"] == "tests.sample.payloads:OrderShipped.__post_init__"


@dataclass
class Leaving:
    code: int

    def __post_init__(self) -> None:
        if self.code:
            raise Panic if self.code == 1 else SystemExit(self.code)


class Panic(BaseException):
    """As pydantic's core raises it: no Exception."""


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
def test_a_class_that_exits_or_panics_ends_no_thread_and_no_event_loop(
    run: Callable[..., Any], handles, counts, is_async: bool
):
    seen = []

    def leave(message):
        seen.append(message.payload)

    async def leave_async(message):
        seen.append(message.payload)

    handles("leave", leave_async if is_async else leave, payload=PayloadType(Leaving))
    for code in (1, 3, 0):
        stored({"code": code}, name="leave")

    process = run()

    assert seen == [Leaving(0)]
    assert (process.pump.tally.completed, process.pump.tally.failed) == (1, 2)
    assert counts() == {"failed": 2}
    assert [row.error.partition(":")[0].rpartition(".")[2] for row in Message.objects.all()] == [
        "Panic",
        "SystemExit",
    ]


def test_a_stream_waits_behind_a_mismatch(seen, clock, counts):
    for payload in (GOOD, BAD, GOOD):
        stored(payload, stream="s")

    tally = testing.drain()

    assert (tally.completed, tally.failed, len(seen)) == (1, 1, 1)
    assert counts() == {"failed": 1, "blocked": 1}


def test_a_payload_that_cannot_be_decoded_is_no_mismatch(seen, clock):
    stored(GOOD)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_message SET payload = '{'")

    testing.drain()

    assert Message.objects.get().failure_reason == FailureReason.SERIALIZATION_ERROR


def test_drain_raises_a_mismatch_if_it_is_to_raise_errors(seen, clock):
    stored(BAD)

    with pytest.raises(PayloadMismatch, match=r"payload\.items\[2\]\.quantity"):
        testing.drain(raise_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_reads_payloads_in_threads_and_on_the_event_loop(
    run: Callable[..., Any], handles, counts, is_async: bool
):
    seen = []

    def ship(message):
        seen.append(message.payload)

    async def ship_async(message):
        seen.append(message.payload)

    handles("orders.ship", ship_async if is_async else ship, payload=TYPED)
    stored(GOOD)
    stored(BAD)

    process = run()

    assert seen == [SHIPPED]
    assert (process.pump.tally.completed, process.pump.tally.failed) == (1, 1)
    assert Message.objects.get().failure_reason == FailureReason.VALIDATION_FAILURE
    assert counts() == {"failed": 1}


def test_a_claim_without_a_worker_returns_the_decoded_payload(seen, clock):
    send("orders.ship", GOOD)

    assert lifecycle.claim().messages[0].payload == GOOD


@pytest.fixture
def flow():
    def register(function: Callable[..., Any]) -> None:
        flows.add(Flow(name="tests.typed_flow", version="1.0.0", function=function))

    yield register
    flows.remove("tests.typed_flow")


def test_an_activity_gets_an_instance_that_its_flow_sent(seen, clock, flow):
    def decide(run, event):
        if isinstance(event, Started):
            run.call("orders.ship", SHIPPED)
        else:
            run.complete()

    flow(decide)
    start("tests.typed_flow", instance="o")

    testing.drain()

    assert seen == [SHIPPED]
    assert Instance.objects.get().status == "completed"


def test_a_flow_cannot_call_an_activity_with_what_does_not_match(seen, clock, flow, policy):
    policy(max_attempts=1)
    flow(lambda run, event: run.call("orders.ship", BAD))
    start("tests.typed_flow", instance="o")

    testing.drain()

    assert seen == []
    record = PoisonRecord.objects.get()
    assert (record.name, record.last_failure_reason) == (
        "tests.typed_flow",
        FailureReason.VALIDATION_FAILURE,
    )
    assert record.last_error.endswith(PLACE)


@pytest.fixture
def name():
    yield "tests.typed"
    registry.remove("tests.typed")


def test_the_decorator_takes_a_class(name, clock):
    seen = []

    @handler(name, payload=OrderShipped)
    def ship(message):
        seen.append(message.payload)

    send(name, SHIPPED)
    testing.drain()

    assert seen == [SHIPPED]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (5, "handler tests.typed: payload: 5 cannot describe a payload"),
        (list[OrderShipped], r"cannot describe a payload\. Give a class: a dataclass, a TypedDict"),
        (SHIPPED, "cannot describe a payload"),
        (dict, "cannot describe a payload"),
    ],
)
def test_the_decorator_refuses_what_is_no_class_of_payloads(name, payload: Any, problem: str):
    with pytest.raises(TypeError, match=problem):
        handler(name, payload=payload)

    assert registry.get(name) is None


def test_the_sample_of_the_documentation_works(clock, counts, monkeypatch):
    page = Path(__file__).parents[2] / "docs/payloads.md"
    samples = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    module = ModuleType("shop.handlers")
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.handlers", module)
    spaces: list[dict[str, Any]] = [vars(module), {"__package__": "shop"}]
    try:
        for sample, space in zip(samples, spaces, strict=True):
            exec(compile(sample, str(page), "exec", dont_inherit=True), space)

        assert counts() == {"pending": 2}
        assert testing.drain().completed == 2
        with pytest.raises(
            PayloadMismatch, match=r"^payload\.items\[0\]: quantity must be 1 or more"
        ):
            send("orders.ship", {"order": 7, "items": [{"sku": "tea", "quantity": 0}]})
    finally:
        registry.remove("orders.ship")
