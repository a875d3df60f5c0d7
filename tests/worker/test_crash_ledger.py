"""The table a process shares with its supervisor, and the race to decide about a message."""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from deadletter.worker.crash_ledger import CrashLedger, LedgerEntry, SlotState
from deadletter.worker.in_flight import InFlight, InFlightMessage
from tests.patience import PATIENCE

TOKEN = "0123456789abcdef"


class Message:
    """As much of a claimed message as an in-flight message uses."""

    def __init__(self, id: int, token: str = TOKEN) -> None:
        self.id = id
        self.token = token
        self.lease = timedelta(seconds=60)
        self.status = 1


def hold(in_flight: InFlight, id: int, token: str = TOKEN) -> InFlightMessage:
    message: Any = Message(id, token)
    return in_flight.add(message, since=0.0, handler=None)


@pytest.mark.process
def test_a_parent_reads_what_its_child_held_and_how_far_it_got():
    ledger = CrashLedger(slots=8)
    if not (pid := os.fork()):
        slots = [ledger.hold(id, TOKEN) for id in (1, 2**62, 3, 4, 5)]
        stages = [SlotState.WAITING, SlotState.RUNNING, SlotState.DONE, SlotState.FAILED]
        for slot, stage in zip(slots, stages, strict=False):
            ledger.mark(slot, stage)
        ledger.drop(slots[4])
        ledger.announce("ff" * 8)
        os._exit(0)
    os.waitpid(pid, 0)

    assert sorted(ledger.entries(), key=lambda entry: entry.state) == [
        LedgerEntry(1, TOKEN, SlotState.WAITING),
        LedgerEntry(2**62, TOKEN, SlotState.RUNNING),
        LedgerEntry(3, TOKEN, SlotState.DONE),
        LedgerEntry(4, TOKEN, SlotState.FAILED),
    ]
    assert ledger.announced == ["ff" * 8]
    ledger.clear()
    assert (ledger.entries(), ledger.announced, ledger.room) == ([], [], 8)


def test_slots_are_used_again():
    ledger = CrashLedger(slots=2)
    for id in range(100):
        slot = ledger.hold(id, TOKEN)
        assert ledger.room == 1
        ledger.drop(slot)

    assert ledger.room == 2


def test_only_one_of_many_starts_a_message_and_only_one_decides_about_it():
    in_flight = InFlight(CrashLedger())
    winners: Counter[str] = Counter()
    for id in range(200):
        item = hold(in_flight, id)
        barrier = threading.Barrier(4)

        def race(
            what: str, item: InFlightMessage = item, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait(PATIENCE)
            if getattr(item, what)():
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


def test_a_newer_item_of_a_message_takes_the_place_of_the_old_one():
    in_flight = InFlight(CrashLedger(slots=4))
    old = hold(in_flight, 1)
    new = hold(in_flight, 1, "f" * 16)

    assert in_flight.get(1) is new
    assert len(in_flight) == 1
    # The old one keeps its slot until its handler is back: another would be marked in its place.
    assert in_flight.ledger.room == 2
    assert not in_flight.dismiss(new)
    assert in_flight.dismiss(old)
    assert in_flight.ledger.room == 3
    in_flight.remove(1)
    assert (len(in_flight), in_flight.ledger.room) == (0, 4)


def test_what_waits_what_runs_and_what_is_decided_are_told_apart():
    now = [10.0]
    in_flight = InFlight(CrashLedger(), clock=lambda: now[0])
    waiting, running, done = (hold(in_flight, id) for id in (1, 2, 3))
    for item in (running, done):
        assert item.take()
        in_flight.start(item)
    assert done.decide()

    assert in_flight.waiting() == [waiting]
    assert in_flight.running() == [running]
    assert running.deadline is None
    assert waiting.until == 60.0
