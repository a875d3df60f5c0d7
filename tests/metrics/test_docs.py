"""The page, the dashboard and the alert rules speak of metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from django.conf import settings
from prometheus_client.core import Metric

from deadletter.metrics.cache import TableReading
from deadletter.metrics.depths import CAP, CLASSIFIED, Depth, Depths
from deadletter.metrics.exposition import process_families, table_families
from deadletter.metrics.process_counters import ProcessCounters, add_up
from deadletter.metrics.totals import Totals
from deadletter.operations import BrokerReport

DOCS = Path(settings.BASE_DIR) / "docs"
ALERTS = yaml.safe_load((DOCS / "alerts.prometheus.yml").read_text())
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: What Prometheus adds to everything it scrapes.
ADDED = {"job", "instance"}


def rows() -> list[Metric]:
    by_type = {"message": 1}
    pair = {("q", "n"): 1}
    totals = Totals(pair, pair, {("q", "n", "r"): 1}, by_type, by_type, by_type, by_type)
    depth = Depth({"pending": 1}, 1.0, False, False, 1, 1, 1.0, 1.0)
    broker = BrokerReport(
        name="b", is_configured=True, waiting=1, held=0, oldest_at=None, lanes=1, relays=1,
        unavailable_since=None, error="", confirmed_at=None,
    )  # fmt: skip
    depths = Depths({"q": depth}, 1, ["n"], ["n"], attempts={"1": 1}, brokers=[broker])
    return list(table_families(TableReading(totals, depths, by_type, 0.0)))


def processes() -> list[Metric]:
    counters = ProcessCounters(["n"])
    counters.handled("n", 1)
    return list(process_families(add_up([counters])))


def labels(metrics: list[Metric]) -> dict[str, set[str]]:
    """Return the labels of every sample that a query can name."""
    found: dict[str, set[str]] = {}
    for metric in metrics:
        for sample in metric.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


FROM_ROWS, FROM_PROCESSES = labels(rows()), labels(processes())
KNOWN = FROM_ROWS | FROM_PROCESSES

RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
QUERIES = [(rule["alert"], rule["expr"]) for rule in RULES] + [
    (panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]
]
each_query = pytest.mark.parametrize(("where", "query"), QUERIES, ids=lambda value: value[:40])


def parsed(query: str) -> Any:
    """Parse with Prometheus' own grammar; Grafana's variables stand for what it puts there."""
    for variable, value in (("$__rate_interval", "5m"), ("$queue", ".*"), ("$job", ".*")):
        query = query.replace(variable, value)
    assert "$" not in query
    return promql_parser.parse(query)


def parts(expression: Any) -> Iterator[Any]:
    """Walk through an expression."""
    yield expression
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        part = getattr(expression, name, None)
        if part is not None and not isinstance(part, str):
            yield from parts(part)
    for argument in getattr(expression, "args", None) or ():
        yield from parts(argument)


def selectors(expression: Any) -> list[Any]:
    return [p for p in parts(expression) if isinstance(p, promql_parser.VectorSelector)]


@each_query
def test_a_query_names_metrics_and_labels_that_exist(where: str, query: str):
    expression = parsed(query)

    found = selectors(expression)
    assert found or "vector" in query
    for selector in found:
        assert selector.name in KNOWN, selector.name
        used = {matcher.name for matcher in selector.matchers.matchers}
        assert used <= KNOWN[selector.name] | ADDED, (selector.name, used)
    named = {name for selector in found for name in KNOWN[selector.name]} | ADDED
    for part in parts(expression):
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            assert set(part.modifier.labels) <= named, part.modifier.labels


@each_query
def test_what_the_tables_say_is_not_added_up_over_places(where: str, query: str):
    """Two workers tell the same number: a sum over both would be twice the truth."""
    for part in parts(parsed(query)):
        if not isinstance(part, promql_parser.AggregateExpr) or str(part.op) != "sum":
            continue
        inner = part.expr
        while isinstance(inner, promql_parser.Call | promql_parser.MatrixSelector):
            inner = selectors(inner)[0]
        if isinstance(inner, promql_parser.VectorSelector):
            assert inner.name in FROM_PROCESSES, inner.name


def test_the_rule_about_sums_can_fail():
    with pytest.raises(AssertionError):
        test_what_the_tables_say_is_not_added_up_over_places(
            "", "sum(rate(deadletter_messages_sent_total[5m]))"
        )
    with pytest.raises(AssertionError):
        test_a_query_names_metrics_and_labels_that_exist("", "max(deadletter_nothing)")
    with pytest.raises(AssertionError):
        test_a_query_names_metrics_and_labels_that_exist("", "max by (type) (deadletter_up)")


def test_every_alert_says_what_and_how_bad():
    names = [rule["alert"] for rule in RULES]

    assert len(set(names)) == len(names)
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        texts = " ".join(rule["annotations"].values())
        # A label that the expression does not keep would be empty in the message.
        for label in re.findall(r"\$labels\.(\w+)", texts):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), (rule["alert"], label)


def test_every_metric_is_on_the_dashboard_but_those_that_serve_queries():
    shown = {
        s.name for panel in PANELS for t in panel["targets"] for s in selectors(parsed(t["expr"]))
    }
    not_shown = {name for name in KNOWN if name not in shown}

    assert not_shown == {
        "deadletter_handler_duration_seconds_count",
        "deadletter_claim_duration_seconds_count",
        "deadletter_claim_duration_seconds_sum",
        "deadletter_settle_duration_seconds_count",
        "deadletter_settle_duration_seconds_sum",
        "deadletter_queue_paused",
        "deadletter_queue_is_dead_queue",
        "deadletter_broker_paused",
    }


def test_panels_have_places_of_their_own():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)

    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        return {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }

    for one, other in combinations(DASHBOARD["panels"], 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])


def test_variables_ask_for_labels_that_exist():
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}

    assert set(variables) == {"datasource", "job", "queue"}
    for name in ("job", "queue"):
        metric, label = re.fullmatch(
            r"label_values\((\w+), (\w+)\)", variables[name]["definition"]
        ).groups()
        assert label in KNOWN[metric] | ADDED
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"]


def test_the_page_lists_every_metric_with_its_labels():
    text = (DOCS / "metrics.md").read_text()
    cells = re.findall(r"^\| `(deadletter_\w+)` \| (\w+) \|([^|]*)\|", text, re.MULTILINE)
    listed = {name: (type, set(re.findall(r"`(\w+)`", of))) for name, type, of in cells}

    real = {}
    for metric in (*rows(), *processes()):
        name = metric.name + "_total" * (metric.type == "counter")
        used = {label for sample in metric.samples for label in sample.labels} - {"le"}
        real[name] = (metric.type, used)
    assert listed == real
    assert f"up to {CAP:,}" in text
    assert f"the first {CLASSIFIED:,}" in text
