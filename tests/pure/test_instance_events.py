"""Events and errors survive their JSON; what is damaged is refused as one message's failure."""

from __future__ import annotations

import json

import pytest

from deadletter import (
    ActivityCompleted,
    ActivityFailed,
    ChildCompleted,
    ChildFailed,
    ErrorDetails,
    Raised,
    Started,
    TimerFired,
)
from deadletter.error_details import Activity, FailedDeserialization, Orchestration, Plain
from deadletter.exceptions import Undecodable
from deadletter.instance_events import KINDS, as_payload, read_event

ERROR = ErrorDetails.Poison(
    attempts=5,
    max_attempts=3,
    last_error="no",
    message_type=Activity("charge", 7),
    instance="order-1",
    execution_id=2,
    message_id=99,
)
EVENTS = [
    Started(input={"a": [1, None]}),
    ActivityCompleted(activity_id=1, name="charge", result=[1]),
    ActivityFailed(activity_id=1, name="charge", error=ERROR),
    ChildCompleted(activity_id=2, name="parcel", instance="p", output="x"),
    ChildFailed(activity_id=2, name="parcel", instance="p", error=ERROR),
    TimerFired(activity_id=3),
    Raised(name="hurry", data=None),
]


def through_json(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_reads_back_equal(event):
    assert read_event(through_json(as_payload(event))) == event


def test_every_kind_of_event_is_among_them():
    assert {type(event) for event in EVENTS} == set(KINDS.values())


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "started",
        {},
        {"event": "nothing"},
        {"event": ["started"]},
        {"event": "started"},
        {"event": "timer_fired", "activity_id": "1"},
        {"event": "timer_fired", "activity_id": True},
        {"event": "raised", "name": 1, "data": None},
        {"event": "activity_failed", "activity_id": 1, "name": "x", "error": None},
        {"event": "activity_failed", "activity_id": 1, "name": "x", "error": {"text": "x"}},
        {"event": "activity_failed", "activity_id": 1, "name": "x", "error": {"category": "odd"}},
        {
            "event": "activity_failed",
            "activity_id": 1,
            "name": "x",
            "error": {"text": [], "category": "poison"},
        },
    ],
)
def test_what_is_no_event_is_undecodable(payload):
    with pytest.raises(Undecodable):
        read_event(payload)


@pytest.mark.parametrize(
    "kind",
    [
        Activity("charge", None),
        Orchestration("order-1", 1),
        Plain("mail"),
        FailedDeserialization("bad"),
    ],
)
def test_an_error_reads_back_equal(kind):
    error = ErrorDetails.Poison(attempts=1, max_attempts=None, last_error=None, message_type=kind)

    assert ErrorDetails.from_dict(through_json(error.as_dict())) == error


@pytest.mark.parametrize(
    ("category", "retryable"),
    [
        ("infrastructure", True),
        ("configuration", False),
        ("application", False),
        ("poison", False),
    ],
)
def test_only_trouble_of_the_infrastructure_passes_by_itself(category, retryable):
    error = ErrorDetails(category=category, text="x")

    assert error.is_retryable is retryable
    assert ErrorDetails.from_dict(error.as_dict()) == error


def test_a_category_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="category: expected one of"):
        ErrorDetails(category="odd", text="x")


def test_an_exception_becomes_an_error_of_the_application():
    error = ErrorDetails.Application(KeyError("id"))

    assert (error.category, error.text) == ("application", "KeyError: 'id'")
