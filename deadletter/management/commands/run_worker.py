"""manage.py run_worker: claim messages and run their handlers until told to stop."""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError

from ...checks import check_databases
from ...cli.args import duration, seconds
from ...conf import get_settings
from ...forks import CAN_FORK
from ...logs import configure
from ...metrics.exporter import Exporter
from ...metrics.server import CannotListen
from ...models import Queue, primary_alias
from ...models import WorkerProcess as WorkerRow
from ...patterns import is_pattern
from ...worker import thread_connections, watcher
from ...worker.crash_ledger import CrashLedger
from ...worker.housekeeper import resident_mib
from ...worker.options import Options
from ...worker.outages import DatabaseUnusable, advice, is_outage
from ...worker.process import RECYCLE, Worker, check_tables, leave, start_again
from ...worker.registry import discover, registry
from ...worker.relay_process import RelayProcess
from ...worker.reloader import NestedReloader, Reloader, reloader_pid
from ...worker.shutdown import Shutdown

#: Seconds for which a computing handler may keep the interpreter while the pump waits for it.
#: Python's default of 5 ms is as long as a transaction; it costs a tenth of the rate of quick
#: handlers.
SWITCH = 0.0005
#: Seconds that handlers have after a stop. A developer does not wait long for the next worker; a
#: message that is released is run by it.
GRACE, RELOAD_GRACE = 30.0, 5.0


class Command(BaseCommand):
    help = "Claim messages and run their handlers until SIGTERM or Ctrl-C (twice: exit at once)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queues",
            metavar="NAMES",
            help="comma-separated names or glob patterns, in order of preference "
            "(default: all except dead queues, without preference)",
        )
        parser.add_argument(
            "--concurrency",
            type=_count,
            default=8,
            metavar="N",
            help="handlers at a time in each process (default: 8)",
        )
        parser.add_argument(
            "--processes",
            type=_count,
            default=1,
            metavar="N",
            help="processes; more than one: a supervisor forks them and replaces those that die "
            "(default: 1)",
        )
        parser.add_argument(
            "--batch",
            type=_count,
            default=500,
            metavar="N",
            help="maximum of messages per claim (default: 500)",
        )
        parser.add_argument(
            "--lease",
            type=seconds,
            metavar="S",
            help="duration of a lease: 30s, 5m or seconds; renewed while a handler runs "
            "(default: the queue's)",
        )
        parser.add_argument(
            "--poll",
            type=seconds,
            default=1.0,
            metavar="S",
            help="longest pause between two claims, in seconds (default: 1)",
        )
        parser.add_argument(
            "--grace",
            type=_grace,
            metavar="S",
            help=f"time for running handlers to finish after a stop (default: {GRACE:g} seconds; "
            f"with --reload {RELOAD_GRACE:g})",
        )
        parser.add_argument(
            "--drain-limit",
            type=_grace,
            metavar="S",
            help="time for which a process that is replaced waits for its handlers (default: their "
            "own timeouts; an hour for handlers without one)",
        )
        parser.add_argument("--drain", action="store_true", help="exit when no message is due")
        parser.add_argument(
            "--max-messages",
            type=_count,
            metavar="N",
            help="exit, or be replaced by the supervisor, after so many messages",
        )
        parser.add_argument(
            "--max-memory",
            type=_memory,
            metavar="MIB",
            help="exit, or be replaced by the supervisor, when a process uses more memory",
        )
        parser.add_argument("--name", help="shown in leases and logs (default: host:pid)")
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            help="database alias (default: the one that the database router returns for messages)",
        )
        parser.add_argument(
            "--metrics-port",
            type=_port,
            metavar="P",
            help="serve GET /metrics for Prometheus on this port, for all processes "
            "(0: any free port; the log says which)",
        )
        parser.add_argument(
            "--metrics-host",
            default="127.0.0.1",
            metavar="ADDRESS",
            help="address for the metrics port (default: 127.0.0.1; 0.0.0.0: all addresses)",
        )
        parser.add_argument(
            "--log-format",
            choices=["text", "json"],
            help="log to standard error in this format (default: as LOGGING says, else text)",
        )
        parser.add_argument(
            "--relay",
            action=argparse.BooleanOptionalAction,
            help="--relay: only publish the outbox to its brokers, and claim no messages; "
            "--no-relay: publish nothing (default: both, where DEADLETTER['BROKERS'] is set)",
        )
        parser.add_argument(
            "--reload",
            action="store_true",
            help="restart the worker when code changes, for development",
        )

    def execute(self, *args: Any, **given: Any) -> str | None:
        # The worker that the reloader starts checks the code, and may find it repaired.
        given["skip_checks"] = given["skip_checks"] or _is_reloader(given)
        return super().execute(*args, **given)

    def handle(self, *args: Any, **given: Any) -> None:
        if watcher.is_active:
            return
        _check_platform(given)
        _check_relay(given)
        configure(given["log_format"], verbosity=given["verbosity"])
        if given["grace"] is None:
            given["grace"] = RELOAD_GRACE if given["reload"] else GRACE
        if _is_reloader(given):
            leave(_reload(given), at_once=False)
        sys.setswitchinterval(SWITCH)
        thread_connections.leave_pools()
        discover()
        options = _options(given)
        _check_pool(options)
        _check_database(options)
        _check_migrations(options)
        _check_tables(options)
        _check_queues(options)
        # This thread needs the database no more.
        connections.close_all()
        if given["relay"]:
            relay = RelayProcess(options)
            relay.run(Shutdown(supervised=options.reloader > 0))
            leave(0, at_once=relay.is_cut_short)
        exporter = _exporter(given, options)
        if given["processes"] > 1:
            leave(self._supervise(options, given["processes"], exporter), at_once=False)
        shutdown = Shutdown(supervised=bool(options.reloader))
        process = Worker(options, observer=exporter.observer(0) if exporter else None)
        if exporter:
            exporter.serve_in_thread()
        try:
            code = process.run(shutdown)
        except DatabaseUnusable as error:
            raise CommandError(str(error)) from error
        if code == RECYCLE and process.has_stuck_threads:
            start_again(shutdown)
        leave(0, at_once=process.has_stuck_threads)

    def _supervise(self, options: Options, count: int, exporter: Exporter | None) -> int:
        # Imported here: it needs signals and system calls that not every platform has.
        from ...worker.supervisor import Supervisor

        names = [f"{options.name}/{n}" for n in range(1, count + 1)]
        options = dataclasses.replace(options, supervisor=os.getpid())

        def run_child(name: str, ledger: CrashLedger) -> int:
            shutdown = Shutdown(supervised=True)
            child = Worker(
                dataclasses.replace(options, name=name),
                ledger=ledger,
                # Two processes of a place may count at the same time: each has its own counters.
                observer=exporter.observer(2 * names.index(name) + ledger.side)
                if exporter
                else None,
            )
            code = child.run(shutdown)
            # Stopped by a signal: the supervisor knows whether that was meant for all processes.
            return RECYCLE if child.reached_its_limit or shutdown.count else code

        supervisor = Supervisor(
            names,
            run_child,
            using=options.using,
            grace=options.grace,
            reloader=options.reloader,
            companion=exporter,
        )
        return supervisor.run()


def _is_reloader(given: dict[str, Any]) -> bool:
    """True if this process is to start the worker, and again when code changes."""
    return given["reload"] and not (watcher.is_active or reloader_pid())


def _reload(given: dict[str, Any]) -> int:
    try:
        return Reloader(grace=given["grace"]).run()
    except NestedReloader:
        raise CommandError(
            "--reload: this process was started by a worker that runs with --reload. Start it "
            "without --reload."
        ) from None


def _check_relay(given: dict[str, Any]) -> None:
    """Refuse a relay that has nothing to publish to, or that a supervisor would fork."""
    if not given["relay"]:
        return
    if not get_settings().brokers:
        raise CommandError("--relay: DEADLETTER['BROKERS'] names no broker; see docs/outbox.md")
    if given["processes"] > 1:
        raise CommandError(
            f"--relay: it is one process, not {given['processes']}. Start it several times; the "
            "relays share the messages."
        )


def _check_platform(given: dict[str, Any]) -> None:
    """Refuse options that this platform does not support."""
    if given["processes"] > 1 and not CAN_FORK:
        raise CommandError(
            f"--processes {given['processes']}: this platform cannot fork processes. Start "
            "run_worker several times instead, each with --processes 1 (the default)."
        )
    if given["reload"] and not CAN_FORK:
        raise CommandError(
            "--reload: this platform has no signal by which a worker stops in good order. Start "
            "run_worker without it, and again after a change."
        )
    if given["max_memory"] is not None and resident_mib() is None:
        raise CommandError(
            "--max-memory: this platform does not tell how much memory a process uses. Start "
            "run_worker without it; --max-messages also replaces a process now and then."
        )


def _options(given: dict[str, Any]) -> Options:
    # The same router as `send`: on another database the worker would find no messages.
    using = primary_alias(given["database"])
    if using not in connections:
        raise CommandError(
            f"there is no database {using!r} in DATABASES (there are: {', '.join(connections)})"
        )
    names = given["queues"]
    queues = None if names is None else [name.strip() for name in names.split(",") if name.strip()]
    return Options(
        name=_name(given["name"], given["processes"]),
        queues=queues,
        using=using,
        concurrency=given["concurrency"],
        batch=given["batch"],
        lease=given["lease"],
        poll=given["poll"],
        grace=given["grace"],
        drain_limit=given["drain_limit"],
        drain=given["drain"],
        max_messages=given["max_messages"],
        max_memory=given["max_memory"],
        relay=given["relay"] is not False,
        reloader=reloader_pid(),
    )


def _name(given: str | None, processes: int) -> str:
    name = given or f"{socket.gethostname()}:{os.getpid()}"
    limit = WorkerRow._meta.get_field("name").max_length or 0
    # Processes under a supervisor are called NAME/1, NAME/2 and so on.
    limit -= len(f"/{processes}") if processes > 1 else 0
    if len(name) > limit or not name.isprintable():
        raise CommandError(
            f"--name: expected at most {limit} printable characters, got {len(name)}"
        )
    return name


def _exporter(given: dict[str, Any], options: Options) -> Exporter | None:
    """Open the metrics port before the first claim: without it the worker does not start."""
    if given["metrics_port"] is None:
        return None
    try:
        return Exporter(
            given["metrics_host"],
            given["metrics_port"],
            names=registry.names(),
            places=2 * given["processes"],
            using=options.using,
        )
    except CannotListen as error:
        raise CommandError(f"--metrics-port: {error}") from error
    except ImportError as error:
        raise CommandError(
            f"--metrics-port needs prometheus-client ({error}): "
            "pip install 'django-deadletter[metrics]'"
        ) from error


def _check_pool(options: Options) -> None:
    try:
        thread_connections.check_size(
            options.using, concurrency=options.concurrency, is_async=registry.has_async
        )
    except thread_connections.PoolTooSmall as error:
        raise CommandError(str(error)) from error


def _check_database(options: Options) -> None:
    """Refuse a database on which claims would be wrong; Django's checks do not look at it."""
    try:
        found = check_databases(None, databases=[options.using])
    except DatabaseError as error:
        _refuse(error, options)
        return
    for message in found:
        if message.is_serious():
            raise CommandError(f"{message.msg} ({message.id})\n{message.hint}")


def _check_migrations(options: Options) -> None:
    """
    Refuse a schema that is older than this code: statements would name missing columns.

    A newer schema is fine: processes are replaced after the database was migrated. So is one that
    was made without migrations; if tables are missing, the first statement fails.
    """
    connection = connections[options.using]
    try:
        executor = MigrationExecutor(connection)
        applied = [key for key in executor.loader.applied_migrations if key[0] == "deadletter"]
        leaves = executor.loader.graph.leaf_nodes("deadletter") if applied else []
        missing = [
            m.name for m, _ in executor.migration_plan(leaves) if m.app_label == "deadletter"
        ]
    except DatabaseError:
        connection.close()
        return  # an outage may pass
    if missing:
        raise CommandError(
            f"database {options.using!r} lacks migrations of deadletter: {', '.join(missing)}. "
            "Run manage.py migrate before this release's workers; older workers may go on meanwhile"
        )


def _check_tables(options: Options) -> None:
    """
    Refuse a database without the tables of deadletter, or without rights to them.

    Checked after the migrations, whose message says more. A database that is away may come back;
    the worker checks again before the first claim.
    """
    try:
        check_tables(options.using)
    except DatabaseError as error:
        _refuse(error, options)


def _refuse(error: DatabaseError, options: Options) -> None:
    """Raise a CommandError that says what to do, unless the error is an outage, which may pass."""
    connections[options.using].close()
    if not is_outage(error):
        raise CommandError(advice(error, using=options.using) or str(error)) from error


def _check_queues(options: Options) -> None:
    """Refuse unknown queue names. Patterns may match future queues, and an outage may pass."""
    plain = [name for name in options.queues or () if not is_pattern(name)]
    try:
        existing = set(Queue.objects.using(options.using).values_list("name", flat=True))
    except DatabaseError:
        connections[options.using].close()
        return
    unknown = [name for name in plain if name not in existing]
    if unknown or options.queues == []:
        raise CommandError(
            f"unknown queue {', '.join(unknown) or repr('')} "
            f"(existing: {', '.join(sorted(existing)) or 'none; run migrate first'})"
        )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000_000:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _grace(text: str) -> float:
    return duration(text).total_seconds()


def _memory(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number of MiB, more than 0, got {text!r}")
    return size
