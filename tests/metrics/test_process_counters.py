"""Counters that several processes write and one reads."""

from __future__ import annotations

import os
import signal

from deadletter.metrics.process_counters import HANDLER, OTHER, TRANSACTION, Board, add_up


def test_a_duration_falls_into_the_bucket_that_ends_at_it_or_above():
    board = Board(["mail"])

    for seconds in (0.001, 0.0011, 5.0, 1800, 1801):
        board.handled("mail", seconds)

    found = board.handlers["mail"].read()
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
    board = Board(["a", "b"])

    board.handled("a", 10_000)
    board.handled("b", 0.0001)
    board.claims.observe(100)
    board.settles.observe(0.0001)
    board.add_lost(3)
    board.add_repaired(4)

    seen = add_up([board])
    assert (seen.lost, seen.repaired) == (3, 4)
    assert seen.claims.hits == (*(0 for _ in TRANSACTION), 1)
    assert seen.settles.hits == (1, *(0 for _ in TRANSACTION))
    assert seen.handlers["a"].hits == (*(0 for _ in HANDLER), 1)
    assert seen.handlers["b"].hits == (1, *(0 for _ in HANDLER))
    assert set(seen.handlers) == {"a", "b"}


def test_a_name_that_was_not_known_at_the_start_is_counted_with_the_others():
    board = Board(["a"])

    board.handled("b", 1)
    board.handled("c", 2)

    assert add_up([board]).handlers[OTHER].sum == 3


def test_boards_are_added_up():
    boards = [Board(["a"]) for _ in range(3)]

    for number, board in enumerate(boards, 1):
        board.handled("a", number)
        board.claims.observe(number)
        board.add_lost(number)

    seen = add_up(boards)
    assert (sum(seen.handlers["a"].hits), seen.handlers["a"].sum) == (3, 6)
    assert (sum(seen.claims.hits), seen.claims.sum) == (3, 6)
    assert seen.lost == 6


def test_what_a_killed_process_counted_stays_and_the_next_one_goes_on():
    board = Board(["a"])

    for _ in range(2):
        pid = os.fork()
        if not pid:
            board.handled("a", 1)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)

    assert add_up([board]).handlers["a"].sum == 2
