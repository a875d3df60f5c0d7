"""The pump, step by step, with slow threads, lost leases and a database that fails."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, InternalError, OperationalError

from deadletter import FailureReason, Outgoing, send, send_many
from deadletter.lifecycle import Failure, claim, complete, fail, streams
from deadletter.models import Message, PoisonRecord
from deadletter.worker import busy_reports, exchange, executors, leases, pump
from deadletter.worker.crash_ledger import SLOTS
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from tests.patience import PATIENCE
from tests.processes import wait_until

from .rows import attempts, rows

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def turn_until(process: Worker, condition: Callable[[], Any]) -> None:
    def turned() -> Any:
        process.pump.turn()
        return condition()

    wait_until(turned)


def assert_holds_nothing(process: Worker) -> None:
    assert len(process._in_flight) == 0
    assert process._in_flight.ledger.room == SLOTS
    assert process._in_flight.ledger.entries() == []


@pytest.mark.parametrize("atomic", [False, True])
def test_every_message_is_counted_once(run, handles, atomic):
    handles("job", lambda message: None, atomic=atomic)
    for _ in range(20):
        send("job")

    process = run()

    assert process.pump.tally.completed == 20
    assert process.pump.tally.lost == 0
    assert_holds_nothing(process)


def test_a_drain_does_not_end_at_a_claim_that_only_parked(run, handles, monkeypatch):
    monkeypatch.setattr("deadletter.lifecycle.candidates.ROUNDS", 2)
    monkeypatch.setattr(streams, "REACH", 3)
    handled = []
    handles("job", lambda message: handled.append(message.id))
    send("job", stream="s")
    batch = claim()
    fail(batch.token, [Failure(batch.ids[0], delay=3600)])
    send_many([Outgoing("job", stream="s") for _ in range(60)])
    free = send("job").pk

    run(concurrency=1, batch=1)

    assert handled == [free]


def test_a_failure_and_the_messages_behind_it_are_reported_together(stepped, handles, monkeypatch):
    def fail(message):
        raise RuntimeError("no")

    handles("job", fail)
    for _ in range(3):
        send("job", stream="s")
    process = stepped()
    entries = []

    class Outcomes(deque):
        def append(self, entry):
            entries.append([type(report).__name__ for _, report in entry])
            super().append(entry)

    process._executors.outcomes.ready = Outcomes()

    turn_until(process, lambda: entries)

    # One entry is one transaction: the pump cannot look in between.
    assert entries == [["Failure", "Release", "Release"]]
    turn_until(process, lambda: not len(process._in_flight))
    assert sorted(rows().values()) == [0, 0, 1]


def test_a_message_claimed_again_by_the_process_that_lost_it_is_settled_once(
    stepped, handles, clock, caplog
):
    gate = threading.Event()
    seen = []

    def slow_first_time(message):
        seen.append(message.attempt)
        if message.attempt == 1:
            gate.wait(PATIENCE)

    handles("job", slow_first_time)
    id = send("job").pk
    process = stepped()
    turn_until(process, lambda: seen == [1])

    clock.advance(61)
    turn_until(process, lambda: not rows())
    gate.set()
    turn_until(process, lambda: process.pump.tally.lost)

    assert seen == [1, 2]
    assert (process.pump.tally.completed, process.pump.tally.lost) == (1, 1)
    assert caplog.text.count(f"lease of message job {id} was gone when its outcome") == 1
    assert not Message.objects.filter(pk=id).exists()
    assert_holds_nothing(process)


def test_what_waited_through_an_outage_longer_than_its_lease_is_not_charged(
    stepped, handles, clock, policy, monkeypatch
):
    policy(max_attempts=1)
    gate = threading.Event()
    started = threading.Event()

    def slow(message):
        started.set()
        gate.wait(PATIENCE)

    handles("job", slow)
    ids = [send("job", stream="s").pk for _ in range(3)]
    process = stepped()
    turn_until(process, started.is_set)
    away = OperationalError("the database is away")
    real = leases.in_transaction
    failures = iter([away, away])

    def fails_twice(work, **options):
        if (error := next(failures, None)) is not None:
            raise error
        return real(work, **options)

    monkeypatch.setattr(leases, "in_transaction", fails_twice)
    clock.advance(61)
    for item in process._in_flight:
        item.until = time.monotonic() - 1

    for _ in range(2):
        process.pump.leases._next = 0.0
        with pytest.raises(OperationalError):
            process.pump.turn()
    process.pump.stop(grace=0)
    turn_until(process, lambda: process.pump.is_done)

    gate.set()
    assert rows() == dict.fromkeys(ids, 0)
    assert not PoisonRecord.objects.exists()
    assert_holds_nothing(process)


def test_a_stop_is_not_undone_by_the_count_of_messages(stepped):
    process = stepped(max_messages=10)

    process.pump.stop(grace=1)
    process.pump._room(time.monotonic())

    assert process.pump.is_done


def test_waiting_for_the_last_of_max_messages_takes_few_turns(handles, transactional_db):
    gate = threading.Event()
    handles("job", lambda message: gate.wait(PATIENCE))
    send("job")
    process = Worker(Options(name="here", max_messages=1))
    turns = count_turns(process)
    thread = threading.Thread(target=process.run)
    thread.start()

    wait_until(lambda: process._in_flight.running())
    before, start = len(turns), time.monotonic()
    wait_until(lambda: time.monotonic() > start + 0.5)
    taken, seconds = len(turns) - before, time.monotonic() - start
    gate.set()
    thread.join(PATIENCE)

    assert taken < seconds / 0.005 * 1.5
    assert process.pump.tally.completed == 1


def test_max_messages_is_exact(run, handles):
    handles("job", lambda message: None, atomic=True)
    for _ in range(30):
        send("job")

    process = run(max_messages=7)

    assert process.pump.tally.completed == 7
    assert len(rows()) == 23


@pytest.mark.parametrize(
    "error", [InternalError("read-only transaction"), OperationalError("gone")]
)
def test_whatever_the_database_refuses_is_tried_again_later_and_nothing_is_lost(
    handles, monkeypatch, transactional_db, error
):
    monkeypatch.setattr(pump, "LONGEST_RETRY", 0.1)
    done = []
    handles("job", lambda message: done.append(message.id))
    ids = [send("job").pk for _ in range(5)]
    calls = []
    real = exchange.process_batch

    def refuse(**given):
        calls.append(given)
        if 2 <= len(calls) <= 4:
            raise error
        return real(**given)

    monkeypatch.setattr(exchange, "process_batch", refuse)
    process = Worker(Options(name="here", drain=True))

    process.run()

    assert sorted(done) == ids
    assert rows() == {}
    assert process.pump.tally.completed == 5
    assert len(calls) < 20
    assert_holds_nothing(process)


def test_a_worker_told_to_stop_while_the_database_is_away_does_not_spin(
    running, handles, monkeypatch
):
    monkeypatch.setattr(pump, "LAST_TRY", 1.0)
    calls = []

    def away(**given):
        calls.append(time.monotonic())
        raise OperationalError("away")

    with running(grace=0, poll=0.05) as process:
        gate = threading.Event()
        handles("job", lambda message: gate.wait(PATIENCE))
        send("job")
        wait_until(process._in_flight.running)
        monkeypatch.setattr(exchange, "process_batch", away)
        gate.set()
        wait_until(lambda: calls)
        before = len(calls)
        process.stop()
        wait_until(lambda: process.pump.is_done)

    assert len(calls) - before <= 15


def test_a_report_that_cannot_be_stored_harms_no_other(stepped, handles, monkeypatch):
    handles("job", lambda message: None)
    ids = [send("job").pk for _ in range(4)]
    process = stepped()
    real = exchange.process_batch
    away = iter([True])

    def refuse(**given):
        if any(item.id == ids[1] for item in given["completions"]):
            raise DataError("cannot be stored")
        # And the database goes away in the middle of it.
        if any(item.id == ids[2] for item in given["completions"]) and next(away, False):
            raise OperationalError("away")
        return real(**given)

    monkeypatch.setattr(exchange, "process_batch", refuse)

    def settled():
        try:
            process.pump.turn()
        except OperationalError:
            return False
        return not len(process._in_flight)

    wait_until(settled)

    assert rows() == {ids[1]: 1}
    [left] = Message.objects.all()
    assert left.error == "its outcome could not be stored"
    assert_holds_nothing(process)


def test_a_report_that_was_already_applied_counts_as_done(stepped, handles, monkeypatch, caplog):
    def fail(message):
        raise RuntimeError("no")

    handles("good", lambda message: None)
    handles("bad", fail)
    handles("last", fail, max_attempts=1)
    send("good")
    bad = send("bad").pk
    last = send("last").pk
    process = stepped()
    real = exchange.process_batch
    cut = []

    def answer_is_lost(**given):
        batch = real(**given)
        if given["completions"] or given["failures"]:
            cut.append(given)
            if len(cut) <= 3:
                raise OperationalError("server closed the connection unexpectedly")
        return batch

    monkeypatch.setattr(exchange, "process_batch", answer_is_lost)

    def settled():
        try:
            process.pump.turn()
        except OperationalError:
            return False
        return not len(process._in_flight) and not Message.objects.filter(name="good").exists()

    wait_until(settled)

    assert rows() == {bad: 1}
    assert len(Message.objects.get().history) == 1
    [poison] = PoisonRecord.objects.all()
    assert (poison.message_id, poison.attempts) == (last, 1)
    assert process.pump.tally.lost == 0
    assert process.pump.tally.completed == 1
    # No other worker could have claimed them meanwhile, so nothing is in doubt.
    assert "lease" not in caplog.text
    assert_holds_nothing(process)


@pytest.mark.parametrize("by_another_worker", [True, False])
def test_a_report_that_broke_off_and_outlived_its_lease_is_said_to_be_unsure(
    stepped, handles, clock, monkeypatch, caplog, by_another_worker
):
    handles("job", lambda message: None)
    id = send("job").pk
    process = stepped()
    real = exchange.process_batch
    cut = iter([True])

    def breaks_off(**given):
        if given["completions"] and next(cut, False):
            if not by_another_worker:
                real(**given)
            raise OperationalError("server closed the connection unexpectedly")
        return real(**given)

    monkeypatch.setattr(exchange, "process_batch", breaks_off)
    with pytest.raises(OperationalError):
        turn_until(process, lambda: False)

    clock.advance(61)
    [item] = process._in_flight
    item.until = time.monotonic() - 1
    if by_another_worker:
        other = claim()
        complete(other.token, other.ids)
    turn_until(process, lambda: not len(process._in_flight))

    # Both ways leave the same: which it was cannot be known, so it is not passed over in silence.
    assert rows() == {}
    assert caplog.text.count(f"the report of message job {id} broke off") == 1
    assert (process.pump.tally.completed, process.pump.tally.lost) == (1, 0)
    assert_holds_nothing(process)


def held_up(monkeypatch, id):
    """Let the first report of a message be busy; it stays in the backlog until it is made due."""
    real = exchange.process_batch

    def answer(**given):
        if given["careful"] or id not in {report.id for report in given["completions"]}:
            return real(**given)
        others = [report for report in given["completions"] if report.id != id]
        return replace(real(**{**given, "completions": others}), busy=[id])

    monkeypatch.setattr(exchange, "process_batch", answer)
    monkeypatch.setattr(busy_reports, "SHORTEST_PAUSE", math.inf)
    monkeypatch.setattr(busy_reports, "LONGEST_PAUSE", math.inf)


def test_a_report_that_broke_off_stays_in_doubt_while_the_backlog_is_settled(
    stepped, handles, monkeypatch, caplog
):
    handles("job", lambda message: None)
    process = stepped()
    held = send("job").pk
    held_up(monkeypatch, held)
    turn_until(process, lambda: process.pump._busy.ids == {held})
    real = exchange.process_batch
    cut = iter([True])

    def answer_is_lost(**given):
        batch = real(**given)
        if given["completions"] and next(cut, False):
            raise OperationalError("server closed the connection unexpectedly")
        return batch

    monkeypatch.setattr(exchange, "process_batch", answer_is_lost)
    send("job")
    with pytest.raises(OperationalError):
        turn_until(process, lambda: False)
    # Due before the report that broke off is repeated.
    process.pump._busy.next_try = 0.0
    turn_until(process, lambda: not len(process._in_flight))

    assert rows() == {}
    assert (process.pump.tally.completed, process.pump.tally.lost) == (2, 0)
    assert "lease" not in caplog.text
    assert_holds_nothing(process)


def test_a_database_that_goes_away_while_holders_are_asked_costs_no_claimed_message(
    stepped, handles, monkeypatch, caplog
):
    def away(connection):
        raise OperationalError("server closed the connection unexpectedly")

    seen = []
    handles("job", lambda message: seen.append(message.id))
    process = stepped()
    held = send("job").pk
    held_up(monkeypatch, held)
    monkeypatch.setattr(busy_reports, "holders", away)
    wait_until(lambda: process.pump.turn() or seen)
    # Claimed by the exchange that meets the lock.
    other = send("job").pk
    turn_until(process, lambda: process.pump._busy.ids == {held})
    turn_until(process, lambda: other in seen and len(process._in_flight) == 1)
    process.pump._busy.next_try = 0.0
    turn_until(process, lambda: not len(process._in_flight))

    assert seen == [held, other]
    assert rows() == {}
    assert process.pump.tally.completed == 2
    assert "not known (server closed the connection unexpectedly)" in caplog.text
    assert_holds_nothing(process)


def test_an_executor_survives_what_execute_never_does(stepped, handles, monkeypatch):
    def broken(*args, **kwargs):
        raise SystemExit("a bug of ours")

    handles("job", lambda message: None)
    process = stepped(concurrency=1)
    real = executors.execute
    monkeypatch.setattr(executors, "execute", broken)
    bad = send("job").pk
    turn_until(process, lambda: Message.objects.filter(error__contains="a bug of ours").exists())
    monkeypatch.setattr(executors, "execute", real)
    good = send("job").pk
    turn_until(process, lambda: not Message.objects.filter(pk=good).exists())

    assert attempts(bad) == 1
    assert_holds_nothing(process)


def test_stages_done_before_a_timeout_are_kept(run, handles, policy):
    gate = threading.Event()
    policy(cooldown=0)
    seen = []

    def hang(message):
        seen.append(int(message.status) & 8)
        message.done(8)
        if message.attempt == 1:
            gate.wait(PATIENCE)

    handles("job", hang, timeout=timedelta(seconds=0.2))
    send("job")

    process = run()
    gate.set()

    assert seen == [0, 8]
    assert process.pump.tally.failed == 1
    assert process.has_stuck_threads


def test_a_timeout_uses_the_handlers_own_backoff(stepped, handles):
    gate = threading.Event()
    handles(
        "job",
        lambda message: gate.wait(PATIENCE),
        timeout=timedelta(seconds=0.1),
        backoff_base=timedelta(seconds=500),
        backoff_cap=timedelta(seconds=5000),
    )
    sent = send("job")
    process = stepped()

    turn_until(process, lambda: process.pump.tally.failed)
    gate.set()

    message = Message.objects.get()
    assert message.failure_reason == FailureReason.TIMEOUT_EXCEEDED
    assert message.error == "deadletter.worker.execute.TookTooLong: took longer than 0.1 s"
    wait = (message.available_at - sent.created_at).total_seconds()
    assert 990 < wait < 1000 + PATIENCE


def count_turns(process: Worker) -> list[float]:
    turns: list[float] = []
    real = process.pump.turn

    def turn() -> None:
        turns.append(time.monotonic())
        real()

    process.pump.turn = turn
    return turns


def test_a_claim_whose_answer_was_lost_is_given_back_uncharged(stepped, handles, monkeypatch):
    handles("job", lambda message: None)
    ids = [send("job").pk for _ in range(3)]
    process = stepped()
    real = exchange.process_batch
    cut = iter([True])

    def answer_is_lost(**given):
        batch = real(**given)
        if next(cut, False):
            raise OperationalError("server closed the connection unexpectedly")
        return batch

    monkeypatch.setattr(exchange, "process_batch", answer_is_lost)
    with pytest.raises(OperationalError):
        process.pump.turn()
    assert rows() == dict.fromkeys(ids, 1)

    process.pump.stop(grace=0)
    turn_until(process, lambda: process.pump.is_done)

    assert rows() == dict.fromkeys(ids, 0)
    assert not Message.objects.filter(lease_token__isnull=False).exists()


def test_messages_that_may_kill_their_process_are_held_and_tried_one_at_a_time(
    stepped, handles, policy
):
    policy(max_attempts=2)
    gate = threading.Event()
    started = []

    def slow(message):
        started.append(message.id)
        gate.wait(PATIENCE)

    handles("job", slow)
    suspects = [send("job").pk for _ in range(3)]
    Message.objects.update(attempts=1, failure_reason=FailureReason.WORKER_LOST)
    other = send("job").pk
    process = stepped()

    turn_until(process, lambda: len(started) == 2)
    for _ in range(20):
        process.pump.turn()

    # One suspect and the innocent one run; the others are neither run nor charged meanwhile.
    assert sorted(started) == [suspects[0], other]
    assert sorted(rows().items()) == [
        (suspects[0], 2),
        (suspects[1], 1),
        (suspects[2], 1),
        (other, 1),
    ]
    gate.set()
    turn_until(process, lambda: not rows())
    assert sorted(started) == [*suspects, other]
    assert_holds_nothing(process)
