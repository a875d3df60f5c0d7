"""The table a process shares with its supervisor, and who may decide about a message."""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

from deadletter.worker.crash_ledger import Entry, Ledger, Stage
from deadletter.worker.in_flight import Holding, Holdings
from tests.patience import PATIENCE

TOKEN = "0123456789abcdef"


class Message:
    """As much of a claimed message as a holding looks at."""

    def __init__(self, id: int, token: str = TOKEN) -> None:
        self.id = id
        self.token = token
        self.lease = timedelta(seconds=60)
        self.status = 1


def hold(holdings: Holdings, id: int, token: str = TOKEN) -> Holding:
    message: Any = Message(id, token)
    return holdings.add(message, since=0.0, handler=None)


def test_a_parent_reads_what_its_child_held_and_how_far_it_got():
    ledger = Ledger(slots=8)
    if not (pid := os.fork()):
        slots = [ledger.hold(id, TOKEN) for id in (1, 2**62, 3, 4, 5)]
        stages = [Stage.WAITING, Stage.RUNNING, Stage.DONE, Stage.FAILED]
        for slot, stage in zip(slots, stages, strict=False):
            ledger.mark(slot, stage)
        ledger.drop(slots[4])
        ledger.announce("ff" * 8)
        os._exit(0)
    os.waitpid(pid, 0)

    assert sorted(ledger.entries(), key=lambda entry: entry.stage) == [
        Entry(1, TOKEN, Stage.WAITING),
        Entry(2**62, TOKEN, Stage.RUNNING),
        Entry(3, TOKEN, Stage.DONE),
        Entry(4, TOKEN, Stage.FAILED),
    ]
    assert ledger.announced == ["ff" * 8]
    ledger.clear()
    assert (ledger.entries(), ledger.announced, ledger.room) == ([], [], 8)


def test_slots_are_used_again():
    ledger = Ledger(slots=2)
    for id in range(100):
        slot = ledger.hold(id, TOKEN)
        assert ledger.room == 1
        ledger.drop(slot)

    assert ledger.room == 2


def test_only_one_of_many_starts_a_message_and_only_one_decides_about_it():
    holdings = Holdings(Ledger())
    winners: Counter[str] = Counter()
    for id in range(200):
        holding = hold(holdings, id)
        barrier = threading.Barrier(4)

        def race(
            what: str, holding: Holding = holding, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait(PATIENCE)
            if getattr(holding, what)():
                winners[what] += 1

        threads = [
            threading.Thread(target=race, args=(what,))
            for what in ("take", "take", "decide", "decide")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)

    assert winners == {"take": 200, "decide": 200}


def test_a_newer_holding_of_a_message_takes_the_place_of_the_old_one():
    holdings = Holdings(Ledger(slots=4))
    old = hold(holdings, 1)
    new = hold(holdings, 1, "f" * 16)

    assert holdings.get(1) is new
    assert len(holdings) == 1
    # The old one keeps its slot until its handler is back: another would be marked in its place.
    assert holdings.ledger.room == 2
    assert not holdings.dismiss(new)
    assert holdings.dismiss(old)
    assert holdings.ledger.room == 3
    holdings.remove(1)
    assert (len(holdings), holdings.ledger.room) == (0, 4)


def test_what_waits_what_runs_and_what_is_decided_are_told_apart():
    now = [10.0]
    holdings = Holdings(Ledger(), clock=lambda: now[0])
    waiting, running, done = (hold(holdings, id) for id in (1, 2, 3))
    for holding in (running, done):
        assert holding.take()
        holdings.start(holding)
    assert done.decide()

    assert holdings.waiting() == [waiting]
    assert holdings.running() == [running]
    assert running.deadline is None
    assert waiting.until == 60.0
