"""
Does anything grow? `python -m tests.endurance.soak --seconds 3600 --rate 50` (`make soak`).

A producer and two workers on a private PostgreSQL; memory, open files, threads and connections of
each are looked at every few seconds. Writes soak.json and soak.svg, says whether all stayed flat
and every message is accounted for, and fails if not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.private_postgres import private_server

from .picture import draw
from .watch import Watch, grown, growth

SETTINGS = "tests.endurance.settings"
WORKERS = 2
#: Seconds for what was sent to be finished once nothing more is sent: longest backoff and a bit.
DRAIN_SECONDS = 60
#: The picture and the file need no more points.
POINTS = 360

#: Sent in turn: mostly ordinary work; a message in twenty fails first, one in fifty for good.
NAMES = (
    ["endurance.plain"] * 60
    + ["endurance.async"] * 20
    + ["endurance.atomic"] * 13
    + ["endurance.stumbles"] * 5
    + ["endurance.fails", "endurance.refuses"]
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rate", type=float, default=50, help="messages a second")
    parser.add_argument("--every", type=float, default=5, help="seconds between two samples")
    parser.add_argument("--into", type=Path, default=Path("docs/reliability"))
    parser.add_argument("--produce", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.produce:
        return produce(given.seconds, given.rate)
    given.into.mkdir(parents=True, exist_ok=True)
    return soak(given)


def soak(given: argparse.Namespace) -> int:
    with private_server() as server, processes(server.url, given) as (pids, producer):
        watch = Watch(server.url, pids)
        while producer.poll() is None:
            watch.look()
            _say(watch.samples[-1])
            time.sleep(given.every)
        if producer.returncode:
            print("the producer failed", file=sys.stderr)
            return 1
        left = _drained(watch)
        counted = watch.counted()
        watch.close()
    problems = grown(watch.samples)
    if left or counted["sent"] != counted["completed"] + counted["poisoned"]:
        problems.append(f"not every message is accounted for: {counted}, {left} left")
    _write(given, watch, counted, problems)
    for problem in problems or [f"flat, and all accounted for: {counted}"]:
        print(problem)
    return 1 if problems else 0


@contextmanager
def processes(
    url: str, given: argparse.Namespace
) -> Iterator[tuple[dict[str, int], subprocess.Popen[bytes]]]:
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": SETTINGS}
    environment["LOG_LEVEL"] = "ERROR"
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "--verbosity", "0"], env=environment, check=True)
    command = [sys.executable, "-m", "tests.endurance.soak", "--produce"]
    command += ["--seconds", str(given.seconds), "--rate", str(given.rate)]
    running = {
        f"worker {n}": subprocess.Popen([*manage, "run_worker"], env=environment)
        for n in range(1, WORKERS + 1)
    }
    producer = subprocess.Popen(command, env=environment)
    try:
        yield {name: process.pid for name, process in running.items()}, producer
    finally:
        for process in [producer, *running.values()]:
            process.terminate()
        for process in [producer, *running.values()]:
            process.wait()


def produce(seconds: float, rate: float) -> int:
    """
    Send at a steady rate; a third of it in 97 streams.

    Not in a number that divides the turns of the names: one stream would get all that fails, and
    grow for ever.
    """
    import django

    django.setup()
    from deadletter import send

    began = time.monotonic()
    for number, name in enumerate(itertools.cycle(NAMES)):
        due = began + number / rate
        if due > began + seconds:
            return 0
        time.sleep(max(0.0, due - time.monotonic()))
        send(name, {"n": number}, stream=None if number % 3 else f"s{number % 97}")
    raise AssertionError("unreachable")


def _drained(watch: Watch) -> int:
    deadline = time.monotonic() + DRAIN_SECONDS
    while watch.look()["messages"] and time.monotonic() < deadline:
        time.sleep(1)
    return int(watch.samples[-1]["messages"])


def _say(sample: dict[str, float]) -> None:
    if len(sample) and int(sample["second"]) % 60 < 5:
        print(" ".join(f"{name}={value:g}" for name, value in sample.items()), flush=True)


def _write(
    given: argparse.Namespace, watch: Watch, counted: dict[str, int], problems: list[str]
) -> None:
    every = -(-len(watch.samples) // POINTS)
    report = {
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": given.seconds,
        "rate": given.rate,
        "workers": WORKERS,
        "python": platform.python_version(),
        "counted": counted,
        "problems": problems,
        "medians": {name: list(pair) for name, pair in growth(watch.samples).items()},
        "samples": watch.samples[::every],
    }
    text = json.dumps(report, indent=1)
    (given.into / "soak.json").write_text(text + "\n")
    (given.into / "soak.svg").write_text(draw(report["samples"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
