"""
Is a long backlog drained to the last message? `python -m tests.endurance.backlog` (`make backlog`).

A million messages, a tenth of them in a thousand streams, and two worker processes that drain them
on a private PostgreSQL. Every handler writes its message's id into a file; afterwards the files,
the counters and the empty table must tell the same story.
"""

from __future__ import annotations

import argparse
import array
import collections
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.private_postgres import private_server

SETTINGS = "tests.endurance.settings"
#: Messages of one call of send_many.
CHUNK = 20_000
STREAMS = 1_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make backlog", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    with private_server() as server, tempfile.TemporaryDirectory() as notes:
        os.environ |= {"DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": SETTINGS}
        os.environ |= {"ENDURANCE_NOTES": notes, "LOG_LEVEL": "ERROR"}
        import django

        django.setup()
        return drain(given.messages, given.processes, Path(notes))


def drain(messages: int, processes: int, notes: Path) -> int:
    from django.core.management import call_command
    from django.db.models import Sum

    from deadletter.models import Count, Message, PoisonRecord

    call_command("migrate", verbosity=0)
    began = time.monotonic()
    sent = _send(messages)
    print(f"{len(sent):,} sent in {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    command = [sys.executable, "manage.py", "run_worker", "--drain"]
    workers = [subprocess.Popen(command) for _ in range(processes)]
    codes = [worker.wait() for worker in workers]
    took = time.monotonic() - began
    print(f"drained by {processes} processes in {took:.0f} s: {len(sent) / took:,.0f} a second")

    handled = _handled(notes)
    completed = Count.objects.aggregate(n=Sum("completed"))["n"]
    left, dead = Message.objects.count(), PoisonRecord.objects.count()
    lost, unexpected = sent - handled.keys(), handled.keys() - sent
    twice = sum(times > 1 for times in handled.values())
    print(
        f"handled {len(handled):,}, counted {completed:,}, left {left}, poison {dead}, "
        f"lost {len(lost)}, unexpected {len(unexpected)}, handled twice {twice}, exits {codes}"
    )
    is_right = completed == len(sent) and not (left or dead or lost or unexpected or twice)
    return 0 if is_right and not any(codes) else 1


def _send(messages: int) -> set[int]:
    from deadletter import Outgoing, send_many

    sent: set[int] = set()
    for first in range(0, messages, CHUNK):
        numbers = range(first, min(first + CHUNK, messages))
        sent.update(
            send_many(
                [
                    Outgoing("endurance.noted", stream=None if n % 10 else f"s{n // 10 % STREAMS}")
                    for n in numbers
                ]
            )
        )
    return sent


def _handled(notes: Path) -> collections.Counter[int]:
    """How often each id was written down."""
    found: collections.Counter[int] = collections.Counter()
    for file in notes.glob("*.ids"):
        found.update(array.array("q", file.read_bytes()))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
