"""
DEADLETTER_CRASH_AT=point[:n]: a process kills itself when it passes a point for the n-th time.

Only where this application is installed, and never more than DEADLETTER_CRASHES times in all:
each death takes one of so many tokens in the journal's directory. DEADLETTER_CRASH_NAME: only for
messages of this name. DEADLETTER_CRASH_IN=children: not in the process that was told, but in those
it forks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deadletter import crash_points
from tests.sample.journal import DIRECTORY, write

#: More than any test lets happen.
UNLIMITED = 1_000
#: Seconds in which a process that killed itself is dead, on a machine with too much to do.
DYING = 1.0


def arm(environment: Mapping[str, str]) -> None:
    """Listen at the point the environment names, if it names one."""
    if where := environment.get("DEADLETTER_CRASH_AT"):
        crash_points.listen(Crash(where, environment))


class Crash:
    def __init__(self, where: str, environment: Mapping[str, str]) -> None:
        self.point, _, nth = where.partition(":")
        if self.point not in crash_points.POINTS:
            raise ValueError(f"DEADLETTER_CRASH_AT: there is no point {self.point!r}")
        self._passes_left = int(nth or 1)
        self._crashes = int(environment.get("DEADLETTER_CRASHES", UNLIMITED))
        self._name = environment.get("DEADLETTER_CRASH_NAME")
        self._spared = os.getpid() if environment.get("DEADLETTER_CRASH_IN") == "children" else 0

    def __call__(self, point: str, subject: Any) -> None:
        if point != self.point or os.getpid() == self._spared:
            return
        if self._name is not None and subject is not None and subject.name != self._name:
            return
        self._passes_left -= 1
        if self._passes_left <= 0 and _take_token(self._crashes):
            die(point)


def die(kind: str) -> None:
    """Write it down and be gone."""
    # Before the signal arrives, another thread of this process may start a handler.
    write("fault", kind=kind, pids=[os.getpid()], until=time.monotonic() + DYING)
    os.kill(os.getpid(), signal.SIGKILL)


def _take_token(limit: int) -> bool:
    for number in range(limit):
        try:
            (Path(os.environ[DIRECTORY]) / f"crash-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False
