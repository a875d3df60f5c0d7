"""Reports of progress in a worker: written while the handler runs, at most once a second."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from deadletter import Status, send, sql
from deadletter.models import Message
from deadletter.worker import exchange, pump
from deadletter.worker.in_flight import REPORT_INTERVAL
from deadletter.worker.process import Worker
from tests.patience import PATIENCE
from tests.processes import Workers, wait_until
from tests.sample.models import Effect

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def progress(id: int) -> Any:
    return Message.objects.values_list("progress", flat=True).get(pk=id)


def reported(id: int) -> Any:
    """What the handler gave, without the time."""
    found = progress(id)
    return found and (found["done"], found["total"], found["note"])


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The named statements that are run from now on."""
    names: list[str] = []
    real = sql.run

    def noting(connection: Any, name: str, params: Any, **options: Any) -> Any:
        names.append(name)
        return real(connection, name, params, **options)

    monkeypatch.setattr(sql, "run", noting)
    return names


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of every exchange from now on."""
    given: list[dict[str, Any]] = []
    real = exchange.process_batch

    def noting(**arguments: Any) -> Any:
        given.append(arguments)
        return real(**arguments)

    monkeypatch.setattr(exchange, "process_batch", noting)
    return given


class PumpClock:
    """The monotonic clock of a pump; it stands still."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> PumpClock:
    clock = PumpClock()
    monkeypatch.setattr(pump, "monotonic", clock)
    monkeypatch.setattr(exchange, "monotonic", clock)
    return clock


class Reporting:
    """A handler that reports what the test says, and ends when the test says so."""

    def __init__(self) -> None:
        self._steps: list[Callable[[Any], Any]] = []
        self._ready = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self.message: Any = None

    def __call__(self, message: Any) -> None:
        self.message = message
        while self._ready.acquire(timeout=PATIENCE):
            step = self._steps.pop(0)
            try:
                if step(message) == "end":
                    return
            finally:
                self._done.release()

    def do(self, step: Callable[[Any], Any]) -> None:
        """Let the handler do a step; return when it is done."""
        self.begin(step)
        assert self._done.acquire(timeout=PATIENCE)

    def begin(self, step: Callable[[Any], Any]) -> None:
        self._steps.append(step)
        self._ready.release()

    def report(self, *numbers: int, total: int | None = None) -> None:
        def step(message: Any) -> None:
            for number in numbers:
                message.report(number, total)

        self.do(step)

    def end(self) -> None:
        self.do(lambda message: "end")


@pytest.fixture
def reporting(handles) -> Iterator[Reporting]:
    handler = Reporting()
    handles("job", handler)
    yield handler
    handler.begin(lambda message: "end")


def turn(process: Worker, times: int = 20) -> None:
    for _ in range(times):
        process.pump.turn()


@contextmanager
def held_by_another_session(id: int) -> Iterator[None]:
    """Keep the row of a message locked."""
    locked, leave = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                Message.objects.select_for_update().get(pk=id)
                locked.set()
                leave.wait(PATIENCE)
        finally:
            connection.close()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        assert locked.wait(PATIENCE)
        yield
    finally:
        leave.set()
        thread.join(PATIENCE)


# While the handler runs.


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_report_is_on_the_row_while_the_handler_runs(running, handles, gate, kind):
    def function(message: Any) -> None:
        message.report(3, 10, "reading")
        gate.wait(PATIENCE)

    async def function_async(message: Any) -> None:
        message.report(3, 10, "reading")
        while not gate.is_set():
            await asyncio.sleep(0.01)

    handles("job", function_async if kind == "async" else function)
    id = send("job").pk
    with running(concurrency=1):
        wait_until(lambda: progress(id))
        row = Message.objects.get()
        gate.set()
        wait_until(lambda: not Message.objects.exists())

    assert row.lease_token is not None
    assert {**row.progress, "at": ""} == {"done": 3, "total": 10, "note": "reading", "at": ""}
    assert row.progress["at"].endswith("+00:00")


@pytest.mark.postgresql_only(reason="SQLite has one writer at a time")
def test_a_report_is_on_the_row_while_a_transaction_of_the_handler_is_open(running, handles, gate):
    def function(message: Any) -> None:
        Effect.objects.create(message=message.id, note="open")
        message.report(3, 10)
        gate.wait(PATIENCE)

    handles("job", function, atomic=True)
    id = send("job").pk
    with running(concurrency=1):
        wait_until(lambda: progress(id))
        effects = Effect.objects.count()
        gate.set()
        wait_until(lambda: not Message.objects.exists())

    assert effects == 0
    assert Effect.objects.count() == 1


@pytest.mark.process
@pytest.mark.parametrize("name", ["sample.progress", "sample.async_progress"])
def test_what_was_reported_before_an_exchange_survives_a_sigkill(workers: Workers, name: str):
    id = send(name, {"gate": "never"}).pk
    worker = workers.start("--concurrency", 1, "--poll", 0.1)
    wait_until(lambda: progress(id), why=worker.text)

    worker.signal(signal.SIGKILL)
    worker.wait()

    assert reported(id) == (1, 4, "reading")


# At most once a second.


def test_a_handler_that_reports_in_a_loop_causes_one_exchange_a_second(
    stepped, reporting, exchanges, statements, time
):
    id = send("job").pk
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)
    exchanges.clear()

    reporting.report(*range(1_000))
    turn(process)
    assert (len(exchanges), reported(id)) == (1, (999, None, ""))

    reporting.report(*range(1_000, 2_000))
    turn(process)
    time.now += REPORT_INTERVAL - 0.001
    reporting.report(*range(2_000, 3_000))
    turn(process)
    assert (len(exchanges), reported(id)) == (1, (999, None, ""))

    time.now += 0.001
    turn(process)
    assert (len(exchanges), reported(id)) == (2, (2_999, None, ""))

    time.now += 10 * REPORT_INTERVAL
    turn(process)
    assert len(exchanges) == 2
    assert statements.count("record_progress") == 2


def test_a_handler_that_reports_in_a_loop_is_queued_once(stepped, reporting):
    send("job")
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)

    # While an exchange takes long, for example.
    reporting.report(*range(1_000))

    assert list(process._in_flight.recorded) == [reporting.message]


def test_all_handlers_of_a_process_share_the_exchange_of_a_second(
    stepped, handles, exchanges, statements, time
):
    handlers = [Reporting() for _ in range(5)]
    ids = []
    for n, handler in enumerate(handlers):
        handles(f"job{n}", handler)
        ids.append(send(f"job{n}").pk)
    process = stepped(concurrency=5, batch=5)
    turn(process)
    wait_until(lambda: all(handler.message for handler in handlers))
    exchanges.clear()

    handlers[0].report(1)
    turn(process)
    for n, handler in enumerate(handlers):
        handler.report(10 + n)
        turn(process)
    assert (len(exchanges), [reported(id) for id in ids[1:]]) == (1, [None] * 4)

    time.now += REPORT_INTERVAL
    turn(process)
    assert [reported(id) for id in ids] == [(10 + n, None, "") for n in range(5)]
    assert (len(exchanges), statements.count("record_progress")) == (2, 2)
    for handler in handlers:
        handler.end()


def test_a_stage_does_not_wait_for_the_second_and_takes_no_report_with_it(
    stepped, reporting, exchanges, time
):
    id = send("job").pk
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)
    reporting.report(1)
    turn(process)
    exchanges.clear()

    reporting.report(2)
    reporting.do(lambda message: message.done(Status(8)))
    turn(process)

    assert (Message.objects.get().status, reported(id)) == (1 | 8, (1, None, ""))
    assert len(exchanges) == 1
    time.now += REPORT_INTERVAL
    turn(process)
    assert (reported(id), len(exchanges)) == ((2, None, ""), 2)


def test_a_handler_that_reports_nothing_costs_no_statement(run, handles, statements, exchanges):
    handles("plain", lambda message: None)
    for _ in range(5):
        send("plain")

    run(concurrency=1)

    assert "record_progress" not in statements
    assert all(not given["progress"] for given in exchanges)


def test_a_completed_message_costs_no_statement_for_its_report(run, handles, statements):
    handles("quick", lambda message: message.report(1, 1))
    send("quick")

    run(concurrency=1)

    assert not Message.objects.exists()
    assert "record_progress" not in statements


def test_a_message_that_has_ended_is_forgotten(stepped, reporting, exchanges, time):
    send("job")
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)
    reporting.report(1)
    turn(process)
    recorder = process.pump._exchange._recorder
    assert len(recorder._reporting) == 1

    reporting.end()
    wait_until(lambda: turn(process) or not Message.objects.exists())
    time.now += REPORT_INTERVAL
    turn(process)

    assert recorder._reporting == {}
    assert not recorder.is_due(time.now)


# Rows that cannot be written.


@pytest.mark.postgresql_only(reason="SQLite has one writer at a time")
def test_a_row_that_is_locked_is_skipped_and_tried_again(stepped, reporting, statements, time):
    id = send("job").pk
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)

    with held_by_another_session(id):
        reporting.report(1)
        turn(process)
        assert (progress(id), statements.count("record_progress")) == (None, 1)
    turn(process)
    assert (progress(id), statements.count("record_progress")) == (None, 1)

    time.now += REPORT_INTERVAL
    turn(process)

    assert (reported(id), statements.count("record_progress")) == ((1, None, ""), 2)


def test_a_lost_lease_writes_nothing(stepped, reporting, clock, time):
    id = send("job").pk
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)
    Message.objects.filter(pk=id).update(lease_token="another")

    reporting.report(1)
    turn(process)
    time.now += REPORT_INTERVAL
    turn(process)

    assert progress(id) is None


def test_a_report_is_kept_while_the_database_is_away(stepped, reporting, monkeypatch, time):
    id = send("job").pk
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)
    real = exchange.process_batch

    def away(**given: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(exchange, "process_batch", away)
    reporting.report(1)
    with pytest.raises(OperationalError):
        process.pump.turn()
    monkeypatch.setattr(exchange, "process_batch", real)
    assert progress(id) is None

    time.now += REPORT_INTERVAL
    turn(process)

    assert reported(id) == (1, None, "")


# When the attempt ends.


def test_the_last_report_of_a_failed_attempt_is_kept(run, handles):
    def function(message: Any) -> None:
        message.report(1, 10)
        message.report(2, 10, "second")
        raise RuntimeError("no")

    handles("job", function)
    id = send("job").pk

    run(concurrency=1)

    assert reported(id) == (2, 10, "second")
    assert Message.objects.get().status & Status.FAILED


def test_the_last_report_is_kept_when_the_message_is_given_back(stepped, reporting, time):
    id = send("job").pk
    process = stepped(concurrency=1, batch=1)
    turn(process)
    wait_until(lambda: reporting.message)
    reporting.report(1)
    turn(process)
    reporting.report(2)

    process.pump.stop(grace=0)
    turn(process)

    row = Message.objects.get()
    assert (row.attempts, row.lease_token) == (0, None)
    assert reported(id) == (2, None, "")


def test_a_bad_report_is_a_failure_of_the_attempt(run, handles):
    handles("job", lambda message: message.report(1, float("nan")))
    send("job")

    run(concurrency=1)

    row = Message.objects.get()
    assert "ValueError: report: total is nan; give a finite number of at least 0" in row.error
    assert row.progress is None
