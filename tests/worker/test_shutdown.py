"""Signals come when they like, also while one is being handled."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from deadletter.worker.shutdown import AT_ONCE, Shutdown

SIGNALS = (signal.SIGTERM, signal.SIGINT, AT_ONCE)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Worker:
    """Is sent further signals while it is told to stop."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.signals = list(signals)
        self.told: list[bool] = []
        self.is_inside = False

    def stop(self, *, at_once: bool) -> None:
        # The lock of an event, for example, cannot be taken twice.
        assert not self.is_inside
        self.is_inside = True
        if self.signals:
            signal.raise_signal(self.signals.pop(0))
        self.told.append(at_once)
        self.is_inside = False


def test_the_second_signal_says_at_once_also_when_it_comes_during_the_first():
    worker = Worker(signal.SIGTERM)
    Shutdown().connect(worker.stop)

    signal.raise_signal(signal.SIGINT)

    assert worker.told == [False, True]


def test_a_child_that_gets_its_own_and_the_supervisors_signal_is_told_once():
    worker = Worker(signal.SIGTERM)
    Shutdown(supervised=True).connect(worker.stop)

    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert worker.told == [False]

    signal.raise_signal(AT_ONCE)
    assert worker.told == [False, True]


def test_a_signal_that_came_before_there_was_anything_to_stop_counts():
    shutdown = Shutdown()
    signal.raise_signal(signal.SIGTERM)
    worker = Worker(signal.SIGTERM)

    shutdown.connect(worker.stop)

    assert worker.told == [False, True]
