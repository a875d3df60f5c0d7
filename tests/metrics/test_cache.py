"""The tables are read now and then, and no scrape waits for them for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import OperationalError

from deadletter.metrics import cache
from deadletter.metrics.cache import CachedQuery, TableReader
from tests.patience import PATIENCE
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_serves_for_a_while():
    time, asked = Time(), []
    rested = CachedQuery(lambda: asked.append(1) or len(asked), fresh=5, time=time)

    first, _ = rested.get()
    time.now += 4.9
    second, _ = rested.get()
    time.now += 0.1
    third, at = rested.get()

    assert (first, second, third, at) == (1, 1, 2, 105.0)


def test_an_answer_that_took_long_serves_twenty_times_as_long():
    time, asked = Time(), []

    def ask() -> int:
        asked.append(1)
        time.now += 2
        return len(asked)

    rested = CachedQuery(ask, fresh=5, time=time)
    rested.get()
    time.now += 39.9
    before, at = rested.get()
    time.now += 0.1
    after, _ = rested.get()

    assert (before, at, after) == (1, 100.0, 2)


def test_a_question_that_failed_is_asked_again():
    answers: Iterator[int] = iter([1])
    rested = CachedQuery(lambda: 1 // 0 if next(answers, 0) else 7)

    with pytest.raises(ZeroDivisionError):
        rested.get()

    assert rested.get()[0] == 7


def test_a_database_that_refuses_is_said_to_be_away_once_and_comes_back(monkeypatch, caplog):
    rows = TableReader("default", fresh=3600)
    assert rows.latest() is not None

    def refuse(using: str) -> None:
        raise OperationalError("connection refused")

    with monkeypatch.context() as patch:
        # Though its answers would serve for an hour.
        patch.setattr(cache.clock, "now", refuse)
        assert [rows.latest(), rows.latest()] == [None, None]

    assert rows.latest() is not None
    assert caplog.text.count("cannot be read for metrics: connection refused") == 1


def test_a_database_that_hangs_keeps_nobody_and_one_thread(monkeypatch):
    hanging = threading.Event()
    rows = TableReader("default", fresh=0, patience=0.05)
    fine = cache.read_depths

    def hang(using: str) -> object:
        hanging.wait(PATIENCE)
        return fine(using)

    monkeypatch.setattr(cache, "read_depths", hang)
    before = threading.active_count()
    found = [rows.latest() for _ in range(5)]
    threads = threading.active_count() - before
    hanging.set()

    assert found == [None] * 5
    assert threads == 1
    rows._patience = PATIENCE
    wait_until(lambda: rows.latest() is not None)


def test_the_reading_before_serves_while_the_next_one_takes_long(monkeypatch):
    monkeypatch.setattr(cache, "REST", 0.0)
    hanging = threading.Event()
    rows = TableReader("default", fresh=0, patience=PATIENCE)
    first = wait_until(rows.latest)
    rows._patience = 0.05
    fine = cache.read_depths
    monkeypatch.setattr(cache, "read_depths", lambda using: hanging.wait(PATIENCE) and fine(using))

    assert rows.latest() is first
    monkeypatch.setattr(cache, "STALE", 0.0)
    assert rows.latest() is None

    hanging.set()
    rows._patience = PATIENCE
    wait_until(rows.latest)
