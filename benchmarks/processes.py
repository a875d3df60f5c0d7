"""What do processes use? Processor time and memory of a process and its children, from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
STOP_SECONDS = 20
#: Lines of a worker's own words shown when it fails.
LAST_WORDS = 15


@contextmanager
def started(
    commands: list[list[str]], environment: Mapping[str, str], log: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the commands, and stop whatever is left of them."""
    running: list[subprocess.Popen[bytes]] = []
    with log.open("wb") as file:
        try:
            for command in commands:
                process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
                running.append(process)
            yield running
        finally:
            for process in running:
                stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, then insist; its children go with it."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        # Its own session: what a killed parent left behind is in the same group.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def have_ended(running: list[subprocess.Popen[bytes]]) -> bool:
    """Say whether all have ended, without taking their last figures away."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return all(os.waitid(os.P_PID, process.pid, options) for process in running)


def last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_WORDS:])


def cpu(*roots: int) -> float:
    """Seconds of processor time of these processes and all their children, also of dead ones."""
    return sum(_cpu(pid) for root in roots for pid in tree(root))


def memory(*roots: int) -> float:
    """Resident MB of these processes and their children; what forks share counts each time."""
    return sum(_resident(pid) for root in roots for pid in tree(root)) / 1e6


def tree(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # user, system, and both of the children that were waited for
    return sum(int(field) for field in fields[11:15]) / TICKS


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
