"""
Fork hooks, and the rule for a forked copy of a worker: it ends where the handler's code returns.

A handler may fork (`os.fork`, `multiprocessing`), and the copy may return from the handler. It
shares the worker's sockets and crash ledger and would go on as a second worker. `call` and
`wait_for` end such a copy at once: without exit handlers, and without flushing buffers that
belong to the worker.

Windows has no fork; there the hooks are not registered.
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

T = TypeVar("T")

#: True if `run_worker --processes` can start processes on this platform.
CAN_FORK = hasattr(os, "fork")

#: Number of forks between this process and the one that imported this module.
_forks = 0
#: Event loops of workers, with the thread that runs each.
_loops: list[tuple[weakref.ref[asyncio.AbstractEventLoop], int]] = []


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Call these functions around every fork, where the platform has forks."""
    hooks = {
        "before": before,
        "after_in_parent": after_in_parent,
        "after_in_child": after_in_child,
    }
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**{when: call for when, call in hooks.items() if call is not None})


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call application code. If the caller is a forked copy when it returns, end the copy."""
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
    """Await application code, with the same rule as `call`."""
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
    """Stop this loop, which the calling thread runs, in any forked copy of this process."""
    _loops[:] = [known for known in _loops if known[0]() is not None]
    _loops.append((weakref.ref(loop), threading.get_ident()))


def leave(error: BaseException | None = None) -> NoReturn:
    """End this process with the exit code that `error` asks for."""
    code = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        code = 1
        # Not through logging: its locks may be held by threads that the copy does not have.
        with suppress(OSError):
            os.write(2, "".join(traceback.format_exception(error)).encode(errors="replace"))
    os._exit(code & 0xFF)


def _forked() -> None:
    """Count the fork and stop the event loop. Runs in the copy, in its only thread."""
    global _forks
    _forks += 1
    for reference, thread in _loops:
        loop = reference()
        if loop is not None and thread == threading.get_ident():
            # A handler that awaits in the copy would let the loop run other handlers' tasks there.
            loop.call_soon(leave)
            if (ready := getattr(loop, "_ready", None)) is not None:
                ready.rotate(1)


at_fork(after_in_child=_forked)
