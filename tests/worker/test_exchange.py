"""A busy worker runs an exchange in a thread, and applies the result of the last one meanwhile."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.utils.timezone import now

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle import Claimed
from deadletter.models import Message
from deadletter.worker import exchange, pump
from deadletter.worker.crash_ledger import SLOTS
from deadletter.worker.exchange import ExchangeThread
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from tests.patience import PATIENCE
from tests.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def exchange_thread():
    made: ExchangeThread[object] = ExchangeThread("default")
    yield made
    made.stop()


def test_a_call_runs_elsewhere_and_on_the_callers_connection(exchange_thread):
    def call() -> tuple[str, object]:
        return threading.current_thread().name, connection.connection

    connection.ensure_connection()
    exchange_thread.begin(call)

    assert exchange_thread.wait() == ("deadletter-exchange", connection.connection)


def test_what_a_call_raises_is_raised_where_it_is_waited_for(exchange_thread):
    def call() -> object:
        raise OperationalError("gone")

    exchange_thread.begin(call)

    with pytest.raises(OperationalError, match="gone"):
        exchange_thread.wait()
    exchange_thread.begin(lambda: "back")
    assert exchange_thread.wait() == "back"


def test_a_thread_that_ends_leaves_the_connection_to_its_owner():
    exchange_thread: ExchangeThread[int] = ExchangeThread("default")
    exchange_thread.begin(Message.objects.count)
    assert exchange_thread.wait() == 0

    exchange_thread.stop()

    assert connection.connection is not None
    assert not connection.allow_thread_sharing
    assert Message.objects.count() == 0


@pytest.fixture
def pressed(monkeypatch) -> list[int]:
    """Run every exchange in its thread as soon as anything waits; note what each one applied."""
    entered: list[int] = []
    monkeypatch.setattr(pump, "PRESSING", 1)
    catch_up = exchange.Exchange.catch_up

    def noting(self: exchange.Exchange) -> None:
        if self.unapplied is not None:
            entered.append(len(self.unapplied.batch.messages))
        catch_up(self)

    monkeypatch.setattr(exchange.Exchange, "catch_up", noting)
    return entered


def test_many_messages_are_each_handled_once_in_the_exchange_thread(run, handles, pressed):
    handled = []
    handles("job", lambda message: handled.append(message.id))
    ids = send_many([Outgoing("job") for _ in range(2_000)])

    process = run(batch=100)

    assert sorted(handled) == ids
    assert process.pump.tally.completed == 2_000
    assert len(process._in_flight) == 0
    assert process._in_flight.ledger.announced == []
    assert pressed, "no exchange ran in its thread"


def test_the_order_of_streams_holds_in_the_exchange_thread(run, handles, pressed):
    handled: dict[str, list[int]] = {}
    handles("job", lambda message: handled.setdefault(message.stream, []).append(message.id))
    send_many([Outgoing("job", stream=f"s{n % 7}") for n in range(700)])

    run(batch=50)

    assert sum(map(len, handled.values())) == 700
    assert all(ids == sorted(ids) for ids in handled.values())


def test_an_exchange_that_breaks_under_way_is_reported_again(run, handles, pressed, monkeypatch):
    handled = []
    handles("job", lambda message: handled.append(message.id))
    ids = send_many([Outgoing("job") for _ in range(500)])
    process_batch = exchange.process_batch
    broken = []

    def breaking(**given):
        if threading.current_thread().name == "deadletter-exchange" and not broken:
            broken.append(len(given["completions"]))
            raise OperationalError("the connection broke before it was sent")
        return process_batch(**given)

    monkeypatch.setattr(exchange, "process_batch", breaking)

    process = run(batch=50)

    assert broken
    assert sorted(handled) == ids
    assert process.pump.tally.completed == 500
    assert Message.objects.count() == 0


def test_a_limit_of_messages_counts_what_is_not_in_the_books_yet(run, handles, pressed):
    handles("job", lambda message: None)
    send_many([Outgoing("job") for _ in range(600)])

    process = run(batch=50, max_messages=330)

    assert process.pump.tally.completed == 330
    assert Message.objects.filter(lease_token=None).count() == 270


def test_a_message_claimed_anew_is_not_dropped_with_the_report_of_its_old_lease(
    transactional_db, handles, monkeypatch
):
    """Its old handler ends after the new claim was answered, and before that is applied."""
    monkeypatch.setattr(pump, "PRESSING", 0)
    calls: list[int] = []
    may_end = threading.Event()

    def work(message: Claimed) -> None:
        calls.append(message.attempt)
        if len(calls) == 1:
            may_end.wait(PATIENCE)

    handles("job", work)
    id = send("job").id
    process = Worker(Options(name="here", concurrency=4))
    process._housekeeper.refresh()
    turning = process.pump

    def turn_until(condition: Callable[[], object]) -> None:
        def turned() -> object:
            turning.turn()
            return condition()

        wait_until(turned)

    try:
        turn_until(lambda: calls)
        held = process._in_flight.get(id)
        assert held is not None
        held.until = math.inf  # as after a pause: the end of the lease was not noticed
        Message.objects.update(available_at=now() - timedelta(seconds=5))
        turn_until(
            lambda: (
                (turning._exchange.unapplied and turning._exchange.unapplied.batch.messages)
                or len(calls) > 1
            )
        )
        may_end.set()
        wait_until(lambda: process._executors.outcomes.ready or len(calls) > 1)
        turn_until(lambda: not Message.objects.exists())
        turn_until(lambda: not len(process._in_flight) and turning.tally.lost)
    finally:
        turning._exchange.thread.stop()
        process._executors.stop()

    assert calls == [1, 2]
    assert (turning.tally.completed, turning.tally.lost) == (1, 1)
    assert process._in_flight.ledger.entries() == []
    assert process._in_flight.ledger.room == SLOTS


def test_a_large_batch_does_not_outgrow_the_ledger(run, handles, pressed):
    handled = []

    async def work(message: Claimed) -> None:
        await asyncio.sleep(0.01)
        handled.append(message.id)

    handles("job", work)
    ids = send_many([Outgoing("job") for _ in range(9_000)])

    run(batch=4_000, concurrency=6_000)

    assert sorted(handled) == ids
