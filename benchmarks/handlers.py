"""What the measured messages do: nothing, or note when they were picked up."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from deadletter import handler

if TYPE_CHECKING:
    from deadletter.lifecycle import Claimed


@handler("bench.nothing")
def nothing(message: Claimed) -> None:
    pass


@handler("bench.pickup")
def pickup(message: Claimed) -> None:
    """Write how long the message waited, in nanoseconds of a clock all processes share."""
    waited = time.monotonic_ns() - message.payload["sent"]
    with open(os.environ["BENCH_OUTPUT"], "a") as file:  # noqa: PTH123
        file.write(f"{waited}\n")
