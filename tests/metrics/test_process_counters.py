"""Counters that several processes write and one reads."""

from __future__ import annotations

import os
import signal

import pytest

from deadletter.metrics.process_counters import HANDLER, OTHER, TRANSACTION, ProcessCounters, add_up


def test_a_duration_falls_into_the_bucket_that_ends_at_it_or_above():
    counters = ProcessCounters(["mail"])

    for seconds in (0.001, 0.0011, 5.0, 1800, 1801):
        counters.handled("mail", seconds)

    found = counters.handlers["mail"].read()
    assert dict(zip((*HANDLER, "more"), found.hits, strict=True)) == {
        **dict.fromkeys(HANDLER, 0),
        0.001: 1,
        0.005: 1,
        5: 1,
        1800: 1,
        "more": 1,
    }
    assert found.sum == 0.001 + 0.0011 + 5.0 + 1800 + 1801


def test_no_series_writes_into_another():
    counters = ProcessCounters(["a", "b"])

    counters.handled("a", 10_000)
    counters.handled("b", 0.0001)
    counters.claims.observe(100)
    counters.settles.observe(0.0001)
    counters.add_lost(3)
    counters.add_repaired(4)

    seen = add_up([counters])
    assert (seen.lost, seen.repaired) == (3, 4)
    assert seen.claims.hits == (*(0 for _ in TRANSACTION), 1)
    assert seen.settles.hits == (1, *(0 for _ in TRANSACTION))
    assert seen.handlers["a"].hits == (*(0 for _ in HANDLER), 1)
    assert seen.handlers["b"].hits == (1, *(0 for _ in HANDLER))
    assert set(seen.handlers) == {"a", "b"}


def test_a_name_that_was_not_known_at_the_start_is_counted_with_the_others():
    counters = ProcessCounters(["a"])

    counters.handled("b", 1)
    counters.handled("c", 2)

    assert add_up([counters]).handlers[OTHER].sum == 3


def test_boards_are_added_up():
    places = [ProcessCounters(["a"]) for _ in range(3)]

    for number, counters in enumerate(places, 1):
        counters.handled("a", number)
        counters.claims.observe(number)
        counters.add_lost(number)

    seen = add_up(places)
    assert (sum(seen.handlers["a"].hits), seen.handlers["a"].sum) == (3, 6)
    assert (sum(seen.claims.hits), seen.claims.sum) == (3, 6)
    assert seen.lost == 6


@pytest.mark.process
def test_what_a_killed_process_counted_stays_and_the_next_one_goes_on():
    counters = ProcessCounters(["a"])

    for _ in range(2):
        pid = os.fork()
        if not pid:
            counters.handled("a", 1)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)

    assert add_up([counters]).handlers["a"].sum == 2
