"""
`python -m tests.chaos.producer NUMBER SEED SECONDS`: send messages, and write down what is known.

Before a transaction: `attempted`. After its commit: `acked` with the ids. After a rollback:
`withdrawn`. After an error nothing is known, and `unknown` says so. A third of the messages are
tasks; whenever the result of one that was stored cannot be read, `unread` says so. With a broker
each transaction also publishes events, of which the same lines tell.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import django
from django.db import Error, connection, transaction

from tests.sample.journal import write

from .topics import REFUSED, TOPICS

#: Streams of one producer. Nobody else sends to them: two senders have no order between them.
STREAMS = 6
#: Transactions a second.
RATE = 12
#: Keys of one producer: few, so that they are often taken.
KEYS = 3
#: Keys of the events of one producer.
EVENT_KEYS = 8


class Withdrawn(Exception):
    """Rolls a transaction back."""


def orders(number: int, seed: int) -> Iterator[tuple[list[dict[str, Any]], bool]]:
    """Yield what to send in one transaction, and whether to roll it back; by seed, for ever."""
    chance = random.Random(f"{seed}/{number}")
    count = 0
    while True:
        batch = []
        for _ in range(chance.choice((1, 1, 2, 3, 6))):
            count += 1
            batch.append(_order(chance, f"{number}-{count}", number))
        yield batch, chance.random() < 0.08


def _order(chance: random.Random, tag: str, number: int) -> dict[str, Any]:
    payload: dict[str, Any] = {"tag": tag, "sleep": round(chance.uniform(0, 0.02), 4)}
    work = chance.choices(("work", "async", "effect", "crash"), (70, 10, 19, 0.4))[0]
    if work == "crash":
        payload["times"] = chance.choice((1, 1, 99))
    fate = chance.random()
    if fate < 0.02:
        payload["fail"] = 99
    elif fate < 0.08:
        payload["fail"] = chance.choice((1, 1, 2))
    elif fate < 0.09:
        # Longer than a lease: it must be renewed.
        payload["sleep"] = 4.0
    stream = f"{number}-{chance.randrange(STREAMS)}" if chance.random() < 0.5 else None
    if chance.random() < 0.65:
        return {"name": f"chaos.{work}", "payload": payload, "stream": stream}
    return _task(chance, "work_async" if work == "async" else work, payload, stream, number)


def _task(
    chance: random.Random, task: str, payload: dict[str, Any], stream: str | None, number: int
) -> dict[str, Any]:
    queue = chance.choices(("default", "moving", "discarding"), (60, 20, 20))[0]
    if queue != "default" and chance.random() < 0.2:
        payload["fail"] = 99
    if stream is not None and queue != "default":
        stream = f"{queue}-{stream}"
    key = f"{number}-{chance.randrange(KEYS)}" if chance.random() < 0.1 else None
    return {"task": task, "queue": queue, "payload": payload, "stream": stream, "key": key}


def _send(order: dict[str, Any]) -> tuple[int, str]:
    """Send a message or enqueue a task; return the id and the tag of what has its key now."""
    from deadletter import send

    from . import tasks

    tag: str = order["payload"]["tag"]
    if "task" not in order:
        return send(**order).pk, tag
    task = getattr(tasks, order["task"]).using(
        queue_name=order["queue"], stream=order["stream"], key=order["key"]
    )
    result = task.enqueue(**order["payload"])
    return int(result.id), result.kwargs["tag"]


def events(number: int, seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each transaction; by seed, for ever."""
    chance = random.Random(f"events {seed}/{number}")
    count = 0
    while True:
        batch = []
        for _ in range(chance.choice((0, 1, 1, 2, 3, 5))):
            count += 1
            tag = f"e{number}-{count}"
            topic = REFUSED if chance.random() < 0.03 else chance.choice(TOPICS)
            # Nobody else publishes under these keys: two publishers have no order between them.
            key = f"{number}-{chance.randrange(EVENT_KEYS)}" if chance.random() < 0.8 else None
            batch.append(
                {"topic": topic, "payload": {"tag": tag}, "key": key, "headers": {"tag": tag}}
            )
        yield batch


def _publish(offered: list[dict[str, Any]]) -> dict[str, int]:
    """Publish events one by one, or more than two at once; return their ids by tag."""
    from deadletter import OutgoingEvent, publish, publish_many

    tags = [event["payload"]["tag"] for event in offered]
    if len(offered) > 2:
        ids = publish_many(OutgoingEvent(**event) for event in offered)
    else:
        ids = [publish(**event).pk for event in offered]
    return dict(zip(tags, ids, strict=True))


def _read_again(ids: list[int], chance: random.Random) -> None:
    """Read the result of a task that was stored: it exists, wherever the task is by now."""
    from deadletter.tasks.frameworks import primary

    id = chance.choice(ids)
    try:
        primary().backends["default"].get_result(str(id))
    except primary().result_does_not_exist:
        write("unread", id=id)
    except Error:
        connection.close()


def produce(number: int, seed: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    known: list[int] = []
    chance = random.Random(seed)
    with_broker = "CHAOS_BROKERS" in os.environ
    for (batch, rolled_back), offered in zip(
        orders(number, seed), events(number, seed), strict=False
    ):
        if time.monotonic() > end:
            break
        told: dict[str, Any] = {}
        if with_broker:
            # A half of the work for the workers, of whom fewer are there.
            batch = batch[: 1 + len(batch) // 2]
            told["events"] = [
                [event["payload"]["tag"], event["key"], event["topic"]] for event in offered
            ]
        tags = [order["payload"]["tag"] for order in batch]
        tasks = [order["payload"]["tag"] for order in batch if "task" in order]
        streams = [order["stream"] for order in batch]
        write("attempted", tags=tags, streams=streams, tasks=tasks, **told)
        published: dict[str, int] = {}
        try:
            with transaction.atomic():
                sent = [_send(order) for order in batch]
                if with_broker:
                    published = _publish(offered)
                if rolled_back:
                    raise Withdrawn
        except Withdrawn:
            write("withdrawn", tags=tags, **told)
        except Error as error:
            write("unknown", tags=tags, error=str(error), **told)
            connection.close()
        else:
            own = {tag: id for (id, holder), tag in zip(sent, tags, strict=True) if holder == tag}
            write("acked", tags=list(own), ids=list(own.values()), events=published)
            # A key was taken: an earlier task stands for this one.
            if merged := [tag for tag in tags if tag not in own]:
                write("withdrawn", tags=merged)
            known += [id for tag, id in own.items() if tag in tasks]
        if known:
            _read_again(known, chance)
        time.sleep(1 / RATE)


if __name__ == "__main__":
    django.setup()
    produce(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
