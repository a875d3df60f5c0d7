"""
The metrics: their names, their help texts and the format of an answer to a scrape.

The only module that names metrics, and the only one that imports prometheus-client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import exposition as text_format
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector

from ..operations.brokers import COUNTED
from .cache import TableReading
from .depths import CANDIDATE, CAP, CLASSIFIED, Depths
from .process_counters import Distribution, ProcessCounters, ProcessTotals, add_up
from .totals import Totals

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True)
class MetricsPage:
    """An answer to a scrape."""

    type: str
    body: bytes


def render(
    accept: str, *, processes: Sequence[ProcessCounters] = (), reading: TableReading | None
) -> MetricsPage:
    """
    Format all metrics: as OpenMetrics if the client accepts it, else in the Prometheus text format.

    Both in the version that every scraper knows. (The negotiation of prometheus-client repeats the
    scraper's version in its answer, and fails for one that is not a number.)
    """
    of_processes = process_families(add_up(processes)) if processes else ()
    found = _Families([*of_processes, *table_families(reading)])
    if "application/openmetrics-text" in accept.lower():
        body = openmetrics_format.generate_latest(found)  # type: ignore[no-untyped-call]
        return MetricsPage(OPENMETRICS, body)
    return MetricsPage(PLAIN, text_format.generate_latest(found))


class _Families(Collector):
    """The metrics in the form that the encoders of prometheus-client take."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def process_families(seen: ProcessTotals) -> Iterator[Metric]:
    """Yield what the processes of one `run_worker` measured since it started."""
    handlers = HistogramMetricFamily(
        "deadletter_handler_duration_seconds",
        "How long attempts ran, whether they completed or failed.",
        labels=["name"],
    )
    for name, found in seen.handlers.items():
        handlers.add_metric([name], _buckets(found), found.sum)
    yield handlers
    yield _histogram(
        "deadletter_claim_duration_seconds",
        "How long claims took, also those that found nothing.",
        seen.claims,
    )
    yield _histogram(
        "deadletter_settle_duration_seconds",
        "How long it took to report a batch of outcomes, with the commit.",
        seen.settles,
    )
    yield CounterMetricFamily(
        "deadletter_leases_lost",
        "Outcomes refused because the lease was over: the message is handled again.",
        value=seen.lost,
    )
    yield CounterMetricFamily(
        "deadletter_token_repairs",
        "Streams found with parked messages and nothing to wake them. Should stay 0.",
        value=seen.repaired,
    )


def table_families(reading: TableReading | None) -> Iterator[Metric]:
    """Yield what the tables contain; without a reading only that they cannot be reached."""
    yield GaugeMetricFamily(
        "deadletter_up",
        "1 if the tables could be read; 0: table metrics are missing from this scrape.",
        value=0 if reading is None else 1,
    )
    if reading is None:
        return
    yield GaugeMetricFamily(
        "deadletter_rows_age_seconds",
        "How long ago the tables were read; answers are kept for a few seconds.",
        value=reading.age,
    )
    yield from _totals(reading.totals)
    yield _by_label(
        GaugeMetricFamily, "poison_queue_depth", "Poison records now.", "type", reading.poison
    )
    yield from _depths(reading.depths)


def _totals(totals: Totals) -> Iterator[Metric]:
    for name, text, labels, values in (
        ("messages_sent", "Messages sent.", ["queue", "name"], totals.sent),
        ("messages_completed", "Messages completed.", ["queue", "name"], totals.completed),
        (
            "messages_failed",
            "Attempts that failed; a message may fail many times.",
            ["queue", "name", "reason"],
            totals.failed,
        ),
    ):
        family = CounterMetricFamily(f"deadletter_{name}", text, labels=labels)
        for key, value in sorted(values.items()):
            family.add_metric(key, value)
        yield family
    for name, text, by_type in (
        ("messages_poisoned", "Messages that died.", totals.poisoned),
        ("poison_messages_retried", "Poison put back by an operator.", totals.retried),
        ("poison_messages_removed", "Poison removed, also by its retention.", totals.removed),
        (
            "unregistered_deferrals",
            "Attempts deferred because no handler was registered for the name.",
            totals.deferred,
        ),
    ):
        yield _by_label(CounterMetricFamily, name, text, "type", by_type)


def _depths(depths: Depths) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "deadletter_queue_depth",
        f"Messages of a queue by state, counted up to {CAP}. Scheduled, failed and active messages "
        f"are counted only among the first {CLASSIFIED} that wait; there may be more.",
        labels=["queue", "state"],
    )
    for name, queue in depths.queues.items():
        for state, n in queue.states.items():
            states.add_metric([name, str(state)], n)
    yield states
    for name, text, values in (
        (
            "queue_oldest_age_seconds",
            "For how long the message that waits longest has been due; 0: nothing is due.",
            {name: queue.oldest for name, queue in depths.queues.items()},
        ),
        (
            "queue_paused",
            "1 while an operator has paused the queue.",
            {name: queue.paused for name, queue in depths.queues.items()},
        ),
        (
            "queue_is_dead_queue",
            "1 if this is a dead queue; workers serve it only if it is named in --queues.",
            {name: queue.is_dead_queue for name, queue in depths.queues.items()},
        ),
        (
            "queue_workers",
            "Live worker processes that serve the queue.",
            {name: queue.workers for name, queue in depths.queues.items()},
        ),
        (
            "queue_halted_streams",
            "Streams halted by a poison record, until an operator retries or removes it.",
            {name: queue.halted for name, queue in depths.queues.items()},
        ),
        (
            "queue_next_retry_seconds",
            "How long until the first failed message is tried again; without a value: none waits.",
            _known({name: queue.next_retry for name, queue in depths.queues.items()}),
        ),
        (
            "queue_next_scheduled_seconds",
            "How long until the first scheduled message is due; without a value: none is.",
            _known({name: queue.next_scheduled for name, queue in depths.queues.items()}),
        ),
    ):
        yield _by_label(GaugeMetricFamily, name, text, "queue", values)
    yield _by_label(
        GaugeMetricFamily,
        "failed_messages",
        f"Messages that failed and are not done, by attempts: the oldest {CLASSIFIED}.",
        "attempts",
        depths.attempts,
    )
    yield GaugeMetricFamily(
        "deadletter_poison_candidates",
        f"Of these, how many were tried {CANDIDATE} times or more and wait for another try.",
        value=depths.candidates,
    )
    yield GaugeMetricFamily(
        "deadletter_workers_alive", "Worker processes seen lately.", value=depths.workers
    )
    yield GaugeMetricFamily(
        "deadletter_instances_stuck",
        "Running instances that wait for a message that no longer exists, as the last sweep found "
        "them. Should be 0.",
        value=depths.stuck,
    )
    now = depths.at
    for name, text, values in (
        (
            "outbox_messages",
            f"Messages that wait to be published to a broker, counted up to {COUNTED}.",
            {broker.name: float(min(broker.waiting, COUNTED)) for broker in depths.brokers},
        ),
        (
            "outbox_oldest_seconds",
            "How long the oldest message that no broker refused waits to be published.",
            {
                broker.name: 0.0 if broker.oldest_at is None else _seconds(broker.oldest_at, now)
                for broker in depths.brokers
            },
        ),
        (
            "outbox_paused",
            f"Of the waiting messages, those whose topic or broker is paused, up to {COUNTED}.",
            {broker.name: float(min(broker.paused, COUNTED)) for broker in depths.brokers},
        ),
        (
            "broker_paused",
            "1 if a person paused the broker: nothing is published to it.",
            {broker.name: float(broker.is_paused) for broker in depths.brokers},
        ),
        (
            "broker_available",
            "1 if the relays can publish to the broker, 0 if it accepts nothing.",
            {broker.name: float(broker.unavailable_since is None) for broker in depths.brokers},
        ),
    ):
        yield _by_label(GaugeMetricFamily, name, text, "broker", values)
    yield _by_label(
        GaugeMetricFamily,
        "breaker_open",
        "1 for each message name that is held back because its handler keeps failing.",
        "name",
        dict.fromkeys(depths.breakers, 1),
    )
    yield _by_label(
        GaugeMetricFamily,
        "breaker_held",
        "1 for each message name that a person holds.",
        "name",
        dict.fromkeys(depths.held_names, 1),
    )


def _seconds(since: datetime, now: datetime) -> float:
    return max((now - since).total_seconds(), 0.0)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _by_label(
    make: Any, name: str, text: str, label: str, values: Mapping[str, float]
) -> CounterMetricFamily | GaugeMetricFamily:
    family: CounterMetricFamily | GaugeMetricFamily
    family = make(f"deadletter_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], float(value))
    return family


def _histogram(name: str, text: str, found: Distribution) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=_buckets(found), sum_value=found.sum)


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    """Return cumulative buckets, as the format requires."""
    total, buckets = 0, []
    for end, hits in zip((*map(str, map(float, found.ends)), "+Inf"), found.hits, strict=True):
        total += hits
        buckets.append((end, float(total)))
    return buckets
