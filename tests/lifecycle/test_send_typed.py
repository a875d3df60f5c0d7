"""A payload is checked against the class of its handler before anything is stored."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import Outgoing, PayloadRejected, asend, operations, payload_types, send, send_many
from deadletter.exceptions import PayloadMismatch
from deadletter.lifecycle.enqueue import store_message, store_messages
from deadletter.models import Message
from deadletter.payload_types import PayloadType
from tests.sample.payloads import BAD, GOOD, PLACE, TYPED, Item, OrderDict, OrderShipped

SENDERS = {
    "send": lambda name, payload: send(name, payload),
    "send_many": lambda name, payload: send_many([Outgoing("other"), Outgoing(name, payload)]),
    "asend": lambda name, payload: async_to_sync(asend)(name, payload),
}
each_sender = pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)


@pytest.fixture
def typed(handles) -> None:
    handles("orders.ship", print, payload=TYPED)


@each_sender
def test_a_payload_that_does_not_match_is_refused_and_nothing_is_stored(
    typed, clock, counts, sender: Any
):
    with pytest.raises(PayloadRejected) as refused:
        sender("orders.ship", BAD)

    assert str(refused.value) == f'{PLACE} "x"'
    assert refused.value.field == "payload"
    assert counts() == {}


def test_a_refusal_costs_no_statement(typed, clock):
    with (
        CaptureQueriesContext(
            connection,
        ) as captured,
        pytest.raises(PayloadMismatch),
    ):
        send("orders.ship", BAD)

    assert captured.captured_queries == []


@each_sender
def test_an_instance_is_stored_as_its_json(typed, clock, counts, sender: Any):
    sender("orders.ship", OrderShipped(7, [Item(2)], "t", date(2026, 1, 31)))

    assert Message.objects.get(name="orders.ship").payload == GOOD | {"token": "t"}


def test_the_returned_row_of_an_instance_is_the_stored_row(typed, clock):
    sent = send("orders.ship", OrderShipped(7, on=date(2026, 1, 31)))

    assert sent.payload == Message.objects.get().payload
    assert sent.payload == {"order": 7, "items": [], "token": "", "on": "2026-01-31"}


def test_a_dict_that_matches_is_stored_as_it_was_given(typed, clock):
    send("orders.ship", {"order": 7, "on": date(2026, 1, 31)})

    assert Message.objects.get().payload == {"order": 7, "on": "2026-01-31"}


def test_the_values_of_a_typed_dict_may_be_what_its_annotations_say(handles, clock):
    handles("orders.ship", print, payload=PayloadType(OrderDict))

    send("orders.ship", OrderDict(order=7, on=date(2026, 1, 31)))

    assert Message.objects.get().payload == {"order": 7, "on": "2026-01-31"}
    with pytest.raises(PayloadMismatch, match=r"payload\.on: is missing"):
        send("orders.ship", {"order": 7})


def test_other_names_are_not_checked_and_take_no_instances(typed, clock, counts):
    send("orders.cancel", BAD)

    with pytest.raises(PayloadRejected, match="OrderShipped is not JSON"):
        send("orders.cancel", OrderShipped(7))
    assert counts() == {"pending": 1}


def test_a_class_is_known_as_long_as_its_handler_is_registered(handles, clock, counts):
    handles("orders.ship", print, payload=TYPED)
    handles("orders.ship", print)

    send("orders.ship", BAD)

    assert counts() == {"pending": 1}
    assert "orders.ship" not in payload_types.of_handlers


@pytest.mark.parametrize("rule", [["TOKEN"], lambda value: value])
def test_a_value_that_is_hidden_on_pages_is_not_quoted(typed, clock, settings, rule: Any):
    settings.DEADLETTER = {"REDACT": rule}

    with pytest.raises(PayloadMismatch) as refused:
        send("orders.ship", {"order": 7, "token": 4111})

    assert str(refused.value) == "payload.token: expected str, got int"


def test_another_error_of_the_class_reaches_the_sender(typed, clock, counts):
    with pytest.raises(KeyError, match="unlucky"):
        send("orders.ship", {"order": 13})

    assert counts() == {}


def test_an_import_refuses_what_send_refuses(typed, clock, counts):
    rows = [{"source_id": n, "name": "orders.ship", "payload": p} for n, p in ((1, GOOD), (2, BAD))]

    result = operations.import_messages(rows, origin="berlin", queue="default")

    assert result.imported == [1]
    assert result.refused == {2: f'{PLACE} "x"'}
    assert counts() == {"pending": 1}


def test_a_task_with_the_name_of_a_handler_is_no_message_of_it(typed, clock, counts):
    call = Outgoing("orders.ship", {"args": [], "kwargs": {}})
    row = {"source_id": 1, "name": "orders.ship", "kind": "task", "payload": call.payload}

    store_message(call, queue="default", kind="task")
    store_messages([call], queue="default", kind="task")
    result = operations.import_messages([row], origin="berlin", queue="default")

    assert result.refused == {}
    assert counts() == {"pending": 3}
    assert set(Message.objects.values_list("kind", flat=True)) == {"task"}
