"""A death is reported to its instance in the transaction of the quarantine, with the same error."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import TestCase

from deadletter import (
    ActivityCompleted,
    ActivityFailed,
    ChildFailed,
    ErrorDetails,
    Permanent,
    Started,
    instance_status,
    lifecycle,
    operations,
    raise_event,
    send,
    signals,
    start,
    testing,
)
from deadletter.error_details import PERMANENT, Activity, FailedDeserialization, Orchestration
from deadletter.instances import flows, take_turn
from deadletter.lifecycle import quarantine
from deadletter.lifecycle.instances import on_death
from deadletter.models import Instance, InstanceEvent, OnPoison, PoisonRecord


def one(run, event):
    """Call one activity; complete with its result; leave a failure unanswered."""
    match event:
        case Started():
            run.call("charge", run.input)
        case ActivityCompleted(result=result):
            run.complete(result)


def above(run, event):
    if isinstance(event, Started):
        run.start_child(run.input[0], run.input[1:], instance=f"{run.instance}+")


def refuse(message):
    raise Permanent("no money")


@pytest.fixture
def family(flow, handles):
    """`start("above", instance="a", input=["above", "one"])`: a, a+ and a++."""
    flow("one", one)
    flow("above", above)
    handles("charge", refuse)


def the_error(instance: str = "o", **changes) -> ErrorDetails:
    given = {
        "attempts": 1,
        "max_attempts": 5,
        "last_error": "deadletter.exceptions.Permanent: no money",
        "message_type": Activity("charge", 1),
        "instance": instance,
        "execution_id": 1,
        "message_id": PoisonRecord.objects.get().message_id,
        "verdict": PERMANENT,
    }
    return ErrorDetails.Poison(**(given | changes))


def test_a_poisoned_activity_tells_its_flow(clock, flow, handles, counts):
    heard = []

    def careful(run, event):
        if isinstance(event, Started):
            run.call("charge")
        elif isinstance(event, ActivityFailed):
            heard.append(event)
            run.complete("sorry")

    flow("careful", careful)
    handles("charge", refuse)
    start("careful", instance="o")

    testing.drain()

    [failed] = heard
    assert (failed.activity_id, failed.name, failed.error) == (1, "charge", the_error())
    assert failed.error.text == "poison: activity charge#1 failed permanently at attempt 1 (max 5)"
    assert (failed.error.category, failed.error.is_retryable) == ("poison", False)
    assert instance_status("o").output == "sorry"
    assert counts() == {"dead": 1}


def test_unanswered_it_fails_the_instance_with_that_very_error(clock, family, counts, timeline):
    start("one", instance="o")

    testing.drain()

    row = instance_status("o")
    assert (row.status, row.error_details) == ("failed", the_error())
    assert row.failed_by == PoisonRecord.objects.get().message_id
    assert timeline("o") == ["started", "called", "activity_failed", "failed"]
    assert counts() == {"dead": 1}


@pytest.mark.parametrize("answer", ["handled", "call", "timer", "state"])
def test_any_decision_answers_a_failure_and_a_change_of_state_does_not(
    clock, flow, handles, answer
):
    def careful(run, event):
        if isinstance(event, Started):
            run.call("charge")
        elif isinstance(event, ActivityFailed):
            match answer:
                case "handled":
                    run.handled()
                case "call":
                    run.call("later", delay=60)
                case "timer":
                    run.timer(60)
                case "state":
                    run.state["failed"] = True

    flow("careful", careful)
    handles("charge", refuse)
    start("careful", instance="o")

    testing.drain()

    assert instance_status("o").status == ("failed" if answer == "state" else "running")


def test_the_owner_is_told_in_the_transaction_of_the_quarantine(clock, family, monkeypatch, counts):
    start("one", instance="o")
    take_turn(lifecycle.claim().messages[0], flows.versions("one"))
    activity = lifecycle.claim()
    monkeypatch.setattr(quarantine, "_announce", _broken)

    with pytest.raises(RuntimeError, match="broken"):
        lifecycle.abandon(activity.token, activity.ids[0], force_poison=True)

    # Neither the record nor the news of it.
    assert counts() == {"active": 1}
    monkeypatch.undo()
    lifecycle.abandon(activity.token, activity.ids[0], force_poison=True)
    assert counts() == {"pending": 1, "dead": 1}


def _broken(*args):
    raise RuntimeError("broken")


def test_the_error_of_a_child_reaches_parent_and_grandparent_unchanged(clock, family, counts):
    start("above", instance="a", input=["above", "one"])

    testing.drain()

    rows = [instance_status(id) for id in ("a", "a+", "a++")]
    assert [row.status for row in rows] == ["failed"] * 3
    assert [row.error_details for row in rows] == [the_error("a++")] * 3
    assert {row.failed_by for row in rows} == {PoisonRecord.objects.get().message_id}
    assert counts() == {"dead": 1}


def test_a_parent_that_handles_the_failure_goes_on(clock, family, flow, standing):
    def wise(run, event):
        if isinstance(event, ChildFailed):
            run.complete(f"without {event.instance}: {event.error.category}")
        else:
            above(run, event)

    flow("wise", wise)
    start("above", instance="a", input=["wise", "one"])

    testing.drain()

    assert instance_status("a+").output == "without a++: poison"
    assert standing("a++")[0] == "failed"
    # "above" leaves a completed child unanswered, which is no failure.
    assert standing("a") == ("running", None)


def test_a_poisoned_first_message_fails_its_instance(clock, policy, standing, timeline):
    policy(max_attempts=3, unregistered_attempts=None)
    start("nobody.knows", instance="o")
    for _ in range(4):
        testing.drain()
        clock.advance(60)

    row = instance_status("o")
    record = PoisonRecord.objects.get()
    assert row.status == "failed"
    assert row.error_details == ErrorDetails.Poison(
        attempts=3,
        max_attempts=3,
        last_error="no handler is registered for 'nobody.knows'",
        message_type=Orchestration("o", 1),
        instance="o",
        execution_id=1,
        message_id=record.message_id,
    )
    assert standing("o")[1] == "poison: orchestration o exceeded 3 attempts (max 3)"
    assert timeline("o") == ["failed"]


def test_the_row_is_made_when_the_poison_was_all_there_was_of_an_instance(clock, policy, standing):
    policy(max_attempts=1, unregistered_attempts=None)
    start("nobody.knows", instance="o")
    Instance.objects.all().delete()
    testing.drain()
    clock.advance(60)

    testing.drain()

    assert standing("o") == ("failed", "poison: orchestration o exceeded 1 attempts (max 1)")
    assert instance_status("o").name == "nobody.knows"


def test_a_flow_that_raises_until_the_end_fails_its_instance_and_its_parent(clock, family, flow):
    def broken(run, event):
        raise Permanent("flawed")

    flow("broken", broken)
    start("above", instance="a", input=["broken"])

    testing.drain()

    child, parent = instance_status("a+"), instance_status("a")
    assert (child.status, parent.status) == ("failed", "failed")
    assert child.error_details == parent.error_details
    assert child.error_details.message_type == Orchestration("a+", 1)
    assert child.error_details.last_error.endswith("Permanent: flawed")


@pytest.mark.parametrize("payload", ['{"event"', "[1]", '{"event": "activity_failed"}'])
def test_a_damaged_event_fails_alone_and_then_its_instance(
    clock, policy, family, payload, standing
):
    policy(max_attempts=2)
    start("one", instance="o")
    start("one", instance="other", input=1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_message SET payload = %s WHERE instance = 'o'", [payload])
    for _ in range(3):
        testing.drain()
        clock.advance(60)

    assert standing("o")[0] == "failed"
    kind = instance_status("o").error_details.message_type
    assert isinstance(kind, FailedDeserialization if payload[0:9] == '{"event"' else Orchestration)
    assert standing("other")[0] == "failed"  # of its own activity
    assert (
        standing("other")[1] == "poison: activity charge#1 failed permanently at attempt 1 (max 2)"
    )


def test_poison_while_other_messages_of_the_instance_run(clock, flow, handles, counts):  # A22
    heard = []

    def two(run, event):
        if isinstance(event, Started):
            run.call("charge")
            run.call("pack")
        elif isinstance(event, ActivityFailed):
            heard.append("failed")
            run.handled()
        else:
            heard.append(event.result)
            run.complete()

    flow("two", two)
    handles("charge", refuse)
    handles("pack", lambda message: "packed")
    start("two", instance="o")
    take_turn(lifecycle.claim().messages[0], flows.versions("two"))
    batch = lifecycle.claim(limit=2)

    lifecycle.abandon(batch.token, batch.ids[0], force_poison=True)
    assert counts() == {"active": 1, "pending": 1, "dead": 1}
    testing.drain()
    assert (heard, instance_status("o").status) == (["failed"], "running")
    lifecycle.release(batch.token, [batch.ids[1]])
    testing.drain()

    assert (heard, instance_status("o").status) == (["failed", "packed"], "completed")


@pytest.mark.parametrize("destination", list(OnPoison))
def test_the_owner_hears_of_it_wherever_the_dead_go(clock, family, policy, standing, destination):
    dead_queue = policy("graves") if destination == OnPoison.DEAD_QUEUE else None
    policy(on_poison=destination, dead_queue=dead_queue)
    start("one", instance="o")

    testing.drain(["default"])

    text = "poison: activity charge#1 failed permanently at attempt 1 (max 5)"
    assert standing("o") == ("failed", text)


def test_the_owner_hears_of_expiry(clock, family, policy, standing):
    policy(expire_timeout=3600)
    start("one", instance="o")
    clock.advance(3601)

    assert lifecycle.sweep().expired == 1

    assert standing("o") == ("failed", "poison: orchestration o expired after 0 attempts (max 5)")
    assert instance_status("o").error_details.last_error == "expired before it was handled"


def test_the_owner_hears_of_poison_by_hand(clock, family, standing):
    start("one", instance="o")
    [message] = testing.sent()

    operations.poison([message.pk], why="fraud")

    text = "poison: orchestration o was poisoned by an operator after 0 attempts (max 5)"
    assert standing("o") == ("failed", text)
    assert instance_status("o").error_details.last_error == "fraud"


def test_a_timer_that_is_poison_fails_its_instance(clock, flow, standing):
    flow("late", lambda run, event: run.timer(60) and None)
    start("late", instance="o")
    testing.drain()
    [timer] = testing.sent("deadletter.timer")

    operations.poison([timer.pk], why="no time")

    text = "poison: orchestration o was poisoned by an operator after 0 attempts (max 5)"
    assert standing("o") == ("failed", text)


def test_what_is_stale_fails_nobody(clock, flow, standing):
    """Poison of an earlier execution, or of a timer nobody waits for any more."""

    def restless(run, event):
        if isinstance(event, Started) and run.execution_id == 1:
            run.timer(60)
            run.continue_as_new()

    flow("restless", restless)
    start("restless", instance="o")
    testing.drain()
    [timer] = testing.sent("deadletter.timer")

    operations.poison([timer.pk], why="no time")

    assert standing("o") == ("running", None)


def test_plain_poison_asks_for_no_owner(clock, monkeypatch):
    monkeypatch.setattr(on_death, "notify_instances", _broken)
    ids = [send("mail").pk for _ in range(3)]

    operations.poison(ids, why="x")

    assert PoisonRecord.objects.count() == 3


def test_a_waiting_message_of_an_instance_is_not_removed_behind_its_back(clock, family, counts):
    start("one", instance="o")
    [message] = testing.sent()

    found = operations.remove([message.pk])

    assert found.refused == {
        message.pk: f"instance o waits for message {message.pk}; poison it, so that its flow "
        "receives the failure, or cancel the instance"
    }
    assert counts() == {"pending": 1}


def test_listeners_are_told_of_ends(clock, family, flow, handles):
    heard = []

    def listen(sender, **event):
        heard.append((event["instance"], str(event.get("error", "completed"))[:16]))

    for signal in (signals.instance_completed, signals.instance_failed):
        signal.connect(listen)
    try:
        with TestCase.captureOnCommitCallbacks(execute=True):
            start("one", instance="o")
            testing.drain()
            handles("charge", lambda message: 1)
            start("one", instance="p")
            testing.drain()
    finally:
        for signal in (signals.instance_completed, signals.instance_failed):
            signal.disconnect(listen)

    assert heard == [("o", "poison: activity"), ("p", "completed")]


def test_missed_events_are_kept_whole(clock, family):
    start("one", instance="o")
    raise_event("o", "note", "x" * 10_000)
    [started, raised] = testing.sent()
    operations.poison([started.pk], why="x")

    testing.drain()

    line = InstanceEvent.objects.get(event="ignored")
    assert line.data["missed"] == {"event": "raised", "name": "note", "data": "x" * 10_000}
    assert line.message_id == raised.pk
