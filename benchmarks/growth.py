"""
Does the cost grow with what is waiting, blocked or dead? The scenarios, as tables that are filled.

Each is a database made once with SQL and copied for every measurement, so that deadletter and the
raw limit start from the same pages. `plain` is the scenario all others are compared with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import measure, stores
from .admin import POISON
from .measure import Drain
from .peers import load
from .sizes import Sizes

#: `filling` is incompressible where it is long: PostgreSQL would store 64 KB of "x" in a few bytes.
FILL = """
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, stream, available_at, attempts, status)
SELECT q.id, %(name)s, %(kind)s,
       %(before)s || '{"n": ' || n || ', "filling": "' || CASE WHEN %(size)s <= 200
            THEN repeat('x', %(size)s - 22 - length(n::text))
            ELSE left((SELECT string_agg(md5(n::text || i), '')
                         FROM generate_series(0, %(size)s / 32) AS i), %(size)s - 30) END
       || '"}' || %(after)s,
       CASE WHEN %(streams)s > 0 THEN %(prefix)s || '-' || n %% greatest(%(streams)s, 1) END,
       now() + %(delay)s * interval '1 second', %(attempts)s,
       CASE WHEN %(attempts)s > 0 THEN 32769 ELSE 1 END
  FROM generate_series(1, %(rows)s) AS n, deadletter_queue q
 WHERE q.name = 'default'
"""
#: As the completion of a task leaves them, in the last days. Their ids are below those of messages.
RESULTS = """
INSERT INTO deadletter_task_result
       (message_id, queue, name, kind, outcome, payload, priority, value, workers, created_at,
        attempted_at, finished_at, expires_at)
SELECT n, 'default', %(name)s, 'task', 'successful',
       '{"args": [{"n": ' || n || ', "filling": "' || repeat('x', 72) || '"}]}', 0, 'null',
       '["worker-1"]', ended, ended, ended, ended + interval '7 days'
  FROM (SELECT n, now() - (%(rows)s - n) * interval '0.5 seconds' AS ended
          FROM generate_series(1, %(rows)s) AS n) AS made
"""
AFTER_RESULTS = "SELECT setval(pg_get_serial_sequence('deadletter_message', 'id'), %(rows)s)"
PARKED = "SELECT count(*) FROM deadletter_message WHERE available_at IS NULL"
DAY = 86_400
#: Whom the scenarios concern: those of messages, and those of tasks.
GROWING = ("raw", "deadletter")
TASKS = ("deadletter-tasks", "deadletter-results")
TASK = "benchmarks.peers.django_work.nothing"
#: A worker that needs longer to park a blocked stream is not measured further.
PARKING_SECONDS = 300


@dataclass(frozen=True)
class Case:
    """One point of a scenario: what is in the tables, and what is drained."""

    name: str
    title: str
    fill: Callable[[str], object]
    drain: Drain
    systems: tuple[str, ...] = GROWING


def cases(sizes: Sizes) -> Iterator[Case]:
    many, million, half = sizes.measured, sizes.of(1_000_000), sizes.of(500_000)
    yield Case("plain", "nothing else", lambda url: fill(url, many), Drain(many))
    for backlog in (1_000, 10_000, 100_000, 1_000_000):
        rows = sizes.of(backlog) if backlog == 1_000_000 else min(backlog, sizes.of(1_000_000))
        yield Case(
            f"backlog-{backlog}",
            f"backlog of {rows:,}",
            lambda url, rows=rows: fill(url, rows),
            Drain(rows, until=many if rows > many else None),
        )
    yield Case(
        "scheduled",
        f"{million:,} scheduled for tomorrow",
        lambda url: (fill(url, million, delay=DAY), fill(url, many)),
        Drain(many),
    )
    yield Case(
        "poison",
        f"{million:,} poison records",
        lambda url: (stores.ask(url, POISON, {"rows": million}), fill(url, many)),
        Drain(many),
    )
    yield Case(
        "streams",
        f"{many:,} messages in {many // 10:,} streams",
        lambda url: fill(url, many, streams=many // 10),
        Drain(many),
    )
    yield Case(
        "blocked",
        f"{half:,} parked behind one failed head",
        lambda url: block(url, half, many),
        Drain(many),
    )
    yield Case(
        "failing",
        "20 % of the handlers fail",
        lambda url: fill(url, many, name="bench.failing"),
        Drain(many, handler="failing"),
    )
    for size, share in ((4_096, 4), (65_536, 40)):
        rows = max(many // share, 100)
        yield Case(
            f"payload-{size}",
            f"payloads of {size // 1024} KB",
            lambda url, rows=rows, size=size: fill(url, rows, size=size),
            Drain(rows),
        )
    for count in (2, 4):
        yield Case(
            f"processes-{count}",
            f"{count} processes",
            lambda url: fill(url, many),
            Drain(many, processes=count),
        )
    yield Case(
        "tasks",
        f"{many:,} tasks and nothing else",
        lambda url: fill(url, many, name=TASK, kind="task"),
        Drain(many),
        TASKS,
    )
    yield Case(
        "results",
        f"{million:,} results",
        lambda url: (fill_results(url, million), fill(url, many, name=TASK, kind="task")),
        Drain(many),
        TASKS,
    )


def fill(
    url: str,
    rows: int,
    *,
    name: str = "bench.nothing",
    kind: str = "message",
    size: int = 100,
    streams: int = 0,
    prefix: str = "stream",
    delay: int = 0,
    attempts: int = 0,
) -> None:
    values = {"rows": rows, "name": name, "size": size, "streams": streams}
    values |= {"prefix": prefix, "delay": delay, "attempts": attempts, "kind": kind}
    # The payload of a task is its arguments.
    before, after = ('{"args": [', "]}") if kind == "task" else ("", "")
    stores.ask(url, FILL, values | {"before": before, "after": after})


def fill_results(url: str, rows: int) -> None:
    stores.ask(url, RESULTS, {"rows": rows, "name": TASK})
    stores.ask(url, AFTER_RESULTS, {"rows": rows})


def block(url: str, rows: int, due: int) -> None:
    """Let a worker meet a stream whose head waits: it parks what is behind, once. Then add more."""
    fill(url, 1, streams=1, prefix="blocked", delay=DAY, attempts=1)
    fill(url, rows, streams=1, prefix="blocked")
    stores.ask(url, "VACUUM ANALYZE")
    start = time.monotonic()
    with measure.working(load("deadletter"), url, 1, drain=False) as watch:
        while (parked := int(stores.ask(url, PARKED)[0][0])) < rows:
            if time.monotonic() - start > PARKING_SECONDS:
                watch.fail(f"only {parked:,} of {rows:,} messages were parked")
            time.sleep(0.25)
    print(
        f"    {rows:,} messages parked in {time.monotonic() - start:.1f} s, worker's start included"
    )
    fill(url, due)
