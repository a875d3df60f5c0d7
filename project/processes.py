"""Runs commands of this site side by side, with their output in one file, and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import IO

from django.conf import settings

#: Seconds a process may take to end before it is killed.
PATIENCE = 30.0
#: Lines of a process that are shown when it ended by itself.
LAST_LINES = 20

_output = Lock()


class Stopped(Exception):
    """The demonstration was stopped: Ctrl-C, SIGTERM, or the terminal was closed."""


class ProcessEnded(Exception):
    """A process ended by itself."""


class Processes:
    """
    The child processes, and one queue of their ends and of signals to this process.

    The output of the children goes to `log`, or to the terminal without one.
    """

    def __init__(self, log: IO[str] | None = None) -> None:
        self._log = log
        #: The last lines of each process, shown when it ends by itself.
        self._last: dict[str, deque[str]] = {}
        # SimpleQueue: its put may be called from a signal handler at any moment. An Event could
        # deadlock with the wait that the signal interrupts.
        self._events: SimpleQueue[str | None] = SimpleQueue()
        self._running: dict[str, tuple[subprocess.Popen[str], signal.Signals]] = {}

    def start(self, name: str, *command: str, stop_with: signal.Signals) -> None:
        """Start `manage.py <command>`; each line of its output is prefixed with the name."""
        program = [str(Path(settings.BASE_DIR) / "manage.py"), *command]
        self._start(name, program, stop_with, self._log)

    def start_shown(self, name: str, module: str, *arguments: str) -> None:
        """Start a module whose output is for the visitor: it goes to the terminal."""
        self._start(name, ["-m", module, *arguments], signal.SIGTERM, None)

    def _start(
        self, name: str, program: list[str], stop_with: signal.Signals, log: IO[str] | None
    ) -> None:
        process = subprocess.Popen(  # noqa: S603 - our own programs, no shell
            [sys.executable, *program],
            cwd=settings.BASE_DIR,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "DJANGO_RUNSERVER_HIDE_WARNING": "true"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C must reach this process only, which then sends each child one signal.
            start_new_session=True,
        )
        self._running[name] = (process, stop_with)
        say("demo", f"{name} is process {process.pid}")
        Thread(target=self._follow, args=(name, process, log), daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait. Raises Stopped or ProcessEnded as soon as one of them happens."""
        try:
            event = self._events.get(timeout=seconds)
        except Empty:
            return
        if event is None:
            raise Stopped
        process, _ = self._running.pop(event)
        if self._log is not None:
            for line in self._last[event]:
                say(event, line)
        raise ProcessEnded(f"{event} ended by itself with exit code {process.returncode}")

    def stop(self) -> None:
        """Signal every process and wait for its end; a second Ctrl-C signals them again."""
        deadline = time.monotonic() + PATIENCE
        self._signal_all()
        while self._running:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                self._kill_all()
                return
            if event is None:
                self._signal_all()
            else:
                del self._running[event]

    def _follow(self, name: str, process: subprocess.Popen[str], log: IO[str] | None) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        last = self._last[name] = deque(maxlen=LAST_LINES)
        for line in process.stdout:
            last.append(line.rstrip())
            say(name, line.rstrip(), log)
        process.wait()
        self._events.put(name)

    def _signal_all(self) -> None:
        for process, stop_with in self._running.values():
            process.send_signal(stop_with)

    def _kill_all(self) -> None:
        for name, (process, _) in self._running.items():
            say("demo", f"{name} did not end within {PATIENCE:g} seconds and is killed")
            process.kill()
            process.wait()
        self._running.clear()

    def _ask_to_stop(self, number: int, frame: object) -> None:
        self._events.put(None)


@contextmanager
def processes(log: IO[str] | None = None) -> Iterator[Processes]:
    """Turn signals into events inside this block; no child process outlives it."""
    group = Processes(log)
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.signal(number, group._ask_to_stop) for number in numbers}
    try:
        yield group
    finally:
        group.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def say(name: str, line: str, file: IO[str] | None = None) -> None:
    """Write one line, prefixed with a name, to the terminal or a file. Thread-safe."""
    with _output:
        try:
            print(f"{name:>6} | {line}", flush=True, file=file)
        except BrokenPipeError:
            # The reader of the output has ended (`make demo | head`): discard the rest.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
