"""What a scraper sees: samples by name and labels, out of a real parser."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from tests.patience import PATIENCE
from tests.processes import Worker

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Samples:
    """`samples("deadletter_up")`, `samples("deadletter_queue_depth", queue="a", state="dead")`."""

    def __init__(self, text: str, type: str) -> None:
        read: Callable[[str], Any] = read_openmetrics if "openmetrics" in type else read_plain
        self.families = list(read(text))
        self.all = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, /, **labels: str) -> float | None:
        return self.all.get((name, frozenset(labels.items())))

    def named(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values by the values of their labels, in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(labels)): number
            for (sample, labels), number in self.all.items()
            if sample == name
        }

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.all}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def samples(self) -> Samples:
        assert self.status == 200, (self.status, self.body)
        return Samples(self.body.decode(), self.headers["content-type"])


def port_of(worker: Worker) -> int:
    [line] = worker.wait_for("metrics_listening")
    return int(line["port"])


def get(port: int, *, path: str = "/metrics", method: str = "GET", accept: str = "") -> Answer:
    """Ask once."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())
    finally:
        connection.close()


def scrape(port: int) -> Samples:
    return get(port).samples
