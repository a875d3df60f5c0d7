"""The same question has one answer: on the dashboard, in lists, commands, health and metrics."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter import Outgoing, lifecycle, operations, send_many
from deadletter import clock as database_clock
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.metrics.depths import read_depths, read_poison
from deadletter.metrics.totals import MonotonicTotals
from deadletter.models import Message, PoisonRecord, Queue, State
from deadletter.operations.depths import FailedLook
from deadletter.operations.series import HOUR, read_series
from deadletter.sql.planner import by_index
from tests.cli.conftest import *  # noqa: F403

HOME = "/admin/deadletter/"


def every_state(**wanted: int) -> None:
    """Fill the queue `default` with so many messages of each state, by the verbs."""
    if wanted.get("failed"):
        _claimed_and(wanted["failed"], lambda one: Failure(one, error="no"))
    if wanted.get("dead"):
        _claimed_and(wanted["dead"], lambda one: Failure(one, error="no", permanent=True))
    if wanted.get("blocked"):
        # The first of the stream is active, the others are parked by the claim that meets them.
        send_many([Outgoing("job", stream="s") for _ in range(wanted["blocked"] + 1)])
        lifecycle.claim(limit=1, worker="w")
        lifecycle.claim(limit=wanted["blocked"] + 1, worker="w")
    streams = 1 if wanted.get("blocked") else 0
    if wanted.get("active", 0) > streams:
        n = wanted["active"] - streams
        send_many([Outgoing("job") for _ in range(n)])
        assert len(lifecycle.claim(limit=n, worker="w").ids) == n
    send_many([Outgoing("job", delay=600) for _ in range(wanted.get("scheduled", 0))])
    send_many([Outgoing("job") for _ in range(wanted.get("pending", 0))])


def _claimed_and(count: int, failure: Any) -> None:
    send_many([Outgoing("job") for _ in range(count)])
    batch = lifecycle.claim(limit=count, worker="w")
    assert len(batch.ids) == count
    lifecycle.fail(batch.token, [failure(id) for id in batch.ids])


def shown_on_the_dashboard(browser) -> dict[str, str]:
    (line,) = browser.get(HOME).context["board"].queues.lines
    return {cell.state: str(cell.n) for cell in line.cells}


def shown_on_the_page_of_the_queue(browser) -> dict[str, str]:
    queue = Queue.objects.get(name="default")
    page = browser.get(f"{HOME}queue/{queue.pk}/change/")
    labels = {str(state.label): state.value for state in State}
    return {labels[str(count["label"])]: str(count["n"]) for count in page.context["counts"]}


def shown_in_the_list_of_queues(browser) -> dict[str, str]:
    (queue,) = browser.get(f"{HOME}queue/").context["cl"].result_list
    return {state.value: str(queue.counts[state]) for state in State}


@pytest.mark.slow
def test_every_page_command_and_metric_counts_the_same(admin_client, clock, cli):
    wanted = {"pending": 3, "scheduled": 5, "failed": 4, "active": 6, "blocked": 2, "dead": 7}
    every_state(**wanted)
    text = {state: str(n) for state, n in wanted.items()}

    assert shown_on_the_dashboard(admin_client) == text
    assert shown_in_the_list_of_queues(admin_client) == text
    assert shown_on_the_page_of_the_queue(admin_client) == text
    stats = operations.stats().queues["default"]
    assert {state: getattr(stats, state) for state in wanted} == wanted
    told = cli("stats", "--format", "json").json["queues"]["default"]
    assert {state: told[state] for state in wanted} == wanted
    head, first = (line.split() for line in cli("stats").lines[:2])
    assert dict(zip(head, first, strict=False))["dead"] == "7"
    assert {str(k): n for k, n in read_depths("default").queues["default"].states.items()} == wanted
    now = database_clock.now("default")
    for state in State:
        if state != State.DEAD:
            rows = admin_client.get(f"{HOME}message/", {"state": state.value}).context["cl"]
            assert len(rows.result_list) == wanted[state], state
    assert PoisonRecord.objects.count() == wanted["dead"]
    records = admin_client.get(f"{HOME}poisonrecord/records/").context_data["page"].records
    assert len(records) == wanted["dead"]
    assert operations.health().poison == wanted["dead"]
    assert sum(read_poison("default").values()) == wanted["dead"]
    assert {message.state(now) for message in Message.objects.all()} == set(State) - {State.DEAD}


def test_dead_letters_are_there_now_and_deaths_have_happened(admin_client, clock, cli):
    every_state(dead=9)
    operations.remove_poison(PoisonRecord.objects.order_by("pk").values_list("pk", flat=True)[:5])

    fold_all_groups()

    board = admin_client.get(HOME).context["board"]
    verdict = [finding.text for finding in board.verdict.findings]
    chart = next(chart for chart in board.charts if chart.key == "poison")

    # There now.
    assert verdict[-1].startswith("4 dead letters of the last hour are still there")
    assert shown_on_the_dashboard(admin_client)["dead"] == "4"
    assert operations.stats().total.dead == 4
    assert operations.health().poison == 4
    assert read_depths("default").queues["default"].states[State.DEAD] == 4
    assert sum(line.dead.n for line in board.groups.lines) == 4
    # Have happened.
    assert read_series(HOUR).total("poisoned") == 9
    assert sum(MonotonicTotals().read("default").poisoned.values()) == 9
    assert str(chart.title) == "Deaths"
    html = admin_client.get(HOME).content.decode()
    assert re.search(r"died[^0-9]{1,200}9\b", html)


@pytest.fixture
def crowd(clock) -> None:
    """More than a list counts wait: 1,200 soon, and behind them a few that failed or run."""
    every_state(failed=47, active=54)
    now = clock.now
    Message.objects.filter(status__gte=32768).update(available_at=now + timedelta(seconds=3_000))
    Message.objects.filter(lease_token__isnull=False).update(
        available_at=now + timedelta(seconds=3_000)
    )
    send_many([Outgoing("job", delay=5) for _ in range(1_200)])


def test_each_state_is_counted_up_to_its_own_limit(admin_client, crowd):
    expected = {"scheduled": "1,000+", "failed": "47", "active": "54"}

    for shown in (
        shown_on_the_dashboard(admin_client),
        shown_in_the_list_of_queues(admin_client),
    ):
        assert {state: shown[state] for state in expected} == expected
    page = shown_on_the_page_of_the_queue(admin_client)
    assert {state: page[state] for state in expected} == expected | {"scheduled": "1,200"}
    depths = read_depths("default").queues["default"].states
    assert {state: depths[State(state)] for state in expected} == {
        "scheduled": 1_200,
        "failed": 47,
        "active": 54,
    }


@pytest.mark.slow
def test_a_number_of_which_none_was_found_is_unknown_and_never_zero_and_more(
    admin_client, crowd, monkeypatch
):
    monkeypatch.setattr("deadletter.operations.depths.LOOK", 1_100)

    shown = shown_on_the_dashboard(admin_client)

    # All 1,100 looked at are scheduled; those that failed have an index of their own.
    assert (shown["scheduled"], shown["failed"], shown["active"]) == ("1,000+", "47", "?")
    assert ">0+<" not in admin_client.get(HOME).content.decode()
    depths = read_depths("default").queues["default"].states
    assert depths[State.FAILED] == 47


@pytest.mark.postgresql_only(reason="the plan of PostgreSQL is asked for")
def test_failed_messages_are_counted_by_their_own_index(crowd):
    plans = []

    def explained(execute, text, params, many, context):
        execute(f"EXPLAIN {text}", params, many, context)
        plans.append("\n".join(row[0] for row in context["cursor"].fetchall()))
        return execute(text, params, many, context)

    look = FailedLook(database_clock.now("default"), "default")
    with by_index("default"), connection.execute_wrapper(explained):
        look.of(1)

    assert any("deadletter_failed" in plan for plan in plans)
