"""
The reloader: the parent of a worker and of a watcher that restarts the worker when code changes.

The watcher (`watcher.py`) uses Django's autoreloader. Django's own parent process is not used: it
kills its child when it is told to stop, and the messages of a worker would be charged an attempt.

The worker is started when the watcher watches, so no change is missed, and after the last worker
has ended. It has the reloader's command line; an environment variable tells it that it is the
worker. It stays in the process group of the reloader, so that a debugger can use the terminal, and
leaves Ctrl-C to the reloader, as a child does under a supervisor.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

from django.utils import autoreload

from ..logs import event
from .process_death import describe_exit
from .shutdown import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The environment variable with the process id of the reloader.
VARIABLE = "DEADLETTER_RELOADER"
#: Seconds between two rounds in which worker and signals are checked, at most.
ROUND = 0.1
#: Seconds beyond the grace after which a worker is killed. A supervisor kills its children earlier.
PATIENCE = 30.0


class NestedReloader(Exception):
    """A worker that a reloader started, or a process of such a worker, is told to reload."""


def reloader_pid() -> int:
    """Return the process id of the reloader that started this worker, or 0."""
    pid = os.environ.get(VARIABLE, "")
    return int(pid) if pid == str(os.getppid()) else 0


class Reloader:
    """Runs one worker at a time and starts the next one when the code has changed."""

    def __init__(self, *, grace: float) -> None:
        """Raises: NestedReloader."""
        if VARIABLE in os.environ:
            # A worker that does not recognize its reloader would start a worker, and so on.
            raise NestedReloader
        self._grace = grace
        self._command = autoreload.get_child_arguments()
        self._watcher: Watcher
        self._worker: subprocess.Popen[bytes] | None = None
        #: True if a worker is to be started as soon as possible.
        self._is_due = True
        self._is_stopping = False
        self._kill_at = 0.0
        self._signals: list[int] = []
        self._passed_on = 0
        #: The exit code, once it is clear that the reloader ends.
        self._code: int | None = None

    def run(self) -> int:
        """Work until a signal, or until the worker ends in good order; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)
        # If our parent ignored SIGCHLD, children would vanish without a status.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        event(
            logging.INFO,
            "reloader_started",
            "process {pid} restarts the worker when code changes",
            pid=os.getpid(),
        )
        self._watcher = Watcher(self._command)
        try:
            while self._code is None or self._worker is not None:
                self._read_reports()
                self._pass_on_signals()
                self._reap()
                self._kill_late()
                if self._is_due and self._code is None and self._watcher.is_watching:
                    self._start()
        finally:
            self._watcher.kill()
            if self._worker is not None:
                self._worker.terminate()
        return self._code

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _read_reports(self) -> None:
        for report in self._watcher.read(ROUND):
            if self._code is not None:
                return
            if "changed" in report:
                self._restart(report["changed"])
                return
            if report["watching"]:
                event(
                    logging.WARNING,
                    "watcher_import_failed",
                    "the code cannot be imported: {error}. Its files are watched as far as they "
                    "are known",
                    error=report["watching"],
                )
        if self._watcher.has_ended and self._code is None:
            event(
                logging.ERROR,
                "watcher_died",
                "the process that watches the code died of {reason}; the worker stops",
                reason=describe_exit(self._watcher.wait()),
            )
            self._code = 1
            self._stop()

    def _restart(self, path: str) -> None:
        event(logging.INFO, "code_changed", "{path} changed: restarting the worker", path=path)
        self._stop()
        self._watcher.kill()
        # It imports the code while the old worker stops.
        self._watcher = Watcher(self._command)
        self._is_due = True

    def _start(self) -> None:
        if self._worker is not None:
            return
        self._is_due = self._is_stopping = False
        environment = {**os.environ, VARIABLE: str(os.getpid())}
        # Unblocked when the worker ignores it: Ctrl-C would interrupt its imports.
        with _blocked(signal.SIGINT):
            self._worker = subprocess.Popen(self._command, env=environment)  # noqa: S603

    def _stop(self, *, at_once: bool = False) -> None:
        """Tell the worker to stop: to finish within the grace, or at once."""
        if self._worker is None:
            return
        self._is_stopping = True
        self._kill_at = monotonic() + PATIENCE + (0.0 if at_once else self._grace)
        self._worker.send_signal(AT_ONCE if at_once else signal.SIGTERM)

    def _pass_on_signals(self) -> None:
        while self._passed_on < len(self._signals):
            self._code = self._code or 0
            self._stop(at_once=self._passed_on > 0)
            event(
                logging.INFO,
                "stopping",
                "received {signal}: stopping the worker{hurry}",
                signal=signal.Signals(self._signals[self._passed_on]).name,
                hurry=" at once" if self._passed_on else "",
            )
            self._passed_on += 1

    def _reap(self) -> None:
        code = None if self._worker is None else self._worker.poll()
        if code is None:
            return
        self._worker = None
        if self._code is not None:
            # These signals end a worker that does not handle them yet: it held nothing.
            if code not in (0, -signal.SIGTERM, -AT_ONCE):
                self._code = code if code > 0 else 1
        elif self._is_stopping:
            return
        elif code == 0:
            self._code = 0
        else:
            event(
                logging.ERROR,
                "worker_ended",
                "the worker ended with {reason}; the next one starts when code changes",
                reason=describe_exit(code),
            )

    def _kill_late(self) -> None:
        if self._worker is not None and self._is_stopping and monotonic() > self._kill_at:
            event(
                logging.ERROR,
                "worker_killed",
                "the worker (process {pid}) does not stop and is killed",
                pid=self._worker.pid,
            )
            self._worker.kill()
            self._kill_at = monotonic() + PATIENCE


class Watcher:
    """The process that watches the code, and the reports that it writes."""

    def __init__(self, command: list[str]) -> None:
        #: True if changes from now on are reported.
        self.is_watching = False
        #: True if nothing more is reported.
        self.has_ended = False
        self._text = b""
        self._pipe, pipe = os.pipe()
        try:
            with _blocked(signal.SIGINT, signal.SIGTERM):
                self._process = subprocess.Popen(  # noqa: S603
                    _watcher_command(command, pipe), stdout=subprocess.DEVNULL, pass_fds=[pipe]
                )
        finally:
            os.close(pipe)

    def read(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Wait for reports for so long; yield them."""
        pipes = [] if self.has_ended else [self._pipe]
        if not select.select(pipes, [], [], seconds)[0]:
            return
        received = os.read(self._pipe, 65_536)
        self.has_ended = not received
        *lines, self._text = (self._text + received).split(b"\n")
        for line in lines:
            report = json.loads(line)
            self.is_watching = self.is_watching or "watching" in report
            yield report

    def wait(self) -> int:
        """Return the exit code of a process that has ended; end it if it has not."""
        with suppress(subprocess.TimeoutExpired):
            # The pipe is closed a moment before the process has ended.
            self._process.wait(1.0)
        self.kill()
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe, self.has_ended = -1, True


def _watcher_command(command: list[str], pipe: int) -> list[str]:
    """Return the command line of the watcher for that of a worker."""
    arguments = sys.argv[1:]
    interpreter = command[: len(command) - len(arguments)]
    program = interpreter[-2:] if interpreter[-2] == "-m" else interpreter[-1:]
    # As the project is found here: the directory of manage.py, or --pythonpath.
    path = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100 - "" is this directory
    code = (
        f"import sys; sys.path[:] = {path!r}; from deadletter.worker.watcher import main; "
        f"main({pipe}, {os.getpid()})"
    )
    return [*interpreter[: -len(program)], "-c", code, *program, *arguments]


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """Let processes start with these signals blocked; here they are received afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
