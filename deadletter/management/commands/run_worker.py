"""manage.py run_worker: claim messages and run their handlers until told to stop."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS

from ...models import Queue
from ...worker.loop import Worker
from ...worker.registry import discover, registry


class Command(BaseCommand):
    help = "Claim messages and run their handlers until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queues", help="comma-separated, in order of preference (default: all)"
        )
        parser.add_argument("--batch", type=int, default=100, help="messages per claim")
        parser.add_argument("--lease", type=float, help="seconds (default: the queue's)")
        parser.add_argument("--poll", type=float, default=1.0, help="seconds between looks")
        parser.add_argument("--drain", action="store_true", help="stop when nothing is due")
        parser.add_argument("--name", help="shown in leases and logs (default: host:pid)")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="alias to work on")

    def handle(self, *args: Any, **options: Any) -> None:
        if not logging.getLogger("deadletter").hasHandlers():
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        discover()
        worker = Worker(
            name=options["name"] or f"{socket.gethostname()}:{os.getpid()}",
            queues=_queues(options["queues"], options["database"]),
            batch=options["batch"],
            lease=options["lease"],
            poll=options["poll"],
            using=options["database"],
        )
        worker.stop_on_signals()
        self.stdout.write(f"worker {worker.name} started: {len(registry.names())} handlers")
        tally = worker.run(drain=options["drain"])
        self.stdout.write(
            f"worker {worker.name} stopped: {tally.completed} completed, {tally.failed} failed, "
            f"{tally.poisoned} poisoned, {tally.released} released, {tally.deferred} deferred"
        )


def _queues(given: str | None, using: str) -> list[str] | None:
    if given is None:
        return None
    names = [name.strip() for name in given.split(",") if name.strip()]
    existing = set(Queue.objects.using(using).values_list("name", flat=True))
    unknown = [name for name in names if name not in existing]
    if unknown or not names:
        raise CommandError(
            f"unknown queue {', '.join(unknown) or given!r} "
            f"(existing: {', '.join(sorted(existing))})"
        )
    return names
