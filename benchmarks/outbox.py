"""
How fast does the outbox reach a broker, and what does it cost those who do not use it?

A drain begins with the first confirm and ends when the outbox is empty. Relays are started beside
an empty outbox, and wait until they have shared the lanes; then all is stored at once.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from . import measure, processes, stores, work
from .brokers import MeasuredBroker
from .measure import PATIENCE, Drain, Figures, Sample, Watch
from .peers.outbox import Publisher, Relay
from .system import TOPIC, System

FILL = """
INSERT INTO deadletter_outbox (broker, lane, topic, key, payload, created_at)
SELECT 'default', n %% 16, %(topic)s, 'key-' || n %% 1000,
       '{"n": ' || n || ', "filling": "' || repeat('x', 78 - length(n::text)) || '"}', now()
  FROM generate_series(1, %(rows)s) AS n
"""
SHARES = """
SELECT count(*) FROM deadletter_outbox_lane WHERE leased_until > now() GROUP BY token
"""
LANES = 16
#: Messages a second of which the time from the commit to the confirm is measured.
CALM, BUSY = 50, 500
#: Messages a second, while the broker is away, and seconds before and after, at most.
RATE = 500
BEFORE, AFTER = 10.0, 30.0
#: Seconds between two looks at what is left.
LOOK = 0.2


def drain(
    system: System, store: stores.Postgres, broker: MeasuredBroker, count: int, relays: int
) -> Figures:
    """Publish what an outbox contains; a publisher without one publishes as much."""
    if not isinstance(system, Relay | Publisher):
        return measure.drain(system, store, Drain(count, processes=relays))
    with (
        store.fresh(system) as url,
        measure.working(system, url, relays, drain=False) as watch,
    ):
        if isinstance(system, Relay):
            _await_lanes(url, watch, relays)
            fill(url, count)
        watch.wait_for(1)
        first, broker_cpu = Sample.take(watch, store), processes.cpu(broker.pid)
        watch.wait_for(count)
        watch.wait_until_settled(system, url)
        last = Sample.take(watch, store)
        published = max(last.count - first.count, 1)
        return {
            "rate": published / (last.at - first.at),
            "seconds": last.at - first.at,
            "handled": last.count,
            "worker_us": (last.worker - first.worker) / published * 1e6,
            "server_us": (last.server - first.server) / published * 1e6,
            "broker_us": (processes.cpu(broker.pid) - broker_cpu) / published * 1e6,
            "memory": watch.peak,
        }


def latency(system: System, store: stores.Postgres, count: int) -> Figures:
    """Publish at an even rate beside an empty outbox: from the commit to the broker's confirm."""
    figures = {}
    for prefix, rate in (("", CALM), ("busy_", BUSY)):
        waited = _latencies(system, store, count * rate // CALM, rate)
        cuts = statistics.quantiles(waited, n=100, method="inclusive")
        figures |= {
            f"{prefix}p50": cuts[49],
            f"{prefix}p99": cuts[98],
            f"{prefix}longest": max(waited),
        }
    return figures


def backlog(system: System, store: stores.Postgres, count: int) -> Figures:
    """Publish a large backlog with one relay; compare the tenths of the run."""
    with store.fresh(system) as url:
        fill(url, count)
        store.settle(url)
        with measure.working(system, url, 1, drain=False) as watch:
            marks = []
            for tenth in range(11):
                watch.wait_for(max(1, count * tenth // 10))
                marks.append((time.monotonic(), watch.count()))
            watch.wait_until_settled(system, url)
            rates = [(m - n) / (t - s) for (s, n), (t, m) in pairwise(marks)]
            return {
                "rate": (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0]),
                "ratio": rates[-1] / rates[0] if rates[0] else 0.0,
                "messages": count,
                "memory": watch.peak,
                "growth": watch.growth(),
                **{f"tenth_{n}": rate for n, rate in enumerate(rates, 1)},
            }


def outage(system: System, store: stores.Postgres, broker: MeasuredBroker, away: float) -> Figures:
    """Publish at an even rate while the broker is stopped and started again."""
    before, after = min(BEFORE, away), min(AFTER, away)
    count = round((before + away + after) * RATE)
    with (
        store.fresh(system) as url,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        measure.working(system, url, 1, drain=False) as watch,
    ):
        _await_lanes(url, watch, 1)
        notes = Path(folder) / "notes"
        notes.touch()
        environment = stores.environment(system, url) | {"BENCH_NOTES": str(notes)}
        command = [*stores.client(system.name), "trickle", str(count), str(RATE)]
        with processes.started([command], environment, Path(folder) / "log"):
            watch.wait_for(1)
            start = time.monotonic()
            _sleep_until(start + before)
            broker.stop()
            stopped, cpu = time.monotonic(), processes.cpu(*watch.pids)
            _sleep_until(stopped + away)
            idle = (processes.cpu(*watch.pids) - cpu) / (time.monotonic() - stopped)
            broker.start()
            back, waiting = time.monotonic(), system.left(url)
            marks = _recover(system, url, watch)
            caught_up = time.monotonic()
            watch.wait_for(count)
            watch.wait_until_settled(system, url)
        sent = sorted(work.read_notes(notes).values())
        return {
            "away": back - stopped,
            "waiting": waiting,
            "resumed": marks[0][0] - back,
            "caught_up": caught_up - back,
            **_thirds(marks),
            "sent_before": _sent(sent, start, stopped),
            "sent_away": _sent(sent, stopped, back),
            "relay_away": idle * 100,
            "repeated": watch.count() - count,
        }


def beside(system: System, store: stores.Postgres, count: int) -> Figures:
    """Drain plain messages with a worker that goes on afterwards: it has its relay, if any."""
    with store.fresh(system) as url:
        stores.run_client(system, url, "send-many", count)
        store.settle(url)
        with measure.working(system, url, 1, drain=False) as watch:
            watch.wait_for(1)
            first = Sample.take(watch, store)
            watch.wait_for(count)
            watch.wait_until_settled(system, url)
            last = Sample.take(watch, store)
            handled = max(last.count - first.count, 1)
            return {
                "rate": handled / (last.at - first.at),
                "worker_us": (last.worker - first.worker) / handled * 1e6,
                "server_us": (last.server - first.server) / handled * 1e6,
                "memory": watch.peak,
            }


def fill(url: str, rows: int) -> None:
    """Store messages of a thousand keys, in one transaction."""
    stores.ask(url, FILL, {"rows": rows, "topic": TOPIC})


def _await_lanes(url: str, watch: Watch, relays: int) -> None:
    """Wait until so many relays hold as many lanes each."""
    deadline = time.monotonic() + PATIENCE
    while [row[0] for row in stores.ask(url, SHARES)] != [LANES // relays] * relays:
        if time.monotonic() > deadline:
            watch.fail(f"{relays} relays have not shared the lanes")
        time.sleep(0.1)


def _latencies(system: System, store: stores.Postgres, count: int, rate: int) -> list[float]:
    """Return the milliseconds from the commit to the confirm, of all but the first second."""
    with store.fresh(system) as url, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        committed, confirmed = Path(folder) / "committed", Path(folder) / "confirmed"
        extra = {"BENCH_NOTES": str(confirmed)}
        with measure.working(system, url, 1, drain=False, extra=extra) as watch:
            if isinstance(system, Relay):
                _await_lanes(url, watch, 1)
            total = count + rate
            stores.run_client(system, url, "trickle", total, rate, BENCH_NOTES=str(committed))
            watch.wait_for(total)
        before, after = work.read_notes(committed), work.read_notes(confirmed)
    return [(after[n] - before[n]) / 1e6 for n in range(rate, total)]


def _recover(system: System, url: str, watch: Watch) -> list[tuple[float, int]]:
    """Return how many were confirmed at which moment, from the first until nothing waits."""
    begun = watch.count()
    deadline = time.monotonic() + 10 * PATIENCE
    marks: list[tuple[float, int]] = []
    while not marks or system.left(url) > RATE * LOOK:
        if time.monotonic() > deadline:
            watch.fail(f"{system.left(url):,} messages still wait")
        if watch.count() > begun:
            marks.append((time.monotonic(), watch.count()))
        time.sleep(LOOK if marks else LOOK / 10)
    return [*marks, (time.monotonic(), watch.count())]


def _thirds(marks: list[tuple[float, int]]) -> Figures:
    """Return the rates of the recovery: of all, of the first and of the last third of it."""
    (begin, low), (end, high) = marks[0], marks[-1]
    share = (high - low) / 3
    first = next(mark for mark in marks if mark[1] >= low + share)
    last = next(mark for mark in marks if mark[1] >= high - share)
    rate = _rate((begin, low), (end, high))
    thirds = (_rate((begin, low), first), _rate(last, (end, high)))
    return {"rate": rate, "first_third": thirds[0], "last_third": thirds[1]}


def _rate(mark: tuple[float, int], other: tuple[float, int]) -> float:
    return (other[1] - mark[1]) / max(other[0] - mark[0], 0.001)


def _sent(moments: list[int], start: float, end: float) -> float:
    """Return how many were committed a second."""
    return sum(start <= moment / 1e9 < end for moment in moments) / (end - start)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
