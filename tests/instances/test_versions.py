"""The version of a flow that takes a turn, and versions that no worker has registered."""

from __future__ import annotations

import pytest

from deadletter import (
    ActivityCompleted,
    Started,
    instance_status,
    lifecycle,
    operations,
    orchestration,
    raise_event,
    start,
    testing,
)
from deadletter.backoff import BreakerPolicy
from deadletter.instances import Flow, Flows, flows, highest
from deadletter.models import Instance, Message, PoisonRecord, WorkerProcess
from deadletter.worker.breaker import Breakers
from deadletter.worker.crash_ledger import LedgerEntry, SlotState
from deadletter.worker.orphans import free
from deadletter.worker.registry import Registry, registry


def says(text):
    def flow(run, event):
        run.complete([text, run.version])

    return flow


@pytest.mark.parametrize(
    ("versions", "latest"),
    [
        (["1.9.0", "1.10.0"], "1.10.0"),
        (["2.0.0-beta.1", "2.0.0"], "2.0.0"),
        (["2.0.0-beta.2", "2.0.0-beta.10"], "2.0.0-beta.10"),
        (["1", "1.0.1"], "1.0.1"),
        ([], None),
    ],
)
def test_the_highest_version_is_found_as_people_count(versions, latest):
    known = {v: Flow(name="x", version=v, function=says(v)) for v in versions}

    assert highest(known) == latest
    assert highest(dict(reversed(known.items()))) == latest


def test_start_pins_the_version_that_is_given_or_the_highest(clock, flow):
    flow("talk", says("old"), version="1.0.0")
    flow("talk", says("new"), version="2.0.0")
    start("talk", instance="given", version="1.0.0")
    start("talk", instance="highest")

    testing.drain()

    assert instance_status("given").output == ["old", "1.0.0"]
    assert instance_status("highest").output == ["new", "2.0.0"]


def test_a_process_that_does_not_know_the_flow_leaves_the_version_to_the_worker(clock, flow):
    start("talk", instance="t")
    assert instance_status("t").version is None
    flow("talk", lambda run, event: None, version="3.0.0")
    testing.drain()
    assert instance_status("t").version == "3.0.0"

    # It stays with that one.
    flow("talk", says("new"), version="4.0.0")
    raise_event("t", "hello")
    testing.drain()

    assert instance_status("t").status == "running"


def test_an_unknown_version_waits_as_an_unknown_name_does(clock, policy, flow, counts, caplog):
    policy(max_attempts=3, unregistered_attempts=None)  # U5: the fourth claim poisons
    flow("talk", says("old"), version="1.0.0")
    start("talk", instance="t", version="2.0.0")

    for delay in (1, 2, 4):
        assert testing.drain().deferred == 1
        message = Message.objects.get()
        assert (message.available_at - clock.now).total_seconds() == delay
        assert (message.status, message.history) == (1, [])  # U13
        assert Instance.objects.filter(is_begun=False, revision=1).exists()
        clock.advance(delay)
    assert testing.drain().poisoned == 1

    assert "message name talk 2.0.0 (message" in caplog.text  # U7
    assert "will poison in 0 more attempts" in caplog.text
    row = instance_status("t")
    assert row.error_details.text == "poison: orchestration t exceeded 3 attempts (max 3)"
    assert row.error_details.last_error == "no handler is registered for 'talk 2.0.0'"
    # U14
    assert operations.remove_poison([PoisonRecord.objects.get().pk]).missing == []
    assert counts() == {}


def test_continue_as_new_to_a_missing_version_takes_the_same_path(clock, flow, policy):  # U14
    policy(max_attempts=1, unregistered_attempts=None)

    def leap(run, event):
        run.continue_as_new(1, version="9.0.0")

    flow("leap", leap)
    start("leap", instance="l")
    assert testing.drain().deferred == 1
    clock.advance(1)

    assert testing.drain().poisoned == 1

    row = instance_status("l")
    assert (row.execution_id, row.version, row.status) == (2, "9.0.0", "failed")


def test_an_activity_is_not_handled_by_a_flow_nor_an_event_by_a_handler(clock, flow, handles):
    flow("both", lambda run, event: run.call("both") if isinstance(event, Started) else None)
    start("both", instance="b")

    tally = testing.drain()

    assert (tally.completed, tally.deferred) == (1, 1)
    handles("plain", lambda message: None)
    start("plain", instance="p")
    assert testing.drain().deferred == 1


def test_an_old_worker_leaves_to_a_new_one_what_it_does_not_know(clock, handles):  # U10
    old, new = Flows(), Flows()
    for known in (old, new):
        known.add(Flow(name="grow", version="1", function=_grow))
    new.add(Flow(name="grow", version="2", function=_grow))
    start("grow", instance="g", version="2")

    assert testing.drain(handlers=Registry(old)).deferred == 1
    clock.advance(60)
    assert testing.drain(handlers=Registry(new)).completed == 1

    assert instance_status("g").status == "completed"


@pytest.mark.parametrize(
    ("handlers", "is_dead"),
    [
        ([["orchestration", "grow", "2"]], False),
        ([["orchestration", "grow", "1"]], True),
        ([["message", "grow"]], True),
    ],
)
def test_beyond_its_limit_a_version_waits_for_a_worker_that_knows_it(
    clock, counts, policy, handlers, is_dead
):
    policy(max_attempts=5, unregistered_attempts=1)
    old = Flows()
    old.add(Flow(name="grow", version="1", function=_grow))
    start("grow", instance="g", version="2")
    testing.drain(handlers=Registry(old))
    clock.advance(1)
    WorkerProcess.objects.create(
        name="new", host="h", pid=1, version="1", concurrency=1, queues=["default"],
        handlers=handlers, started_at=clock.now, seen_at=clock.now,
    )  # fmt: skip

    testing.drain(handlers=Registry(old))

    assert counts() == ({"dead": 1} if is_dead else {"scheduled": 1})


def test_an_activity_is_known_by_its_name_alone(clock, counts, flow, policy):
    policy(max_attempts=5, unregistered_attempts=1)
    flow("work", lambda run, event: run.call("charge") if isinstance(event, Started) else None)
    start("work", instance="w")
    testing.drain()
    clock.advance(1)
    WorkerProcess.objects.create(
        name="new", host="h", pid=1, version="1", concurrency=1, queues=["default"],
        handlers=[["message", "charge"]], started_at=clock.now, seen_at=clock.now,
    )  # fmt: skip

    testing.drain()

    assert counts() == {"scheduled": 1}


def _grow(run, event):
    run.complete()


def test_the_same_version_of_two_functions_is_refused():
    known = Flows()
    known.add(Flow(name="x", version="1", function=_grow))
    known.add(Flow(name="x", version="1", function=_grow))

    with pytest.raises(ValueError, match="'x' 1 has two functions"):
        known.add(Flow(name="x", version="1", function=says("other")))


async def _waits(run, event):
    pass


@pytest.mark.parametrize(
    ("name", "version", "function", "problem"),
    [
        ("a b", "1", _grow, "cannot name an orchestration"),
        ("a", "1 2", _grow, "is no version"),
        ("a", "1", _waits, "needs a plain function"),
    ],
)
def test_a_flow_that_cannot_work_is_refused_when_it_is_registered(name, version, function, problem):
    with pytest.raises(ValueError, match=problem):
        orchestration(name, version=version)(function)

    assert "a" not in flows.names()


def test_what_is_where_is_counted_by_kind(clock, flow, handles, policy):  # A20, A21
    policy(max_attempts=1, unregistered_attempts=None)

    def work(run, event):
        if isinstance(event, ActivityCompleted | Started):
            run.call("charge")
            run.call("later", delay=60)
            run.handled()

    flow("work", work)
    start("work", instance="w")
    start("nobody.knows", instance="x")
    testing.drain()
    clock.advance(1)
    testing.drain()

    # "charge" is known to nobody and died; its news failed the instance.
    assert operations.stats().kinds == {
        "orchestration": {"waiting": 0, "dead": 1},
        "activity": {"waiting": 1, "dead": 1},
    }
    assert [record.instance for record in operations.list_poison(instance="w")] == ["w"]
    [record] = operations.list_poison(kind="activity")  # A17
    assert (record.execution_id, record.name, record.activity_id) == (1, "charge", 1)


def test_the_limit_of_a_handler_is_not_that_of_a_flow_of_the_same_name(clock, flow, handles):
    handles("both", lambda message: None, max_attempts=1)
    flow("both", lambda run, event: run.complete("done"))
    start("both", instance="b")
    for _ in range(2):  # its worker dies twice; the queue allows 5 attempts
        assert len(lifecycle.claim(lease=1).messages) == 1
        clock.advance(2)

    tally = testing.drain()

    assert (tally.completed, tally.poisoned) == (1, 0)
    assert instance_status("b").output == "done"


def test_a_worker_that_died_charges_a_flow_by_the_number_of_its_queue(clock, flow, handles):
    handles("both", lambda message: None, max_attempts=1)
    flow("both", lambda run, event: run.complete("done"))
    start("both", instance="b")
    batch = lifecycle.claim()
    running = LedgerEntry(batch.messages[0].id, batch.token, SlotState.RUNNING)

    free("w", [running], "SIGKILL", using="default")

    assert instance_status("b").status == "running"
    assert testing.drain().completed == 1


def test_the_breaker_of_a_handler_does_not_hold_a_flow_of_the_same_name(db, flow, handles):
    handles("both", lambda message: None, breaker=BreakerPolicy(failures=1))
    flow("both", lambda run, event: run.complete("done"))
    breakers = Breakers(handlers=registry, worker="w", using="default")
    breakers.report(registry.get("both"), failed=True)
    assert breakers.hold(registry.get("both")) is not None
    start("both", instance="b")

    event = registry.find(lifecycle.claim().messages[0])

    assert breakers.hold(event) is None
