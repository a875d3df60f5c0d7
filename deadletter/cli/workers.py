"""manage.py deadletter workers: worker processes, their queues and running messages."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

from .. import clock
from ..models import WorkerProcess
from .args import add_common, alias, number
from .output import Screen
from .text import ago

HELP = "list worker processes: alive or lost, their queues, what they run and hold"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alive", action="store_true", help="only live workers")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"]
    now = clock.now(using)
    rows = WorkerProcess.objects.using(using).order_by("name")
    if options["alive"]:
        rows = rows.alive(now)
    found = list(rows[: limit + 1])
    if screen.as_json:
        screen.json([worker_object(worker, now) for worker in found[:limit]])
    elif found:
        _table(screen, found[:limit], now)
    if not found:
        screen.say("no worker was found")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: raise --limit")
    return 0 if found else 1


def worker_object(worker: WorkerProcess, now: datetime) -> dict[str, Any]:
    return {
        "name": worker.name,
        "alive": worker.is_alive(now),
        "queues": worker.queues,
        "running": worker.running,
        "held": worker.held,
        "concurrency": worker.concurrency,
        "completed": worker.completed,
        "failed": worker.failed,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "release": worker.release or None,
        "started_at": worker.started_at,
        "seen_at": worker.seen_at,
    }


def _table(screen: Screen, workers: list[WorkerProcess], now: datetime) -> None:
    screen.table(
        [
            "worker",
            "is",
            "seen",
            "running",
            "held",
            "completed",
            "failed",
            "release",
            "queues",
            "runs now",
        ],
        [
            [
                worker.name,
                "alive" if worker.is_alive(now) else "lost",
                ago(worker.seen_at, now),
                f"{len(_listed(worker.running))}/{worker.concurrency}",
                worker.held,
                worker.completed,
                worker.failed,
                worker.release or "-",
                ", ".join(str(name) for name in _listed(worker.queues)) or "-",
                _running(worker),
            ]
            for worker in workers
        ],
    )


def _running(worker: WorkerProcess) -> str:
    """Return the messages that a worker runs, longest first, as it reported them."""
    told = [entry for entry in _listed(worker.running) if isinstance(entry, dict)]
    return ", ".join(f"{entry.get('name')} #{entry.get('id')}" for entry in told) or "-"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
