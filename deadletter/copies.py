"""
Is this still the process that called the handler? A handler may fork, and its copy come back here.

The copy shares the sockets and the ledger of the worker, and would go on as a second worker. So it
ends where it comes back from what the application wrote: at once, without exit handlers and without
flushing buffers that are the worker's as well.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from .forks import at_fork

T = TypeVar("T")

#: How many forks lie between this process and the one that imported this module.
_forks = 0
#: Event loops of workers, with the thread that runs each.
_loops: list[tuple[weakref.ref[asyncio.AbstractEventLoop], int]] = []


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call what an application wrote. A copy of this process that comes back from it ends here."""
    before = _forks
    try:
        result = function(*arguments)
    except BaseException as error:
        if _forks != before:
            leave(error)
        raise
    if _forks != before:
        leave()
    return result


async def wait_for(work: Awaitable[T]) -> T:
    """Await what an application wrote, with the same rule."""
    before = _forks
    try:
        result = await work
    except BaseException as error:
        if _forks != before:
            leave(error)
        raise
    if _forks != before:
        leave()
    return result


def end_with_process(loop: asyncio.AbstractEventLoop) -> None:
    """Let this loop, run by this thread, take no further step in a copy of this process."""
    _loops[:] = [known for known in _loops if known[0]() is not None]
    _loops.append((weakref.ref(loop), threading.get_ident()))


def leave(error: BaseException | None = None) -> NoReturn:
    """End this process with the code that `error` asks for."""
    code = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        code = 1
        # Not by the log: its locks may be held by threads that the copy does not have.
        with suppress(OSError):
            os.write(2, "".join(traceback.format_exception(error)).encode(errors="replace"))
    os._exit(code & 0xFF)


def _forked() -> None:
    """In the copy, in the one thread that it has."""
    global _forks
    _forks += 1
    for reference, thread in _loops:
        loop = reference()
        if loop is not None and thread == threading.get_ident():
            # A handler that awaits in the copy would let the tasks of others go on there.
            loop.call_soon(leave)
            if (ready := getattr(loop, "_ready", None)) is not None:
                ready.rotate(1)


at_fork(after_in_child=_forked)
