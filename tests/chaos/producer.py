"""
`python -m tests.chaos.producer NUMBER SEED SECONDS`: send messages, and write down what is known.

Before a transaction: `attempted`. After its commit: `acked` with the ids. After a rollback:
`withdrawn`. After an error nothing is known, and `unknown` says so.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import django
from django.db import Error, connection, transaction

from tests.sample.journal import write

#: Streams of one producer. Nobody else sends to them: two senders have no order between them.
STREAMS = 6
#: Transactions a second.
RATE = 12


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
    name = chance.choices(
        ("chaos.work", "chaos.async", "chaos.effect", "chaos.crash"), (70, 10, 19, 0.4)
    )[0]
    if name == "chaos.crash":
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
    return {"name": name, "payload": payload, "stream": stream}


def produce(number: int, seed: int, seconds: float) -> None:
    from deadletter import send

    end = time.monotonic() + seconds
    for batch, rolled_back in orders(number, seed):
        if time.monotonic() > end:
            break
        tags = [order["payload"]["tag"] for order in batch]
        write("attempted", tags=tags, streams=[order["stream"] for order in batch])
        try:
            with transaction.atomic():
                ids = [send(**order).pk for order in batch]
                if rolled_back:
                    raise Withdrawn
        except Withdrawn:
            write("withdrawn", tags=tags)
        except Error as error:
            write("unknown", tags=tags, error=str(error))
            connection.close()
        else:
            write("acked", tags=tags, ids=ids)
        time.sleep(1 / RATE)


if __name__ == "__main__":
    django.setup()
    produce(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
