"""
`make chaos`: a run of faults by seed, then heal, drain, and check every promise.

python -m tests.chaos [--seed N] [--seconds S] [--database sqlite|postgresql] [--history DIRECTORY]
    [--broker rabbitmq|rabbitmq-cluster|redis|redis-everysec]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import django

from tests.patience import wait_until
from tests.sample.journal import DIRECTORY, write

from . import workers as people
from .broker_sites import KINDS, BrokerSite, broker_site, missing_broker
from .checker import Remains, Verdict, check
from .event_checker import check_events
from .plan import LEASE, WORKERS, Fault, plan
from .sites import PostgresSite, SQLiteSite, can_fail_over, postgres_site, sqlite_site, with_standby

PRODUCERS = 2
#: Seconds in which no handler starts or ends, after which a queue is taken for stuck: a lease, the
#: longest backoff and a poll are 4.2, the longest handler 4; the rest is for a slow machine.
PATIENCE = 120.0


def main(arguments: list[str]) -> int:
    # As an error, so that what was started is put away.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = _options(arguments)
    directory = options.history or Path(tempfile.mkdtemp(prefix=f"chaos-{options.seed}-"))
    directory.mkdir(parents=True, exist_ok=True)
    os.environ[DIRECTORY] = str(directory)
    if options.broker and (reason := missing_broker(options.broker)):
        print(f"chaos: {options.broker}: {reason}", file=sys.stderr)
        return 2
    faults = plan(
        options.seed,
        options.seconds,
        postgresql=options.database == "postgresql",
        broker=options.broker,
    )
    run = f"seed {options.seed} on {options.database}"
    if options.broker:
        run += f" and {options.broker}"
    print(f"chaos: {run}, history in {directory / 'journal'}", flush=True)
    with ExitStack() as end:
        site = end.enter_context(
            postgres_site() if options.database == "postgresql" else sqlite_site(directory)
        )
        _prepare(site)
        if isinstance(site, PostgresSite):
            if people.faketime() is None:
                print("chaos: faketime is not installed: one worker has another time zone only")
            if can_fail_over(site.server):
                end.enter_context(with_standby(site))
            else:
                print("chaos: no pg_basebackup here, so no fail-over to a standby")
                faults = [fault for fault in faults if fault.kind != "failover"]
        broker = None
        if options.broker:
            broker = end.enter_context(broker_site(options.broker, options.seed))
        verdict, drained = _run(site, faults, options, directory, end, broker)
        deaths = Counter(
            line["kind"]
            for line in _lines(directory)
            if line["what"] == "fault" and line["kind"].startswith(("relay.", "outbox."))
        )
    if deaths:
        points = ", ".join(f"{point} {n}" for point, n in sorted(deaths.items()))
        print(f"relays that killed themselves: {points}")
    return _report(run, faults, verdict, drained)


def _report(run: str, faults: list[Fault], verdict: Verdict, drained: float) -> int:
    kinds = Counter(fault.kind for fault in faults)
    print(f"faults: {', '.join(f'{kind} {n}' for kind, n in sorted(kinds.items()))}")
    for violation in verdict.violations:
        print(f"VIOLATION {violation}")
    count = len(verdict.violations)
    result = f"FAILED, {count} violations" if count else f"ok, drained in {drained:.1f} s"
    if verdict.events:
        print(f"chaos: {run}: {verdict.events}")
    print(f"chaos: {run}: {verdict}, faults {len(faults)}: {result}")
    return 1 if count else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--broker", choices=KINDS, help="publish events, too (default: none)")
    parser.add_argument("--history", type=Path, help="where to leave it (default: a new one)")
    return parser.parse_args(arguments)


def _prepare(site: PostgresSite | SQLiteSite) -> None:
    """Make the tables and the policy, over a connection that no fault is aimed at."""
    os.environ["DATABASE_URL"] = site.url("operator")
    os.environ["DJANGO_SETTINGS_MODULE"] = people.SETTINGS
    django.setup()
    from django.core.management import call_command

    from .nemesis import LIMITS, create_queues, set_policy

    call_command("migrate", run_syncdb=True, verbosity=0)
    create_queues()
    set_policy(
        max_attempts=LIMITS[0],
        cooldown=timedelta(seconds=0.5),
        lease_timeout=timedelta(seconds=LEASE),
    )


def _run(
    site: PostgresSite | SQLiteSite,
    faults: list[Fault],
    options: argparse.Namespace,
    directory: Path,
    end: ExitStack,
    broker: BrokerSite | None,
) -> tuple[Verdict, float]:
    from .nemesis import MOST_ATTEMPTS, Nemesis
    from .remains import read_event_remains

    urls = [site.url(f"worker-{n}") for n in range(WORKERS)]
    crew = people.Crew(directory, urls, skewed=site.postgresql, broker=broker, seed=options.seed)
    end.callback(crew.close)
    collector = None
    more: dict[str, str] = {}
    if broker is not None:
        more["CHAOS_BROKERS"] = json.dumps(broker.options(0))
        collector = broker.collector(directory)
        end.callback(collector.kill)
    for place in range(WORKERS):
        crew.start(place)
    crew.wait_started()
    producers = [
        people.producer(
            number,
            seed=options.seed,
            seconds=options.seconds,
            url=site.url(f"producer-{number}"),
            directory=directory,
            **more,
        )
        for number in range(PRODUCERS)
    ]
    for process in producers:
        end.callback(process.kill)
    # On a busy machine it takes longer to start than a plan allows for.
    wait_until(lambda: _beginners(directory) == PRODUCERS)
    Nemesis(site, crew, options.seed, broker).run(faults)
    crew.is_armed = False
    complaints = [
        f"producer {n} ended with {code}" for n, code in _ended(producers, crew) if code != 0
    ]
    write("healed")
    drained = _drain(crew, directory / "journal")
    complaints += crew.stop() + crew.deserters
    if collector is not None:
        collector.terminate()
        code = collector.wait()
        complaints += [f"the collector ended with {code}"] if code else []
    lines = _lines(directory)
    verdict = check(lines, _remains(crew), max_attempts=MOST_ATTEMPTS, lease=LEASE)
    if broker is not None:
        verdict.events = check_events(lines, read_event_remains())
        verdict.violations += verdict.events.violations
    verdict.violations += complaints + _stranded()
    return verdict, drained


def _beginners(directory: Path) -> int:
    """Count the producers that have begun to send."""
    if not (directory / "journal").exists():
        return 0
    return len({line["pid"] for line in _lines(directory) if line["what"] == "attempted"})


def _ended(producers: list[subprocess.Popen], crew: people.Crew) -> list[tuple[int, int]]:
    while any(process.poll() is None for process in producers):
        crew.replace_dead()
        time.sleep(0.05)
    return [(n, process.wait()) for n, process in enumerate(producers)]


def _drain(crew: people.Crew, journal: Path) -> float:
    """Wait until nothing is left to do; if nothing happens, let the checker say what is left."""
    from django.db import Error, connection

    from deadletter.models import Message, OutboxMessage

    from .tasks import DEAD

    begun = active = time.monotonic()
    size = 0
    while time.monotonic() < active + PATIENCE:
        crew.replace_dead()
        if journal.stat().st_size > size:
            size, active = journal.stat().st_size, time.monotonic()
        try:
            left = Message.objects.exclude(queue__name=DEAD).exists()
            if not left and not OutboxMessage.objects.exists():
                break
        except Error:
            connection.close()
        time.sleep(0.05)
    return time.monotonic() - begun


def _lines(directory: Path) -> list[dict]:
    # What stands behind the last line break was being written when its process was killed.
    return [json.loads(line) for line in (directory / "journal").read_text().split("\n")[:-1]]


def _remains(crew: people.Crew) -> Remains:
    from .remains import read_remains

    return read_remains(leases_lost=crew.leases_lost())


def _stranded() -> list[str]:
    from deadletter import lifecycle

    repaired = lifecycle.sweep().repaired
    return [f"stranded: {repaired} streams had nobody to wake them"] if repaired else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
