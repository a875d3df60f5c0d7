"""How does an answer to a scrape look?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import exposition
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from .cache import Reading
from .exposition import of_processes, of_rows
from .process_counters import Board, add_up

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True)
class Page:
    type: str
    body: bytes


def render(accept: str, *, boards: Sequence[Board] = (), reading: Reading | None) -> Page:
    """
    Write everything down in OpenMetrics for those who ask for it, in Prometheus' text otherwise.

    Both in the version that every scraper knows. (The library's own negotiation repeats the
    scraper's version in its answer, and fails for one that is not a number.)
    """
    found = _Found([*(of_processes(add_up(boards)) if boards else ()), *of_rows(reading)])
    if "application/openmetrics-text" in accept.lower():
        return Page(OPENMETRICS, openmetrics.generate_latest(found))  # type: ignore[no-untyped-call]
    return Page(PLAIN, exposition.generate_latest(found))


class _Found(Collector):
    """What the encoders want to be given."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
