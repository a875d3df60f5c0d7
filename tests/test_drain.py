"""`testing.drain()` does what a worker does, in a test's transaction and outside of one."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test import TestCase, TransactionTestCase

from deadletter import FailureReason, Permanent, Retry, send, testing
from deadletter.models import Message, PoisonRecord, Queue
from deadletter.worker.registry import Handler, Registry
from tests.patience import PATIENCE
from tests.sample.models import Effect

pytestmark = pytest.mark.django_db

#: In the transaction of the test, and in a test that has none.
in_both = pytest.mark.parametrize(
    "mode",
    [
        pytest.param("in-transaction", marks=pytest.mark.django_db),
        pytest.param("on-its-own", marks=pytest.mark.django_db(transaction=True)),
    ],
)


def notes() -> list[str]:
    return list(Effect.objects.order_by("pk").values_list("note", flat=True))


def note(message: Any, text: str) -> None:
    Effect.objects.create(message=message.id, note=text)


async def anote(message: Any, text: str) -> None:
    await Effect.objects.acreate(message=message.id, note=text)


# Async handlers


@in_both
def test_an_async_handler_uses_the_connection_of_the_test(mode: str, handles) -> None:
    threads = []

    async def ship(message: Any) -> None:
        await anote(message, f"of {await Effect.objects.acount()}")
        threads.append(await sync_to_async(threading.get_ident)())
        await asyncio.gather(*[anote(message, "together") for _ in range(3)])

    handles("ship", ship)
    Effect.objects.create(message=0, note="by the test")
    send("ship")

    assert testing.drain().completed == 1
    assert notes() == ["by the test", "of 1", "together", "together", "together"]
    assert threads == [threading.get_ident()]


@in_both
def test_an_async_handler_that_fails_fails_its_message_alone(mode: str, handles) -> None:
    async def ship(message: Any) -> None:
        await anote(message, "before")
        raise ValueError("no stock")

    handles("ship", ship)
    handles("mail", lambda message: note(message, "mail"))
    send("ship")
    send("mail")

    tally = testing.drain()

    assert (tally.completed, tally.failed) == (1, 1)
    assert notes() == ["before", "mail"]


@in_both
@pytest.mark.parametrize("atomic", [False, True])
def test_a_wrapped_async_handler_uses_it_too(mode: str, handles, atomic: bool) -> None:
    async def ship(message: Any) -> None:
        await anote(message, "before")
        if message.attempt == 1:
            raise ValueError("no stock")

    wrapped = functools.partial(lambda function, message: function(message), ship)
    handles("ship", wrapped, atomic=atomic)
    Queue.objects.filter(name="default").update(cooldown=timedelta(0))
    send("ship")

    tally = testing.drain()

    assert (tally.completed, tally.failed) == (1, 1)
    # What an atomic handler did before it failed is rolled back.
    assert notes() == (["before"] if atomic else ["before", "before"])


class Registered:
    """For the test cases of Django, which have no fixtures: a handler for one test."""

    def drain(self, function: Any) -> Any:
        handlers = Registry()
        handlers.add(Handler(name="ship", function=function))
        return testing.drain(handlers=handlers)


class InATestCase(Registered, TestCase):
    """Each test alone: what the one before inserted must be gone."""

    def check(self) -> None:
        assert notes() == []
        send("ship")

        assert self.drain(functools.partial(anote, text="async")).completed == 1
        assert notes() == ["async"]

    def test_one(self) -> None:
        self.check()

    def test_two(self) -> None:
        self.check()

    async def test_from_an_async_test(self) -> None:
        await sync_to_async(self.check)()


class InATransactionTestCase(Registered, TransactionTestCase):
    def test_an_async_handler(self) -> None:
        send("ship")

        assert self.drain(functools.partial(anote, text="async")).completed == 1
        assert notes() == ["async"]

    async def test_from_an_async_test(self) -> None:
        await sync_to_async(self.test_an_async_handler)()


# Transactions


@in_both
def test_what_a_handler_did_before_it_failed_stays(mode: str, handles) -> None:
    def ship(message: Any) -> None:
        note(message, "before")
        raise ValueError("no stock")

    handles("ship", ship)
    send("ship")

    assert testing.drain().failed == 1
    assert notes() == ["before"]


@in_both
def test_what_an_atomic_handler_did_before_it_failed_is_undone(mode: str, handles) -> None:
    def ship(message: Any) -> None:
        note(message, "before")
        raise ValueError("no stock")

    handles("ship", ship, atomic=True)
    send("ship")

    assert testing.drain().failed == 1
    assert notes() == []


def broken_statement(message: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM there_is_no_such_table")


def broken_save(message: Any) -> None:
    """Fails in a block of Django's own, without a savepoint."""
    Queue.objects.bulk_create([Queue(name="default")])


def broken_insert(message: Any) -> None:
    """Fails where Django marks the transaction as broken."""
    Effect(pk=Effect.objects.latest("pk").pk, message=message.id).save(force_insert=True)


each_error = pytest.mark.parametrize("breaks", [broken_statement, broken_save, broken_insert])


@in_both
@each_error
def test_a_database_error_undoes_its_statement_alone(mode: str, handles, breaks: Any) -> None:
    def ship(message: Any) -> None:
        note(message, "before")
        breaks(message)

    handles("ship", ship)
    send("ship")

    assert testing.drain().failed == 1
    assert notes() == ["before"]


@in_both
@each_error
def test_a_handler_may_go_on_after_a_database_error(mode: str, handles, breaks: Any) -> None:
    def ship(message: Any) -> None:
        note(message, "before")
        with pytest.raises(DatabaseError):
            breaks(message)
        note(message, "after")
        with transaction.atomic():
            note(message, "in a block")

    async def async_ship(message: Any) -> None:
        await sync_to_async(ship)(message)

    handles("ship", ship)
    handles("ship.async", async_ship)
    send("ship")
    send("ship.async")

    assert testing.drain().completed == 2
    assert notes() == ["before", "after", "in a block"] * 2


@in_both
def test_a_block_without_a_savepoint_is_a_transaction(mode: str, handles) -> None:
    def ship(message: Any) -> None:
        try:
            with transaction.atomic(savepoint=False):
                note(message, "in the block")
                broken_save(message)
        except IntegrityError:
            note(message, "after")

    handles("ship", ship)
    send("ship")

    assert testing.drain().completed == 1
    assert notes() == ["after"]


@in_both
def test_a_block_that_must_be_the_outermost_is(mode: str, handles) -> None:
    def ship(message: Any) -> None:
        with transaction.atomic(durable=True):
            note(message, "in the block")

    handles("ship", ship)
    send("ship")

    assert testing.drain(raise_errors=True).completed == 1
    assert notes() == ["in the block"]


@in_both
@pytest.mark.parametrize("savepoint", [True, False])
def test_a_transaction_that_is_left_open_is_rolled_back_and_a_failure(
    mode: str, handles, savepoint: bool
) -> None:
    def ship(message: Any) -> None:
        note(message, "before")
        transaction.atomic(savepoint=savepoint).__enter__()
        note(message, "in a block that never ends")

    handles("ship", ship)
    send("ship")

    assert testing.drain().failed == 1
    assert notes() == ["before"]
    assert "with a transaction open on default" in Message.objects.get().error


def test_no_query_is_added_to_those_that_a_test_counts(handles, django_assert_num_queries) -> None:
    handles("ship", lambda message: None)
    handles("ship.noted", lambda message: note(message, "one insert"))
    send("ship")
    with django_assert_num_queries(1_000, exact=False) as plain:
        testing.drain()
    send("ship.noted")
    with django_assert_num_queries(1_000, exact=False) as noted:
        testing.drain()

    assert len(noted) == len(plain) + 1


# Time limits


def wait_longer_than(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() <= end:
        time.sleep(0.001)


@in_both
@pytest.mark.parametrize("atomic", [False, True])
def test_a_handler_that_took_too_long_has_failed(mode: str, handles, atomic: bool) -> None:
    def ship(message: Any) -> None:
        note(message, "before")
        wait_longer_than(0.02)

    handles("ship", ship, timeout=timedelta(seconds=0.01), atomic=atomic)
    send("ship")

    assert testing.drain().failed == 1
    row = Message.objects.get()
    assert row.failure_reason == FailureReason.TIMEOUT_EXCEEDED
    assert row.error.endswith("took longer than 0.01 s")
    # As in production: the thread goes on, but what it commits in the end is refused.
    assert notes() == ([] if atomic else ["before"])


@in_both
def test_an_async_handler_is_cancelled_at_its_time_limit(mode: str, handles) -> None:
    async def ship(message: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await anote(message, "cancelled")

    handles("ship", ship, timeout=timedelta(seconds=0.01))
    send("ship")

    assert testing.drain().failed == 1
    assert Message.objects.get().failure_reason == FailureReason.TIMEOUT_EXCEEDED
    assert notes() == ["cancelled"]


# What is raised


async def _interrupted(message: Any) -> None:
    raise KeyboardInterrupt


def _interrupts(message: Any) -> None:
    raise KeyboardInterrupt


@in_both
@pytest.mark.parametrize("function", [_interrupts, _interrupted], ids=["plain", "async"])
def test_ctrl_c_ends_the_drain_and_is_no_failure(mode: str, handles, function: Any) -> None:
    handles("first", lambda message: note(message, "first"))
    handles("second", function)
    for name in ("first", "second", "third"):
        send(name)

    with pytest.raises(KeyboardInterrupt):
        testing.drain()

    left = Message.objects.order_by("pk").values_list("name", "attempts", "lease_token", "error")
    assert list(left) == [("second", 0, None, None), ("third", 0, None, None)]
    assert notes() == ["first"]


@pytest.fixture
def heard_ctrl_c() -> Iterator[None]:
    """Restore Ctrl-C: a shell that runs the tests in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_an_async_handler_waits_cancels_it(handles, heard_ctrl_c) -> None:
    cancelled = threading.Event()

    async def ship(message: Any) -> None:
        try:
            while True:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                # Again if it is lost: Python does not see one that comes right before a wait.
                await asyncio.sleep(30)
        finally:
            cancelled.set()

    handles("ship", ship)
    send("ship")

    with pytest.raises(KeyboardInterrupt):
        testing.drain()

    assert cancelled.wait(PATIENCE)
    assert Message.objects.get().attempts == 0


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit()], ids=repr)
def test_other_exits_are_failures_as_in_a_worker(handles, error: BaseException) -> None:
    def ship(message: Any) -> None:
        raise error

    handles("ship", ship)
    send("ship")

    assert testing.drain().failed == 1


@in_both
def test_the_first_error_is_raised_when_it_is_settled(mode: str, handles) -> None:
    error = ValueError("no stock")

    def ship(message: Any) -> None:
        note(message, "before")
        raise error

    handles("good", lambda message: note(message, "good"))
    handles("ship", ship)
    for name in ("good", "ship", "ship", "good"):
        send(name)

    with pytest.raises(ValueError, match="no stock") as raised:
        testing.drain(raise_errors=True)

    assert raised.value is error
    left = Message.objects.order_by("pk").values_list("name", "attempts", "lease_token", "error")
    assert list(left) == [
        ("ship", 1, None, "ValueError: no stock"),
        ("ship", 0, None, None),
        ("good", 0, None, None),
    ]
    assert notes() == ["good", "before"]


def test_a_death_is_settled_before_it_is_raised(handles, policy) -> None:
    policy(max_attempts=1)

    async def ship(message: Any) -> None:
        raise Permanent("no such customer")

    handles("ship", ship)
    send("ship", stream="s")
    send("ship", stream="s")

    with pytest.raises(Permanent, match="no such customer"):
        testing.drain(raise_errors=True)

    assert PoisonRecord.objects.get().last_error.endswith("no such customer")
    assert Message.objects.get().attempts == 0


def test_a_retry_and_a_timeout_are_raised_too(handles) -> None:
    def busy(message: Any) -> None:
        raise Retry("busy", after=60)

    handles("busy", busy)
    handles("slow", lambda message: wait_longer_than(0.02), timeout=timedelta(seconds=0.01))

    send("busy")
    with pytest.raises(Retry, match="busy"):
        testing.drain(raise_errors=True)
    send("slow")
    with pytest.raises(TimeoutError, match=r"took longer than 0\.01 s"):
        testing.drain(raise_errors=True)

    assert set(Message.objects.values_list("attempts", flat=True)) == {1}


def test_a_message_without_a_handler_is_no_error_of_one(handles) -> None:
    send("nobody.knows")

    assert testing.drain(raise_errors=True).deferred == 1


def test_a_stage_that_is_refused_is_a_failure_of_the_attempt(handles) -> None:
    def ship(message: Any) -> None:
        message.stage = 8  # past next_stage, which would refuse it

    handles("ship", ship)
    send("ship")

    assert testing.drain().failed == 1
    row = Message.objects.get()
    assert (row.lease_token, row.attempts) == (None, 1)
    assert "its next stage was refused" in row.error
