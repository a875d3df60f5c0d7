"""
How long does an idle worker take to pick a message up, and what does it cost while idle?

    python -m benchmarks.worker [--messages 500] [--rate 50]

Starts a private PostgreSQL with its default durability, one `run_worker` with default settings, and
prints medians with their spread. The machine is shared: repeat before believing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.private_postgres import SETTINGS, private_postgres


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--rate", type=float, default=50.0, help="messages per second")
    parser.add_argument("--drain", type=int, default=50_000, help="messages to drain")
    options = parser.parse_args()
    # The suite's server trades durability for speed; a measurement must not.
    SETTINGS.update({"fsync": "on", "full_page_writes": "on", "shared_buffers": "1GB"})
    with private_postgres() as url, tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "waited"
        output.touch()
        os.environ.update(
            DATABASE_URL=url,
            DJANGO_SETTINGS_MODULE="benchmarks.settings",
            BENCH_OUTPUT=str(output),
            LOG_LEVEL="WARNING",
        )
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        with worker() as process:
            wait_for_worker()
            idle(process, seconds=10)
            pickup(output, options.messages, options.rate)
        drain(options.drain)


@contextmanager
def worker(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "manage.py", "run_worker", *arguments])
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def wait_for_worker() -> None:
    from deadletter.models import WorkerProcess

    while not WorkerProcess.objects.exists():
        time.sleep(0.05)


def idle(process: subprocess.Popen[bytes], *, seconds: float) -> None:
    """Measure processor time and transactions of a worker that has nothing to do."""
    time.sleep(2)
    before = cpu(process.pid), commits()
    time.sleep(seconds)
    after = cpu(process.pid), commits()
    share = (after[0] - before[0]) / seconds * 100
    # Reading the counters is a transaction of our own each time.
    rate = (after[1] - before[1] - 1) / seconds
    print(f"idle: {share:.2f} % of a core, {rate:.1f} transactions/s")


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def commits() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot(), pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database "
            "WHERE datname = current_database()"
        )
        return int(cursor.fetchone()[0])


def pickup(output: Path, messages: int, rate: float) -> None:
    from deadletter import send

    for _ in range(messages):
        send("bench.pickup", {"sent": time.monotonic_ns(), "filling": "x" * 60})
        time.sleep(1 / rate)
    while len(waited := output.read_text().split()) < messages:
        time.sleep(0.05)
    times = sorted(int(text) / 1e6 for text in waited)
    cuts = statistics.quantiles(times, n=100)
    print(
        f"pickup of {messages} at {rate:g}/s: p50 {cuts[49]:.1f} ms, p90 {cuts[89]:.1f} ms, "
        f"p99 {cuts[98]:.1f} ms, longest {times[-1]:.1f} ms"
    )


def drain(messages: int, *, repeats: int = 3) -> None:
    from deadletter import Outgoing, send_many

    for processes in (1, 2):
        rates = []
        for _ in range(repeats):
            send_many(
                [Outgoing("bench.nothing", {"n": n, "filling": "x" * 80}) for n in range(messages)]
            )
            start = time.monotonic()
            with worker("--drain", "--processes", str(processes)) as process:
                process.wait()
            rates.append(messages / (time.monotonic() - start))
        shown = ", ".join(f"{rate:,.0f}" for rate in sorted(rates))
        print(
            f"drain of {messages:,}, {processes} process(es), start included: "
            f"median {statistics.median(rates):,.0f}/s of {shown}"
        )


if __name__ == "__main__":
    main()
