"""A retry reopens the instances that the poison failed, unless they have gone on since."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import (
    ActivityCompleted,
    ActivityFailed,
    ChildCompleted,
    ChildFailed,
    Permanent,
    Raised,
    Started,
    cancel,
    instance_status,
    lifecycle,
    operations,
    raise_event,
    start,
    testing,
)
from deadletter.instances import flows, take_turn
from deadletter.models import Message, PoisonRecord

pytestmark = pytest.mark.slow


def many(run, event):
    """Call what the input names; complete with all results when they are in."""
    match event:
        case Started():
            for name in run.input:
                run.call(name, delay=60 if name == "send" else 0)
        case ActivityCompleted(name=name, result=result):
            run.state[name] = result
            if len(run.state) == len(run.input):
                run.complete(run.state)


def above(run, event):
    match event:
        case Started():
            run.start_child(run.input[0], run.input[1:], instance=f"{run.instance}+")
        case ChildCompleted(output=output):
            run.complete(output)


class Shop:
    """Activities that refuse until they are repaired."""

    def __init__(self) -> None:
        self.broken = {"charge", "pack"}
        self.calls: list[str] = []

    def __call__(self, message):
        self.calls.append(message.name)
        if message.name in self.broken:
            raise Permanent(f"{message.name} is broken")
        return f"{message.name}d"


@pytest.fixture
def shop(flow, handles):
    shop = Shop()
    flow("many", many)
    flow("above", above)
    for name in ("charge", "pack", "send"):
        handles(name, shop)
    return shop


def record(name: str) -> PoisonRecord:
    return PoisonRecord.objects.get(name=name)


def retry(*names: str):
    return operations.retry_poison([record(name).pk for name in names])


def test_a_retried_activity_reopens_its_instance_and_it_completes(
    clock, shop, counts, timeline, standing
):
    start("many", instance="o", input=["charge"])
    testing.drain()
    assert standing("o")[0] == "failed"
    shop.broken.clear()

    found = retry("charge")

    assert (len(found.retried), found.refused) == (1, {})
    row = instance_status("o")
    assert (row.status, row.error, row.failed_by, row.ended_at) == ("running", None, None, None)
    [entry] = row.history
    assert entry["status"] == "failed"
    assert (
        entry["error"]["text"]
        == "poison: activity charge#1 failed permanently at attempt 1 (max 5)"
    )
    assert counts() == {"pending": 1}
    testing.drain()
    assert instance_status("o").output == {"charge": "charged"}
    assert timeline("o") == [
        "started",
        "called",
        "activity_failed",
        "failed",
        "reopened",
        "activity_completed",
        "completed",
    ]
    assert counts() == {}


def test_a_retry_that_poisons_again_fails_it_again_and_can_be_retried_again(clock, shop, standing):
    start("many", instance="o", input=["charge"])
    testing.drain()
    for times in (2, 3):
        assert retry("charge").refused == {}
        testing.drain()
        assert standing("o")[0] == "failed"
        assert record("charge").poison_count == times
    shop.broken.clear()

    retry("charge")
    testing.drain()

    assert standing("o") == ("completed", None)
    assert len(instance_status("o").history) == 3


def test_a_retried_orchestration_message_goes_on_where_it_stood(clock, flow, shop, standing):
    repaired = []

    def flawed(run, event):
        if not repaired:
            raise Permanent("a bug")
        many(run, event)

    flow("flawed", flawed)
    start("flawed", instance="o", input=["send"])
    raise_event("o", "hurry", {"by": "noon"})
    testing.drain()
    assert standing("o") == (
        "failed",
        "poison: orchestration o failed permanently at attempt 1 (max 5)",
    )
    repaired.append(True)

    assert retry("flawed").refused == {}
    testing.drain()
    clock.advance(60)
    testing.drain()

    assert instance_status("o").output == {"send": "sendd"}


def test_what_came_while_it_was_failed_is_sent_again(clock, shop, timeline, counts):
    start("many", instance="o", input=["charge", "send"])
    testing.drain()
    clock.advance(60)
    testing.drain()
    assert timeline("o")[-1] == "ignored"
    shop.broken.clear()

    retry("charge")
    assert counts() == {"pending": 2}
    testing.drain()

    assert instance_status("o").output == {"send": "sendd", "charge": "charged"}
    assert shop.calls.count("send") == 1


def test_two_that_died_are_retried_together_or_in_the_order_that_is_named(
    clock, shop, standing, counts
):
    start("many", instance="o", input=["charge", "pack"])
    testing.drain()
    first, second = record("charge"), record("pack")
    assert instance_status("o").failed_by == first.message_id

    assert operations.retry_poison([second.pk]).refused == {
        second.pk: "instance o failed for another reason: poison: activity charge#1 failed "
        f"permanently at attempt 1 (max 5) (retry message {first.message_id} first, or both "
        "together)"
    }
    shop.broken.clear()
    assert sorted(operations.retry_poison([second.pk, first.pk]).retried) == [first.pk, second.pk]
    testing.drain()

    assert standing("o") == ("completed", None)
    assert counts() == {}


def test_the_chain_above_is_reopened_with_it(clock, shop, standing, counts):
    start("above", instance="a", input=["above", "many", "charge"])
    testing.drain()
    assert {standing(id)[0] for id in ("a", "a+", "a++")} == {"failed"}
    shop.broken.clear()

    retry("charge")

    assert {standing(id) for id in ("a", "a+", "a++")} == {("running", None)}
    testing.drain()
    assert {standing(id) for id in ("a", "a+", "a++")} == {("completed", None)}
    assert instance_status("a").output == {"charge": "charged"}
    assert counts() == {}


def refusal(name: str = "charge") -> str:
    [why] = retry(name).refused.values()
    return why


def careful(run, event):
    if isinstance(event, ActivityFailed | ChildFailed):
        run.handled()
    elif isinstance(event, Started) and run.input == "child":
        run.start_child("many", ["charge"], instance="c")
    elif isinstance(event, Started):
        run.call("charge")


def test_refused_when_the_flow_has_handled_the_failure(clock, shop, flow, counts):
    flow("careful", careful)
    start("careful", instance="o")
    testing.drain()

    assert refusal() == "instance o has handled the failure of charge#1 and continued"
    assert counts() == {"dead": 1}


def test_refused_when_the_parent_has_handled_it(clock, shop, flow, standing):
    flow("careful", careful)
    start("careful", instance="p", input="child")
    testing.drain()

    assert refusal() == "instance p has handled the failure of c and continued"
    assert standing("c")[0] == "failed"


def test_refused_when_the_instance_was_started_again(clock, shop):
    start("many", instance="o", input=["charge"])
    testing.drain()
    start("many", instance="o", input=["send"])

    assert refusal() == "instance o has continued as execution 2"


def test_refused_when_it_was_cancelled(clock, shop, flow):
    flow("careful", careful)
    start("careful", instance="o")
    testing.drain()
    cancel("o", "too late")

    assert refusal() == "instance o failed for another reason: cancelled: too late"


def test_refused_when_the_parent_was_cancelled_and_when_it_was_started_again(clock, shop):
    start("above", instance="a", input=["many", "charge"])
    lifecycle_only("a")
    cancel("a", "x")
    testing.drain()
    assert PoisonRecord.objects.count() == 0

    start("above", instance="b", input=["many", "charge"])
    testing.drain()
    start("above", instance="b", input=["many", "send"])
    # Its child is started by the new execution once that has its turn.
    assert refusal() == "b, the parent of b+, has continued as execution 2"


def lifecycle_only(instance: str) -> None:
    """Nothing has run yet: only the row and its first message are there."""
    assert instance_status(instance).is_begun is False


def test_refused_when_the_instance_no_longer_exists(clock, shop):
    start("many", instance="o", input=["charge"])
    testing.drain()
    instance_status("o").delete()

    assert refusal() == "its instance o no longer exists"


def test_the_news_of_a_failure_is_withdrawn_while_nobody_has_heard_it(clock, shop, counts, flow):
    flow("careful", careful)
    start("careful", instance="o")
    activity = first_activity("careful")
    lifecycle.abandon(activity.token, activity.ids[0], force_poison=True)
    assert counts() == {"pending": 1, "dead": 1}
    shop.broken.clear()

    assert retry("charge").refused == {}

    assert [message.name for message in testing.sent()] == ["charge"]
    testing.drain()
    assert instance_status("o").status == "running"
    assert shop.calls == ["charge"]


def test_refused_while_the_flow_is_being_told(clock, shop, flow, counts):
    flow("careful", careful)
    start("careful", instance="o")
    activity = first_activity("careful")
    lifecycle.abandon(activity.token, activity.ids[0], force_poison=True)
    lifecycle.claim()

    assert refusal() == "instance o is handling the failure of charge#1 now; try again"
    assert counts() == {"active": 1, "dead": 1}


def first_activity(name: str) -> lifecycle.Batch:
    take_turn(lifecycle.claim().messages[0], flows.versions(name))
    return lifecycle.claim()


def test_an_orchestration_message_stays_in_its_queue(clock, flow, policy):
    def flawed(run, event):
        raise Permanent("a bug")

    policy("other")
    flow("flawed", flawed)
    start("flawed", instance="o")
    testing.drain()

    found = operations.retry_poison([record("flawed").pk], queue="other")

    assert list(found.refused.values()) == [
        "it drives instance o, whose messages stay in one queue, in order"
    ]


def test_removing_the_poison_leaves_the_instance_failed(clock, shop, standing, counts):
    start("many", instance="o", input=["charge"])
    testing.drain()

    operations.remove_poison([record("charge").pk])

    assert standing("o")[0] == "failed"
    assert counts() == {}


def test_a_retry_refused_by_the_queue_reopens_nothing(clock, shop, standing):
    start("many", instance="o", input=["charge"])
    testing.drain()

    found = operations.retry_poison([record("charge").pk], queue="nowhere")

    assert "does not exist" in next(iter(found.refused.values()))
    assert standing("o")[0] == "failed"


def test_an_edited_start_is_the_input_of_its_instance(clock, flow, policy):
    policy(max_attempts=1)

    def divide(run, event):
        run.complete(100 / run.input["by"])

    flow("divide", divide)
    start("divide", instance="d", input={"by": 0})
    testing.drain()

    operations.retry_poison([record("divide").pk], payload={"event": "started", "input": {"by": 5}})
    testing.drain()

    assert (instance_status("d").input, instance_status("d").output) == ({"by": 5}, 20)


def test_what_was_raised_for_an_earlier_execution_is_not_lost_with_a_failed_one(
    clock, flow, policy
):
    policy(max_attempts=1, stream_policy="release")
    broken, heard = [True], []

    def again(run, event):
        match event:
            case Started(input=None):
                run.continue_as_new("again")
            case Started() if broken:
                raise ValueError("broken")
            case Raised(name=name):
                heard.append(name)

    flow("again", again)
    start("again", instance="a")
    raise_event("a", "hello")
    hello = Message.objects.latest("pk")
    first = lifecycle.claim(limit=1).messages[0]
    take_turn(first, flows.versions("again"))
    # What was raised comes after the second start has failed the instance.
    Message.objects.filter(pk=hello.pk).update(available_at=clock.now + timedelta(seconds=60))
    testing.drain()
    assert instance_status("a").status == "failed"
    clock.advance(60)
    testing.drain()

    broken.clear()
    assert retry("again").refused == {}
    testing.drain()

    assert heard == ["hello"]


def test_a_child_is_retried_whose_parent_did_not_wait_for_it(clock, shop, flow, standing):
    def leave(run, event):
        run.start_child("many", ["send"], instance="c")
        run.complete()

    shop.broken = {"send"}
    flow("leave", leave)
    start("leave", instance="p")
    testing.drain()
    clock.advance(60)
    testing.drain()
    assert (standing("p")[0], standing("c")[0]) == ("completed", "failed")

    shop.broken.clear()
    assert retry("send").refused == {}
    testing.drain()

    assert standing("c") == ("completed", None)


@pytest.mark.parametrize("died_of", ["activity", "event"])
@pytest.mark.parametrize("dies_again", [False, True])
def test_what_was_moved_to_a_dead_queue_reopens_its_instance_from_there(
    clock, shop, flow, policy, standing, timeline, died_of, dies_again
):
    broken = [True]

    def once(run, event):
        if isinstance(event, ActivityCompleted):
            run.complete("done")
        elif isinstance(event, Started):
            if died_of == "event" and broken:
                raise Permanent("broken")
            run.call("charge")

    flow("once", once)

    def over(run, event):
        if isinstance(event, Started):
            run.start_child("once", instance="o")

    flow("over", over)
    policy(on_poison="dead_queue", dead_queue=policy("dead"))
    start("over", instance="top")
    testing.drain()
    assert (standing("o")[0], standing("top")[0]) == ("failed", "failed")

    moved = Message.objects.get(queue__name="dead")
    if dies_again:
        # By hand; the instance must not be told of that when it goes on.
        operations.poison([moved.pk], why="looked at")
        testing.drain()
    shop.broken.clear()
    broken.clear()
    if dies_again:
        answer = operations.retry_poison([PoisonRecord.objects.get().pk], queue="default")
    else:
        answer = operations.retry_dead([moved.pk])
        assert Message.objects.filter(pk=moved.source_id).exists()
    assert answer.refused == {}
    testing.drain()

    assert standing("o") == ("completed", None)
    assert "activity_failed" not in timeline("o")[timeline("o").index("reopened") :]
    assert "child_completed" in timeline("top")
