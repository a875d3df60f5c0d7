"""Tasks that write down the same as the handlers, and return under which fence they finished."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deadletter.tasks import task
from tests.sample.journal import note, write
from tests.sample.models import Effect

from .crashes import die
from .handlers import AsAsked

#: Queues beside "default" and what they do with what dies, and the dead queue.
MOVING, DISCARDING, DEAD = "moving", "discarding", "dead"


@contextmanager
def noted(context: Any, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Write down what a task does; the value becomes its result."""
    message = context.message
    known = {"tag": order["tag"], "fence": message.fence}
    note("start", message, **known)
    try:
        yield known
        if context.attempt <= order.get("fail", 0):
            raise AsAsked(f"attempt {context.attempt}")
    except BaseException:
        note("failed", message, **known)
        raise
    note("finish", message, **known)


@task(takes_context=True)
def work(context: Any, **order: Any) -> dict[str, Any]:
    with noted(context, order) as known:
        time.sleep(order.get("sleep", 0))
    return known


@task(takes_context=True)
async def work_async(context: Any, **order: Any) -> dict[str, Any]:
    with noted(context, order) as known:
        await asyncio.sleep(order.get("sleep", 0))
    return known


@task(takes_context=True, atomic=True)
def effect(context: Any, **order: Any) -> dict[str, Any]:
    """Its work, its end and its result are one transaction."""
    with noted(context, order) as known:
        Effect.objects.create(message=context.message.id, note=order["tag"])
        time.sleep(order.get("sleep", 0))
    return known


@task(takes_context=True)
def crash(context: Any, **order: Any) -> dict[str, Any]:
    """Take the process along, for the first `times` attempts."""
    with noted(context, order) as known:
        if context.attempt <= order["times"]:
            die("handler")
    return known


def hear(task_result: Any, **kwargs: Any) -> None:
    """Write down that the end of a task was announced."""
    write("told", id=int(task_result.id), status=str(task_result.status))


def tag_of(payload: Any) -> str:
    """Return the tag of a message or of a task."""
    tag: str = payload["kwargs"]["tag"] if "kwargs" in payload else payload["tag"]
    return tag
