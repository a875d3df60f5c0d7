"""manage.py deadletter: the command of operators, probes and scripts."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.db.utils import Error as DatabaseError

from ...cli import (
    alerts,
    audits,
    breakers,
    candidates,
    groups,
    health,
    instances,
    lists,
    outbox,
    queues,
    remove,
    results,
    retry,
    schedules,
    send,
    show,
    stats,
    streams,
    transfer,
    workers,
)
from ...cli.args import MixedParser
from ...cli.output import Screen, usage
from ...exceptions import LockNotAvailable
from ...text import terminal_line

#: Name, help, the function that adds the arguments, the function that runs the sub-command.
PARTS = (
    ("send", send.HELP, send.add, send.run),
    ("list", lists.HELP, lists.add, lists.run),
    ("groups", groups.HELP, groups.add, groups.run),
    ("group", groups.HELP_ONE, groups.add_one, groups.run_one),
    ("show", show.HELP, show.add, show.run),
    ("retry", retry.HELP, retry.add, retry.run),
    ("remove", remove.HELP, remove.add, remove.run),
    ("results", results.HELP, results.add, results.run),
    ("cancel", results.HELP_CANCEL, remove.add_messages, results.run_cancel),
    ("release", remove.HELP_RELEASE, remove.add_messages, remove.run_release),
    ("poison", remove.HELP_POISON, remove.add_messages, remove.run_poison),
    ("instances", instances.HELP, instances.add, instances.run),
    ("instance", instances.HELP_ONE, instances.add_one, instances.run_one),
    ("stats", stats.HELP, stats.add, stats.run),
    ("streams", streams.HELP, streams.add, streams.run),
    ("candidates", candidates.HELP, candidates.add, candidates.run),
    ("workers", workers.HELP, workers.add, workers.run),
    ("breakers", breakers.HELP, breakers.add, breakers.run),
    ("outbox", outbox.HELP, outbox.add, outbox.run),
    ("queues", queues.HELP, queues.add, queues.run),
    ("schedules", schedules.HELP, schedules.add, schedules.run),
    ("audit", audits.HELP, audits.add, audits.run),
    ("jobs", audits.HELP_JOBS, audits.add_jobs, audits.run_jobs),
    ("purge", remove.HELP_PURGE, remove.add_purge, remove.run_purge),
    ("export", transfer.HELP_EXPORT, transfer.add_export, transfer.run_export),
    ("import", transfer.HELP_IMPORT, transfer.add_import, transfer.run_import),
    ("health", health.HELP, health.add, health.run),
    ("alerts", alerts.HELP, alerts.add, alerts.run),
)


class Command(BaseCommand):
    help = "Inspect and manage queues, messages and workers."
    # A health check must be able to report that the database is unreachable.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parts = parser.add_subparsers(
            dest="part", required=True, metavar="COMMAND", parser_class=MixedParser
        )
        for name, text, add, _run in PARTS:
            add(parts.add_parser(name, help=text, description=text))

    def handle(self, *args: Any, **options: Any) -> None:
        if options["database"] is not None and options["database"] not in connections:
            there = ", ".join(connections)
            raise usage(f"there is no database {options['database']!r} (there are: {there})")
        run = {name: run for name, _text, _add, run in PARTS}[options["part"]]
        try:
            code = run(Screen(self, options), options)
        except KeyboardInterrupt:
            self.stderr.write(
                "interrupted: what was done stays done; run the command again for the rest"
            )
            code = 130
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`): there is nowhere to write to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 141
        except LockNotAvailable as error:
            raise CommandError(terminal_line(error)) from None
        except DatabaseError as error:
            raise CommandError(f"the database refused: {terminal_line(error)}") from None
        if code:
            sys.exit(code)
