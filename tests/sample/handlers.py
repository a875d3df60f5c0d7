"""Handlers that do what their payload says, and note when they start and finish."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction

from deadletter import Permanent, Retry, Status, handler
from deadletter.backoff import BreakerPolicy

from . import flows  # noqa: F401 - registers them
from .journal import is_open, note, pass_gate

PACKED = Status(8)


@contextmanager
def noted(message: Any) -> Iterator[dict[str, Any]]:
    note("start", message)
    yield message.payload or {}
    note("finish", message)


@handler("sample.work")
def work(message: Any) -> None:
    """Sleep, wait at a gate, fail the first times: whatever the payload asks for."""
    with noted(message) as order:
        if "gate" in order:
            pass_gate(order["gate"])
        if "sleep" in order:
            time.sleep(order["sleep"])
        if message.attempt <= order.get("fail", 0):
            raise RuntimeError(f"as asked, attempt {message.attempt}")


@handler("sample.cause")
def fail_by_cause(message: Any) -> None:
    """Fail with an exception class of its own for each `cause` of the payload."""
    cause = message.payload["cause"]
    note("raise", message, cause=cause)
    raise type(f"Cause{cause}", (RuntimeError,), {"__module__": "sample"})(f"order {message.id}")


@handler("sample.async")
async def work_async(message: Any) -> None:
    with noted(message) as order:
        while "gate" in order and not is_open(order["gate"]):
            await asyncio.sleep(0.01)
        await asyncio.sleep(order.get("sleep", 0))
        if message.attempt <= order.get("fail", 0):
            raise RuntimeError(f"as asked, attempt {message.attempt}")


@handler("sample.crash")
def crash(message: Any) -> None:
    """Take the whole process along, at every attempt or for the first `times`."""
    with noted(message) as order:
        if message.attempt > order.get("times", 1_000):
            return
        if "gate" in order:
            pass_gate(order["gate"])
        match order["how"]:
            case "exit":
                os._exit(order.get("code", 3))
            case "segfault":
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)


@handler("sample.crash_often", max_attempts=4)
def crash_often(message: Any) -> None:
    """Allows more attempts than its queue."""
    with noted(message):
        os._exit(3)


@handler("sample.hang", timeout=0.5)
def hang(message: Any) -> None:
    with noted(message) as order:
        message.done(PACKED)
        if message.attempt > order.get("times", 1_000):
            return
        if order.get("how") == "spin":
            while True:
                pass
        while True:
            time.sleep(1)


@handler("sample.stages")
def stages(message: Any) -> None:
    """Record a stage and wait at a gate; an attempt that finds the stage recorded does nothing."""
    note("start", message, status=int(message.status))
    if message.status & PACKED:
        return
    message.done(PACKED)
    pass_gate(message.payload["gate"])


@handler("sample.async_stages")
async def stages_async(message: Any) -> None:
    note("start", message, status=int(message.status))
    if message.status & PACKED:
        return
    message.done(PACKED)
    while not is_open(message.payload["gate"]):
        await asyncio.sleep(0.01)


@handler("sample.progress")
def progress(message: Any) -> None:
    """Report progress and wait at a gate."""
    note("start", message)
    message.report(1, 4, "reading")
    pass_gate(message.payload["gate"])


@handler("sample.async_progress")
async def progress_async(message: Any) -> None:
    note("start", message)
    message.report(1, 4, "reading")
    while not is_open(message.payload["gate"]):
        await asyncio.sleep(0.01)


@handler("sample.async_hang", timeout=0.5)
async def hang_async(message: Any) -> None:
    with noted(message) as order:
        message.done(PACKED)
        if message.attempt > order.get("times", 1_000):
            return
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                note("cancelled", message)
                if order.get("how") != "stubborn":
                    raise


@handler("sample.async_tidy", timeout=None)
async def tidy_async(message: Any) -> None:
    """Waits for ever, and tidies up when it is cancelled."""
    with noted(message) as order:
        try:
            await asyncio.sleep(3600)
        finally:
            note("tidied", message)
            if order.get("how") == "raise":
                raise RuntimeError("while tidying up")
            while order.get("how") == "stubborn":
                time.sleep(0.01)


@handler("sample.untimed", timeout=None)
def untimed(message: Any) -> None:
    with noted(message) as order:
        pass_gate(order["gate"])


@handler("sample.effect", atomic=True)
def effect(message: Any) -> None:
    """Do something in the database that must happen exactly once."""
    from .models import Effect

    with noted(message) as order:
        Effect.objects.create(message=message.id, note=order.get("note", ""))
        if "gate" in order:
            pass_gate(order["gate"])


@handler("sample.orm")
def use_orm(message: Any) -> None:
    """Use the database as plain handlers do: a transaction of its own, and a read after it."""
    from .models import Effect

    with noted(message) as order:
        with transaction.atomic():
            Effect.objects.create(message=message.id, note="orm")
            time.sleep(order.get("sleep", 0))
        assert Effect.objects.filter(message=message.id).exists()


@handler("sample.async_orm")
async def use_orm_async(message: Any) -> None:
    from .models import Effect

    with noted(message):
        await Effect.objects.acreate(message=message.id, note="orm")


def _copy(message: Any, how: str) -> None:
    """Be a copy of the process for a moment, and leave as many programs do."""
    note("copy", message)
    match how:
        case "exit":
            sys.exit(7)
        case "raise":
            raise RuntimeError("in the copy")


def _fork(message: Any, how: str) -> bool:
    """Fork, wait for the copy, and note how it ended; False in the copy."""
    if how == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=_copy, args=(message, "exit"))
        process.start()
        process.join()
        note("copied", message, code=process.exitcode)
        return True
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        note("copied", message, code=code)
    else:
        _copy(message, how)
    return bool(pid)


@handler("sample.fork")
def fork(message: Any) -> None:
    with noted(message) as order:
        _fork(message, order["how"])


@handler("sample.daemon")
def start_daemon(message: Any) -> None:
    """Leave a copy of the process behind, which outlives the worker."""
    with noted(message):
        if not os.fork():
            note("copy", message)
            pass_gate("copy")
            os._exit(0)


@handler("sample.fork_atomic", atomic=True)
def fork_atomic(message: Any) -> None:
    from .models import Effect

    with noted(message) as order:
        Effect.objects.create(message=message.id, note="before")
        if _fork(message, order["how"]):
            Effect.objects.create(message=message.id, note="after")


@handler("sample.processes", timeout=240)
def use_processes(message: Any) -> None:
    """Leave work to processes of its own, as libraries do, and end them."""
    with noted(message) as order:
        context = multiprocessing.get_context(order["method"])
        match order["how"]:
            case "pool":
                with context.Pool(2) as pool:
                    assert pool.map(abs, range(-4, 0)) == [4, 3, 2, 1]
            case "executor":
                with ProcessPoolExecutor(2, mp_context=context) as execute:
                    assert list(execute.map(abs, range(-4, 0))) == [4, 3, 2, 1]
            case "terminate":
                process = context.Process(target=time.sleep, args=(3600,))
                process.start()
                process.terminate()
                process.join()
                note("ended", message, code=process.exitcode)
            case "preexec":
                done = subprocess.run(
                    [sys.executable, "-c", "print(1)"],
                    preexec_fn=os.getpid,
                    capture_output=True,
                    check=True,
                )
                assert done.stdout == b"1\n"


@types.coroutine
def _pause() -> Iterator[None]:
    """Let the loop go on; asyncio's own functions refuse that in a copy."""
    yield


@handler("sample.fork_async")
async def fork_async(message: Any) -> None:
    with noted(message) as order:
        pid = os.fork()
        if pid:
            while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
                await asyncio.sleep(0.01)
            note("copied", message, code=os.waitstatus_to_exitcode(ended[1]))
            return
        _copy(message, order["how"])
        if order["how"] == "await":
            await _pause()
            note("copy went on", message)


@handler("sample.dirty")
def dirty(message: Any) -> None:
    """Leave something behind for the next message to stumble over."""
    from django.utils import timezone, translation

    from .models import Effect

    with noted(message) as order:
        match order["leave"]:
            case "atomic":
                transaction.atomic().__enter__()
                Effect.objects.create(message=message.id)
            case "autocommit":
                transaction.set_autocommit(False)
                Effect.objects.create(message=message.id)
            case "begin":
                connection.cursor().execute("BEGIN")
                connection.cursor().execute(
                    "INSERT INTO sample_effect (message, note, at) VALUES (%s, '', %s)",
                    [message.id, timezone.now()],
                )
            case "closed":
                connection.ensure_connection()
                connection.connection.close()
            case "language":
                translation.activate("de")
                timezone.activate("Asia/Tokyo")


@handler("sample.inspect")
def inspect(message: Any) -> None:
    """Say in what state a handler is called."""
    from django.utils import timezone, translation

    from .models import Effect

    with noted(message):
        state = {
            "autocommit": connection.get_autocommit(),
            "in_atomic_block": connection.in_atomic_block,
            "language": translation.get_language(),
            "zone": timezone.get_current_timezone_name(),
            "effects": Effect.objects.count(),
        }
        Effect.objects.create(message=message.id, note="inspected")
        note("state", message, state=state)


@handler("sample.refuse")
def refuse(message: Any) -> None:
    with noted(message):
        raise Permanent("never")


@handler("sample.later")
def later(message: Any) -> None:
    with noted(message):
        if message.attempt == 1:
            raise Retry("come back", after=0.3)


@handler("sample.broken", breaker=BreakerPolicy(failures=3, window=30, cooldown=1.5))
def broken(message: Any) -> None:
    """Fails until a gate is open."""
    with noted(message):
        if not is_open("repaired"):
            raise ConnectionError("the other side is down")


if os.environ.get("SAMPLE_KNOWS_NEW"):

    @handler("sample.new")
    def new(message: Any) -> None:
        """Known only to workers of the new release."""
        with noted(message):
            pass


if os.environ.get("SAMPLE_DIES_BEFORE_COMMIT"):
    # Between the end of an atomic handler and the commit: its work and the completion are written,
    # neither is committed.
    from deadletter.worker import execute

    _complete = execute._complete

    def _complete_and_die(message: Any, *arguments: Any) -> None:
        _complete(message, *arguments)
        note("completed", message)
        os.kill(os.getpid(), signal.SIGKILL)

    execute._complete = _complete_and_die


if os.environ.get("SAMPLE_ASKS_AT_IMPORT"):
    # What an application's ready() may do as well: it leaves a connection, and a pool, open.
    connection.cursor().execute("SELECT 1")
