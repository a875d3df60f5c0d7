"""
Processes that are there at once: forked from one that has imported everything.

A worker takes most of a second to start, and a test for every point would wait for a hundred.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

#: Not a test's settings: their handlers write what the checker reads.
SETTINGS = "tests.chaos.settings"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.chaos.staged_crashes"])


class Actor:
    """A process in a group of its own, doing one of the things in `staged`."""

    def __init__(self, act: str, arguments: list[Any], environment: dict[str, str], log: Path):
        self.log = log
        self.process = _context.Process(target=_begin, args=(act, arguments, environment, str(log)))
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.process.exitcode

    def wait(self, patience: float = PATIENCE) -> int:
        self.process.join(patience)
        assert self.code is not None, f"did not end in {patience} s:\n{self.text()}"
        return self.code

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.join()
        print(f"--- {self.log.name}\n{self.text()}")  # shown by pytest on failure


@contextmanager
def stage(environment: dict[str, str], directory: Path) -> Iterator[Callable[..., Actor]]:
    """Give a function that starts processes, and end what is left of them."""
    actors: list[Actor] = []

    def start(act: str, *arguments: Any, **more: str) -> Actor:
        log = directory / f"{len(actors)}.txt"
        actors.append(Actor(act, list(arguments), environment | more, log))
        return actors[-1]

    try:
        yield start
    finally:
        for actor in actors:
            actor.close()


def _begin(act: str, arguments: list[Any], environment: dict[str, str], log: str) -> None:
    os.setsid()
    with Path(log).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.update(environment)
    from . import staged_crashes

    staged_crashes.ACTS[act](*arguments)
