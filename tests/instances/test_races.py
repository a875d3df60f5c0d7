"""Races of instances: two starts, events during a turn, and a flow that hangs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections

from deadletter import (
    ActivityCompleted,
    InstanceRunning,
    LeaseLost,
    Started,
    acancel,
    ainstance_status,
    araise_event,
    astart,
    await_for,
    cancel,
    instance_status,
    lifecycle,
    operations,
    raise_event,
    send,
    start,
    testing,
)
from deadletter.instances import flows, take_turn
from deadletter.models import Instance, InstanceEvent, Message, PoisonRecord, Queue
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from tests.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def in_threads(*works: Any) -> list[Any]:
    """Do the works side by side; return what each returned or raised."""
    found: list[Any] = [None] * len(works)
    together = threading.Barrier(len(works))

    def do(place: int, work: Any) -> None:
        together.wait(PATIENCE)
        try:
            found[place] = work()
        except Exception as error:  # noqa: BLE001 - returned
            found[place] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=do, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_of_several_that_start_the_same_id_one_does(counts):
    def begin():
        return start("nobody.knows", instance="o").id

    found = in_threads(*[begin] * 5)

    assert found.count("o") == 1
    assert sum(isinstance(what, InstanceRunning) for what in found) == 4
    assert Instance.objects.get().execution_id == 1
    assert counts() == {"pending": 1}


def test_a_turn_whose_lease_is_gone_changes_nothing(clock, flow, counts):
    flow("call", lambda run, event: run.call("charge"))
    start("call", instance="o")
    stale = lifecycle.claim(lease=60).messages[0]
    clock.advance(61)
    fresh = lifecycle.claim(lease=60).messages[0]

    with pytest.raises(LeaseLost):
        take_turn(stale, flows.versions("call"))

    assert (instance_status("o").pending, InstanceEvent.objects.count()) == ({}, 0)
    assert counts() == {"active": 1}
    take_turn(fresh, flows.versions("call"))
    assert counts() == {"pending": 1}


def test_a_result_whose_lease_is_gone_is_not_told(clock, flow, handles, counts):
    def stolen(message):
        Message.objects.filter(pk=message.id).update(lease_token="0" * 16)
        return 1

    flow("call", lambda run, event: run.call("charge") and None)
    handles("charge", stolen)
    start("call", instance="o")

    assert testing.drain().lost == 1

    assert counts() == {"active": 1}
    assert not Message.objects.filter(kind="orchestration").exists()


@pytest.mark.postgresql_only(reason="SQLite has one writer: nothing changes during a turn")
def test_a_turn_is_taken_again_when_its_instance_changed_meanwhile(flow, timeline):
    """The flow runs before anything is locked; what it decided on an older row is undone."""
    tries = []

    def slow(run, event):
        tries.append(run.pending)
        run.call("charge")
        if len(tries) == 1:
            # Somebody cancels while the flow is deciding, from another connection.
            [found] = in_threads(lambda: cancel("o", "too late"))
            assert found == ["o"]

    flow("slow", slow)
    start("slow", instance="o")

    take_turn(lifecycle.claim().messages[0], flows.versions("slow"))

    assert len(tries) == 1  # the second try finds it ended, and asks the flow nothing
    assert timeline("o") == ["cancelled", "ignored"]
    assert not Message.objects.exists()


@pytest.mark.postgresql_only(reason="SQLite has one writer: a handler in a transaction holds it")
def test_a_flow_that_hangs_holds_up_nobody_who_reports_in_its_stream(flow, handles):
    inside, leave = threading.Event(), threading.Event()

    def hang(run, event):
        inside.set()
        assert leave.wait(PATIENCE)

    flow("hang", hang)
    start("hang", instance="o")
    batch = lifecycle.claim()
    found: list[Any] = []

    def turn():
        found.extend(in_threads(lambda: take_turn(batch.messages[0], flows.versions("hang"))))

    thread = threading.Thread(target=turn)
    thread.start()
    assert inside.wait(PATIENCE)

    # As the pump does with a turn that takes too long; it must not wait for it.
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '2s'")
    failure = lifecycle.Failure(batch.ids[0], error="took too long", delay=60)
    lifecycle.fail(batch.token, [failure])
    raise_event("o", "hello")
    leave.set()
    thread.join(PATIENCE)

    assert isinstance(found[0], LeaseLost)
    assert Instance.objects.get().is_begun is False


def test_poison_told_by_many_at_once_reaches_each_flow_once(flow):
    Queue.objects.filter(name="default").update(max_attempts=1)
    flow("call", lambda run, event: run.call("nowhere") if isinstance(event, Started) else None)
    ids = [f"o{number}" for number in range(10)]
    for id in ids:
        start("call", instance=id)
    testing.drain()
    activities = list(Message.objects.values_list("pk", flat=True))
    assert len(activities) == 10

    in_threads(*[lambda: operations.poison(activities, why="x")] * 3)
    testing.drain()

    assert PoisonRecord.objects.count() == 10
    lines = InstanceEvent.objects.filter(event="activity_failed")
    assert sorted(lines.values_list("instance", flat=True)) == ids
    assert set(Instance.objects.values_list("status", flat=True)) == {"failed"}


@pytest.mark.slow
def test_one_retries_while_the_other_tells(flow, handles):
    """Either the news is withdrawn, or the instance failed and is reopened, or it is refused."""
    handles("charge", lambda message: "charged")

    def call(run, event):
        match event:
            case Started():
                run.call("charge", delay=3600)
            case ActivityCompleted(result=result):
                run.complete(result)

    flow("call", call)
    for number in range(5):
        id = f"o{number}"
        start("call", instance=id)
        testing.drain()
        operations.poison([Message.objects.get(instance=id).pk], why="x")
        record = PoisonRecord.objects.get(instance=id)

        retried, _ = in_threads(lambda: operations.retry_poison([record.pk]), testing.drain)  # noqa: B023

        if retried.refused:
            assert "is handling the failure" in retried.refused[record.pk]
            assert operations.retry_poison([record.pk]).refused == {}
        testing.drain()
        assert instance_status(id).output == "charged"


def test_the_worker_runs_flows_and_async_activities(run, flow, handles):
    async def charge(message):
        return {"charged": message.payload}

    def order(run, event):
        if isinstance(event, Started):
            run.call("charge", 5)
            run.call("pack")
        else:
            run.state[event.name] = event.result
            if len(run.state) == 2:
                run.complete(run.state)

    flow("order", order)
    handles("charge", charge)
    handles("pack", lambda message: "packed", atomic=True)
    start("order", instance="o")
    send("pack")  # nobody waits for the result of a plain message

    tally = run().pump.tally

    assert instance_status("o").output == {"charge": {"charged": 5}, "pack": "packed"}
    assert (tally.completed, tally.failed) == (6, 0)


@pytest.fixture
def run():
    """Drain the queues with a worker in this process."""

    def drain() -> Worker:
        process = Worker(Options(name="here", drain=True))
        process.run()
        return process

    return drain


def test_the_async_twins_do_the_same(flow):
    async def use() -> None:
        await astart("nobody.knows", instance="o")
        await araise_event("o", "hello")
        assert await acancel("o", "enough") == ["o"]
        assert (await await_for("o", 5)).status == "failed"
        found = await ainstance_status("o")
        assert found is not None
        assert found.error_details is not None
        assert found.error_details.text == "cancelled: enough"

    async_to_sync(use)()
