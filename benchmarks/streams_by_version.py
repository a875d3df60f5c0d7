"""
Compare streams on several versions of PostgreSQL: `python -m benchmarks.streams_by_version`.

    --versions 15,16,18     the servers to start; those that are not installed are left out
    --rounds 3              each round measures every version once, in turn
    --scale 0.1             a tenth of the messages, for a quick look

Prints a table of medians, and the ratios to the newest version, taken inside each round. Each
measurement has a new database that is filled with SQL and analysed, and a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.private_postgres import is_available, private_server

from .stores import POSTGRES

#: What is measured, and whether more is better.
MEASURED = {
    "claim of 100, {500000} waiting in {50000} streams, ms": False,
    "drain of {200000} streams of one message, messages/s": True,
    "other streams while {300000} are parked behind one head, messages/s": True,
}
CLAIMS, BATCH = 15, 500
#: A drain is cut off after this time.
SECONDS = 20.0

FILL = """
INSERT INTO deadletter_message (queue_id, name, payload, stream, available_at, attempts, status)
SELECT q.id, 'bench.nothing', '{"n": ' || n || '}', %(prefix)s || n %% %(streams)s,
       CASE WHEN %(delay)s IS NOT NULL THEN now() + %(delay)s * interval '1 second' END, 0, 1
  FROM generate_series(1, %(rows)s) AS n, deadletter_queue q
 WHERE q.name = 'default'
"""


def main() -> int:
    options = _options()
    versions = [version for version in options.versions.split(",") if is_available(version)]
    figures: dict[str, list[list[float]]] = {version: [] for version in versions}
    for _ in range(options.rounds):
        for version in versions:
            with private_server(version, **POSTGRES) as server:
                figures[version].append(_in_a_process(server.url, options.scale))
            print(f"PostgreSQL {version}:", *figures[version][-1], file=sys.stderr)
    _print(figures, options.scale)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--versions", default="15,16,18")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    return parser.parse_args()


def _in_a_process(url: str, scale: float) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", f"from {__spec__.name} import measure; measure({scale})"],
        env={**os.environ, "BENCH_URL": url, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout.splitlines()[-1]))


def _print(figures: dict[str, list[list[float]]], scale: float) -> None:
    versions = list(figures)
    newest = figures[versions[-1]]
    ratios = [f"{version} / {versions[-1]}" for version in versions[:-1]]
    print("| | " + " | ".join([*versions, *ratios]) + " |")
    print("| --- " * (1 + len(versions) + len(ratios)) + "|")
    for n, (title, more_is_better) in enumerate(MEASURED.items()):
        cells = [f"{statistics.median(row[n] for row in figures[v]):,.0f}" for v in versions]
        for version in versions[:-1]:
            pairs = zip(figures[version], newest, strict=True)
            speeds = [a[n] / b[n] if more_is_better else b[n] / a[n] for a, b in pairs]
            cells.append(f"{statistics.median(speeds):.2f}")
        for number in (500_000, 50_000, 200_000, 300_000):
            title = title.replace(f"{{{number}}}", f"{int(number * scale):,}")
        print(f"| {title} | " + " | ".join(cells) + " |")


def measure(scale: float) -> None:
    """Measure the server of this process's settings and print the figures as JSON."""
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)

    def of(number: int) -> int:
        return int(number * scale)

    with _filled(("s", of(500_000), of(50_000), 0)):
        claim = _median_claim()
    with _filled(("s", of(200_000), of(200_000), 0)):
        drain = _drain()
    with _filled(
        ("long", 1, 1, 86_400), ("long", of(300_000), 1, None), ("s", of(50_000), of(5_000), 0)
    ):
        beside = _drain()
    print(json.dumps([claim, drain, beside]))


@contextmanager
def _filled(*parts: tuple[str, int, int, int | None]) -> Iterator[None]:
    from django.db import connection

    with connection.cursor() as cursor:
        for prefix, rows, streams, delay in parts:
            values = {"prefix": prefix, "rows": rows, "streams": streams, "delay": delay}
            cursor.execute(FILL.replace("%(delay)s", "%(delay)s::int"), values)
        cursor.execute("VACUUM ANALYZE deadletter_message")
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE deadletter_message")


def _median_claim() -> float:
    from deadletter.lifecycle import claim

    taken = []
    for _ in range(CLAIMS):
        start = time.perf_counter()
        assert len(claim(["default"], limit=100)) > 0
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken)


def _drain() -> float:
    """Work through what is due without handlers, and return messages per second."""
    from deadletter.lifecycle import ClaimRequest, Completion, process_batch

    request = ClaimRequest(["default"], BATCH)
    start = time.perf_counter()
    done, batch = 0, process_batch(worker="bench", claim=request)
    while batch.messages and time.perf_counter() - start < SECONDS:
        completions = [Completion(message.id) for message in batch.messages]
        done += len(completions)
        batch = process_batch(
            worker="bench", token=batch.token, completions=completions, claim=request
        )
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
