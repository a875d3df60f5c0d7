"""Handlers that write down when they start, fail and finish, and under which fence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deadletter import Status, handler
from tests.sample.journal import note
from tests.sample.models import Effect

from .crashes import die

PACKED, WEIGHED = Status(8), Status(16)


class AsAsked(Exception):
    """The payload wants this attempt to fail."""


@contextmanager
def noted(message: Any) -> Iterator[dict[str, Any]]:
    order = message.payload
    known = {"tag": order["tag"], "fence": message.fence}
    note("start", message, **known)
    try:
        yield order
        if message.attempt <= order.get("fail", 0):
            raise AsAsked(f"attempt {message.attempt}")
    except BaseException:
        note("failed", message, **known)
        raise
    note("finish", message, **known)


@handler("chaos.work")
def work(message: Any) -> None:
    with noted(message) as order:
        time.sleep(order.get("sleep", 0))


@handler("chaos.culprit")
def culprit(message: Any) -> None:
    """Does nothing wrong; tests let its process die around it."""
    with noted(message):
        pass


@handler("chaos.async")
async def work_async(message: Any) -> None:
    with noted(message) as order:
        await asyncio.sleep(order.get("sleep", 0))


@handler("chaos.effect", atomic=True)
def effect(message: Any) -> None:
    """Its work and its end are one transaction: exactly once, whatever happens."""
    with noted(message) as order:
        Effect.objects.create(message=message.id, note=order["tag"])
        time.sleep(order.get("sleep", 0))


@handler("chaos.staged")
def staged(message: Any) -> None:
    """Finish a stage, and the message next time; while it sleeps its worker writes a flag."""
    if message.status & PACKED:
        with noted(message):
            return
    known = {"tag": message.payload["tag"], "fence": message.fence}
    note("start", message, **known)
    message.done(WEIGHED)
    time.sleep(message.payload.get("sleep", 0))
    message.next_stage(PACKED)
    note("stage", message, **known)


@handler("chaos.crash")
def crash(message: Any) -> None:
    """Take the process along, for the first `times` attempts."""
    with noted(message) as order:
        if message.attempt <= order["times"]:
            die("handler")
