"""The measured messages as deadletter's handlers: counted, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import work
from deadletter import handler

if TYPE_CHECKING:
    from deadletter.lifecycle import Claimed


@handler("bench.nothing")
def nothing(message: Claimed) -> None:
    work.nothing()


@handler("bench.failing")
def failing(message: Claimed) -> None:
    work.failing(message.payload["n"], attempt=message.attempt)


@handler("bench.pickup")
def pickup(message: Claimed) -> None:
    work.pickup(message.payload["sent"])
