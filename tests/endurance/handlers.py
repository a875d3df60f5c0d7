"""Handlers of the long runs: most succeed, some fail first, some never succeed."""

from __future__ import annotations

import asyncio
import functools
import os
import struct
from pathlib import Path
from typing import Any

from deadletter import Permanent, handler


@handler("endurance.plain")
def plain(message: Any) -> None:
    """Does nothing: what is watched is the worker."""


@handler("endurance.async")
async def unhurried(message: Any) -> None:
    await asyncio.sleep(0.01)


@handler("endurance.atomic", atomic=True)
def atomic(message: Any) -> None:
    """In one transaction with its own completion."""


@handler("endurance.stumbles")
def stumbles(message: Any) -> None:
    if message.attempt == 1:
        raise RuntimeError(f"attempt {message.attempt} of {message.id}")


@handler("endurance.fails")
def fails(message: Any) -> None:
    raise ValueError(f"message {message.id} never succeeds")


@handler("endurance.refuses")
def refuses(message: Any) -> None:
    raise Permanent("not even once more")


@handler("endurance.noted")
def noted(message: Any) -> None:
    """Write the id down, in a file of this process: what ran is known without the queue."""
    os.write(_notes(os.getpid()), struct.pack("q", message.id))


@functools.cache
def _notes(pid: int) -> int:
    path = Path(os.environ["ENDURANCE_NOTES"]) / f"{pid}.ids"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
