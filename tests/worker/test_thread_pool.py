"""How many threads take part: enough that nothing waits, and no more than the work warrants."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deadletter.worker import thread_pool
from deadletter.worker.thread_pool import QUICK, STREAK, PoolThread, ThreadPool
from tests.patience import PATIENCE
from tests.processes import wait_until


@pytest.fixture
def pool() -> Iterator[Callable[..., ThreadPool]]:
    """Make a pool whose runs are functions; those that return False end their thread."""
    made: list[ThreadPool] = []

    def make(size: int) -> ThreadPool:
        def work(run: Any, thread: PoolThread) -> bool:
            thread.began(time.monotonic())
            return run() is not False

        made.append(ThreadPool(size=size, work=work))
        return made[0]

    yield make
    made[0].stop()


@contextmanager
def new_threads() -> Iterator[list[threading.Thread]]:
    """Fill the list with the threads that a block starts, when it ends."""
    before = set(threading.enumerate())
    started: list[threading.Thread] = []
    yield started
    started += set(threading.enumerate()) - before


def test_every_run_is_taken_once_and_in_order_by_a_single_thread(pool):
    done: list[int] = []
    alone = pool(1)
    for start in range(0, 1000, 100):
        alone.put([lambda n=n: done.append(n) for n in range(start, start + 100)])

    wait_until(lambda: len(done) == 1000)

    assert done == list(range(1000))


def test_as_many_runs_as_there_are_threads_go_on_at_a_time(pool):
    barrier = threading.Barrier(8)
    passed: list[int] = []
    # The barrier opens when eight of them wait.
    pool(8).put([lambda: passed.append(barrier.wait(PATIENCE)) for _ in range(24)])

    wait_until(lambda: len(passed) == 24)

    assert not barrier.broken


def test_a_run_that_waits_does_not_keep_the_others_waiting(pool):
    gate = threading.Event()
    done: list[int] = []
    two = pool(2)
    quick = [lambda n=n: done.append(n) for n in range(200)]
    two.put([*quick[:100], lambda: gate.wait(PATIENCE), *quick[100:]])

    wait_until(lambda: len(done) == 200)
    two.put([lambda: done.append(200)])
    wait_until(lambda: len(done) == 201)

    assert not gate.is_set()
    gate.set()


def test_quick_runs_are_left_to_one_thread_mostly(pool):
    by_thread: Counter[int] = Counter()
    many = pool(8)
    for _ in range(20):
        many.put([lambda: by_thread.update([threading.get_ident()]) for _ in range(1000)])

    wait_until(lambda: by_thread.total() == 20_000)

    # A moment without the processor looks like a run that waits, so another may help for a while.
    assert by_thread.most_common(1)[0][1] > 5_000


def test_a_thread_that_was_replaced_ends_and_its_place_can_be_filled(pool):
    with new_threads() as started:
        one = pool(1)
    done: list[int] = []

    one.put([lambda: False, lambda: done.append(1)])
    wait_until(lambda: not started[0].is_alive())
    assert done == []
    one.add_thread()
    wait_until(lambda: done == [1])


def test_all_threads_end_with_the_pool(pool):
    done: list[int] = []
    with new_threads() as started:
        some = pool(4)
    some.put([lambda: done.append(1) for _ in range(100)])

    wait_until(lambda: len(done) == 100)
    some.stop()

    wait_until(lambda: not any(thread.is_alive() for thread in started))
    assert len(started) == 4


def at_work(pool: ThreadPool, *, last: float, streak: int = STREAK) -> PoolThread:
    thread = PoolThread(pool)
    thread.last, thread.streak = last, streak
    pool._active.add(thread)
    return thread


@pytest.mark.parametrize(
    ("other_last", "other_streak", "superfluous"),
    [
        (1.0, STREAK, True),
        (0.9, STREAK, False),
        (1.0, STREAK - 1, False),
    ],
    ids=["went on", "stood still as well", "is slow"],
)
def test_a_quick_thread_leaves_when_another_one_went_on_while_it_waited(
    pool, other_last, other_streak, superfluous
):
    two = pool(0)
    mine = at_work(two, last=0.95)
    at_work(two, last=other_last, streak=other_streak)

    mine.began(1.0 + thread_pool.PATIENCE / 2)

    assert mine.is_superfluous is superfluous


def test_of_two_quick_threads_only_one_leaves(pool):
    two = pool(0)
    one = at_work(two, last=0.95)
    other = at_work(two, last=1.0)

    one.began(1.001)
    other.last = 0.999
    other.began(1.0015)

    assert (one.is_superfluous, other.is_superfluous) == (True, False)


def test_a_slow_thread_never_leaves(pool):
    two = pool(0)
    mine = at_work(two, last=0.95, streak=STREAK - 1)
    at_work(two, last=1.0)

    mine.began(1.001)

    assert not mine.is_superfluous


def test_now_and_then_a_slow_message_does_not_make_a_thread_slow(pool):
    alone = pool(0)
    thread = at_work(alone, last=0.0, streak=0)
    now = 0.0
    for n in range(400):
        now += QUICK * 10 if n % 40 == 39 else QUICK / 2
        thread.began(now)
    assert thread.is_quick

    for _ in range(10):
        now += QUICK * 2
        thread.began(now)
    assert not thread.is_quick
