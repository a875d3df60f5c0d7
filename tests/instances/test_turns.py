"""A flow advances by events, in order; the decisions of a turn are stored with its end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from deadletter import (
    ActivityCompleted,
    ChildCompleted,
    InstanceNotRunning,
    InstanceRunning,
    MessageRejected,
    PayloadRejected,
    Raised,
    Started,
    TimerFired,
    UnknownQueue,
    cancel,
    instance_status,
    lifecycle,
    raise_event,
    send,
    start,
    testing,
    wait_for,
)
from deadletter.instances import control, flows, take_turn
from deadletter.lifecycle import sweep
from deadletter.models import Instance, InstanceEvent, Kind, Message


def order(run, event):
    """Three activities, a child, a timer and somebody's word, one after the other."""
    match event:
        case Started(input=given):
            run.state = {"order": given["order"], "done": []}
            for name in ("reserve", "charge", "label"):
                run.call(name, {"order": given["order"]})
        case ActivityCompleted(name=name, result=result):
            run.state["done"].append([name, result])
            if len(run.state["done"]) == 3:
                run.start_child("parcel", {"order": run.state["order"]})
        case ChildCompleted(output=output):
            run.state["parcel"] = output
            run.timer(60)
        case TimerFired():
            run.state["waited"] = True
        case Raised(name="delivered", data=data):
            run.complete({**run.state, "to": data})


def parcel(run, event):
    run.complete({"parcel": event.input["order"] * 10})


@pytest.fixture
def shop(flow, handles):
    flow("order", order)
    flow("parcel", parcel)
    for name in ("reserve", "charge", "label"):
        handles(name, lambda message: f"{message.name} {message.payload['order']}")


def test_a_flow_runs_to_its_end(clock, shop, timeline, counts):
    start("order", instance="order-17", input={"order": 17})
    testing.drain()
    clock.advance(60)
    testing.drain()
    raise_event("order-17", "delivered", "the neighbour")
    tally = testing.drain()

    row = wait_for("order-17", 0)
    assert (row.status, row.error, row.version, row.execution_id) == ("completed", None, "1.0.0", 1)
    assert row.output == {
        "order": 17,
        "done": [["reserve", "reserve 17"], ["charge", "charge 17"], ["label", "label 17"]],
        "parcel": {"parcel": 170},
        "waited": True,
        "to": "the neighbour",
    }
    assert tally.completed == 1
    assert counts() == {}
    assert timeline("order-17") == [
        "started",
        "called",
        "called",
        "called",
        "activity_completed",
        "activity_completed",
        "activity_completed",
        "child_started",
        "child_completed",
        "timer_set",
        "timer_fired",
        "raised",
        "completed",
    ]
    assert timeline("order-17:1.4") == ["started", "completed"]


def test_its_messages_form_a_stream_and_activities_do_not(clock, shop):
    start("order", instance="order-1", input={"order": 1})
    [first] = testing.sent()
    assert (first.kind, first.stream, first.instance) == (
        Kind.ORCHESTRATION,
        "instance:order-1",
        "order-1",
    )
    assert (first.execution_id, first.headers) == (1, {"version": "1.0.0"})

    raise_event("order-1", "hurry")
    assert {message.stream for message in testing.sent("order")} == {"instance:order-1"}


def test_a_turn_that_fails_leaves_nothing(clock, flow, counts, timeline):
    def hasty(run, event):
        run.call("charge")
        run.start_child("parcel", instance="parcel-1")
        run.timer(5)
        run.state["seen"] = True
        send("mail")
        raise RuntimeError("no")

    flow("hasty", hasty)
    start("hasty", instance="h-1")

    assert testing.drain().failed == 1

    assert counts() == {"failed": 1}
    row = Instance.objects.get()
    assert (row.state, row.pending, row.is_begun, row.next_activity_id) == (None, {}, False, 1)
    assert timeline("h-1") == []


def test_starting_joins_the_callers_transaction(clock, shop, counts):
    with transaction.atomic():
        start("order", instance="order-1", input={"order": 1})
        transaction.set_rollback(True)

    assert counts() == {}
    assert Instance.objects.count() == 0


def test_the_same_id_is_refused_while_it_runs_and_runs_again_after_its_end(clock, flow, counts):
    flow("parcel", parcel)
    start("parcel", instance="p-1", input={"order": 1})
    with pytest.raises(InstanceRunning, match="'p-1' is running"):
        start("parcel", instance="p-1", input={"order": 2})
    testing.drain()

    start("parcel", instance="p-1", input={"order": 2})
    testing.drain()

    row = instance_status("p-1")
    assert (row.execution_id, row.status, row.output) == (2, "completed", {"parcel": 20})
    assert [(entry["execution_id"], entry["status"]) for entry in row.history] == [(1, "completed")]


def test_continue_as_new_is_the_next_execution_and_drops_what_is_late(
    clock, flow, handles, timeline
):
    seen = []

    def count(run, event):
        seen.append((run.execution_id, type(event).__name__, run.input))
        if isinstance(event, Started) and run.input < 3:
            run.call("slow")
            run.continue_as_new(run.input + 1)
        elif isinstance(event, Started):
            run.complete(run.input)

    flow("count", count)
    handles("slow", lambda message: None)
    start("count", instance="c", input=1)

    testing.drain()

    assert seen == [(1, "Started", 1), (2, "Started", 2), (3, "Started", 3)]
    row = instance_status("c")
    assert (row.execution_id, row.output, row.status) == (3, 3, "completed")
    assert timeline("c").count("ignored") == 2


def test_what_is_raised_before_a_new_execution_began_is_handed_to_it_in_order(clock, flow):
    seen = []

    def talk(run, event):
        seen.append((run.execution_id, getattr(event, "data", "start")))
        if run.execution_id == 1 and isinstance(event, Raised):
            run.continue_as_new(None)

    flow("talk", talk)
    start("talk", instance="t")
    for number in range(4):
        raise_event("t", "say", number)

    testing.drain()

    assert seen == [(1, "start"), (1, 0), (2, "start"), (2, 1), (2, 2), (2, 3)]
    assert instance_status("t").inbox is None


def test_an_unused_end_of_a_run_is_ignored_and_said_so(clock, flow, handles, counts):
    def impatient(run, event):
        run.call("slow")
        run.complete("early")

    flow("impatient", impatient)
    handles("slow", lambda message: "late")
    start("impatient", instance="i")

    testing.drain()

    last = InstanceEvent.objects.filter(instance="i").last()
    assert (last.event, last.name) == ("ignored", "slow")
    assert last.data == {"why": "the instance has completed", "event": "activity_completed"}
    assert counts() == {}


def test_nothing_can_be_decided_after_the_end(clock, flow):
    def greedy(run, event):
        run.complete()
        run.call("charge")

    flow("greedy", greedy)
    start("greedy", instance="g")

    assert testing.drain().failed == 1
    assert "nothing can be decided after complete" in Message.objects.get().error


def test_a_result_that_is_no_json_fails_the_attempt_with_a_clear_error(clock, flow, handles):
    flow("one", lambda run, event: run.call("charge") if isinstance(event, Started) else None)
    handles("charge", lambda message: {"when": {1, 2}})
    start("one", instance="o")

    assert testing.drain().failed == 1

    assert "result.when: set is not JSON" in Message.objects.get(name="charge").error


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"instance": ""}, "instance: '' is not an id"),
        ({"instance": "a b"}, "instance: 'a b' is not an id"),
        ({"instance": "x" * 192}, "is not an id: 1 to 191 letters"),
        ({"instance": "\x00"}, "is not an id"),
        ({"instance": None}, "instance: None is not an id"),
        ({"instance": "a", "version": "1 2"}, "version: '1 2' is not a version"),
        ({"instance": "a", "input": {1}}, "input: set is not JSON"),
        ({"instance": "a", "input": "\x00"}, "NUL"),
    ],
)
def test_what_is_hostile_is_refused_at_the_door(clock, arguments, problem):
    with pytest.raises(MessageRejected, match=problem):
        start("order", **arguments)

    assert (Instance.objects.count(), Message.objects.count()) == (0, 0)


def test_the_longest_id_that_is_allowed_works(clock, flow, counts):
    flow("parcel", parcel)
    start("parcel", instance="x" * 191, input={"order": 1})

    assert testing.drain().completed == 1


def test_a_queue_that_does_not_exist_is_refused(clock, counts):
    with pytest.raises(UnknownQueue):
        start("order", instance="a", queue="nowhere")

    assert Instance.objects.count() == 0


def test_the_deepest_result_that_is_accepted_can_be_read_by_the_flow(clock, flow, handles):
    def nested(depth):
        return [nested(depth - 1)] if depth else 1

    def one(run, event):
        run.call("deep") if isinstance(event, Started) else run.complete("read")

    flow("one", one)
    handles("deep", lambda message: nested(63))
    start("one", instance="o")

    testing.drain()

    assert instance_status("o").output == "read"
    with pytest.raises(PayloadRejected, match="deeper than 63"):
        start("one", instance="p", input=nested(64))


def test_nothing_is_raised_for_an_instance_that_is_not_running(clock, flow):
    flow("parcel", parcel)
    with pytest.raises(InstanceNotRunning, match="there is none"):
        raise_event("p", "hurry")
    start("parcel", instance="p", input={"order": 1})
    testing.drain()

    with pytest.raises(InstanceNotRunning, match="it has completed"):
        raise_event("p", "hurry")


def test_cancelling_ends_children_removes_what_waits_and_tells_the_parent(
    clock, flow, handles, counts, standing, timeline
):
    def parent(run, event):
        if isinstance(event, Started):
            run.start_child(run.input or "middle", instance=f"{run.instance}x")
        else:
            run.complete(event.error.text)

    def middle(run, event):
        run.start_child("low", instance=f"{run.instance}x")
        run.timer(1000)

    def low(run, event):
        run.call("later", delay=1000)

    for function in (parent, middle, low):
        flow(function.__name__, function)
    start("parent", instance="a")
    testing.drain()
    assert counts() == {"scheduled": 2}

    assert cancel("ax", "wrong address") == ["ax", "axx"]
    assert counts() == {"pending": 2}
    testing.drain()

    assert standing("axx") == standing("ax") == ("failed", "cancelled: wrong address")
    assert instance_status("a").output == "cancelled: wrong address"
    assert timeline("ax")[-2:] == ["cancelled", "ignored"]
    assert counts() == {}
    with pytest.raises(InstanceNotRunning, match="it has failed"):
        cancel("ax")


def test_what_comes_for_a_forgotten_instance_is_dropped_and_said_so(clock, flow, counts, caplog):
    flow("wait", lambda run, event: None)
    start("wait", instance="o")
    testing.drain()
    raise_event("o", "hello")
    Instance.objects.all().delete()

    assert testing.drain().completed == 1

    assert "(raised) came for instance o, which no longer exists" in caplog.text
    assert counts() == {}
    assert Instance.objects.count() == 0


def test_a_start_whose_row_was_lost_makes_it_up(clock, flow):
    flow("parcel", parcel)
    start("parcel", instance="p", input={"order": 4})
    Instance.objects.all().delete()

    testing.drain()

    assert instance_status("p").output == {"parcel": 40}


@pytest.mark.django_db(databases=["default", "second"])
def test_an_instance_lives_in_the_database_it_was_started_in(clock, flow):
    def late(run, event):
        run.timer(5) if isinstance(event, Started) else run.complete("rung")

    flow("late", late)
    start("late", instance="o", using="second")
    testing.drain(using="second")
    clock.advance(5)
    testing.drain(using="second")

    assert instance_status("o", using="second").output == "rung"
    assert Instance.objects.count() == 0


@pytest.mark.parametrize("how", ["timer", "activity"])
def test_what_is_put_off_longer_than_its_queue_waits_is_still_done(
    clock, flow, handles, policy, standing, how
):
    policy(expire_timeout=timedelta(hours=1))
    handles("later", lambda message: None)

    def put_off(run, event):
        if not isinstance(event, Started):
            run.complete()
        elif how == "timer":
            run.timer(7200)
        else:
            run.call("later", delay=7200)

    flow("f", put_off)
    start("f", instance="f")
    testing.drain()
    assert Message.objects.get().expires_at == clock.now + timedelta(hours=3)

    clock.advance(7200)
    sweep()
    testing.drain()

    assert standing("f") == ("completed", None)


def test_a_child_of_the_longest_id_has_an_id_too(clock, flow, standing):
    flow("child", lambda run, event: run.complete())
    flow("f", lambda run, event: run.start_child("child") if isinstance(event, Started) else None)
    for last in "ab":
        start("f", instance="x" * 190 + last)

    testing.drain()

    children = Instance.objects.filter(name="child").order_by("parent")
    assert [child.parent[-1] for child in children] == ["a", "b"]
    assert {child.status for child in children} == {"completed"}


def test_a_child_started_while_its_parent_was_being_cancelled_is_cancelled_too(
    clock, flow, monkeypatch
):
    flow("child", lambda run, event: None)
    flow("f", lambda run, event: run.start_child("child", instance="c"))
    start("f", instance="f")
    message = lifecycle.claim().messages[0]
    look = control._streams

    def turn_ends_before_its_stream_is_locked(tx, family):
        monkeypatch.setattr(control, "_streams", look)
        take_turn(message, flows.versions("f"))
        return look(tx, family)

    monkeypatch.setattr(control, "_streams", turn_ends_before_its_stream_is_locked)

    assert cancel("f") == ["f", "c"]
