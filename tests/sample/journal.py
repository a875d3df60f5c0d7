"""
What handlers did, written independently of any database: one line each, in one append-only file.

A line is written by a single write to a file opened for appending, so lines of several processes
do not mix, and what was written before a SIGKILL stays. Times are of the system-wide monotonic
clock and can be compared between processes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

#: Names the directory of the journal and of the gates.
DIRECTORY = "SAMPLE_DIRECTORY"


def note(what: str, message: Any, **more: Any) -> None:
    """Write down what a handler does with its message."""
    write(
        what,
        id=message.id,
        name=message.name,
        stream=message.stream,
        attempt=message.attempt,
        thread=threading.get_ident(),
        **more,
    )


def write(what: str, **fields: Any) -> None:
    """Write down anything else that happened."""
    line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **fields}
    file = os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def path() -> Path:
    return Path(os.environ[DIRECTORY]) / "journal"


def is_open(gate: str) -> bool:
    return (Path(os.environ[DIRECTORY]) / f"gate-{gate}").exists()


def pass_gate(gate: str) -> None:
    """Wait until a test opens the gate."""
    while not is_open(gate):
        time.sleep(0.01)
