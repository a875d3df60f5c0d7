"""The circuit breaker alone, on a clock of its own."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from deadletter.backoff import HOLD_WAIT, BreakerPolicy
from deadletter.models import Breaker
from deadletter.operations import hold_breaker, reset_breaker
from deadletter.worker.breaker import HOLDS, PROBE_WAIT, Breakers
from deadletter.worker.registry import Handler, Registry

pytestmark = pytest.mark.django_db

POLICY = BreakerPolicy(failures=3, window=10, cooldown=5)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def job() -> Handler:
    return Handler(name="job", function=print, breaker=POLICY)


@pytest.fixture
def other() -> Handler:
    return Handler(name="other", function=print, breaker=POLICY)


@pytest.fixture
def make(time, job, other):
    registry = Registry()
    registry.add(job)
    registry.add(other)

    def breakers(worker: str = "w") -> Breakers:
        return Breakers(worker=worker, using="default", handlers=registry, time=time)

    return breakers


def trip(breakers: Breakers, handler: Handler) -> None:
    for _ in range(3):
        breakers.report(handler, failed=True, error="down")


def test_it_opens_at_the_third_failure_in_a_row(make, job):
    breakers = make()

    answers = [breakers.report(job, failed=True, error="down") for _ in range(3)]

    assert answers == [None, None, 5]
    assert breakers.hold(job) == 5


def test_a_success_in_between_starts_the_count_anew(make, job):
    breakers = make()
    breakers.report(job, failed=True)
    breakers.report(job, failed=True)
    breakers.report(job, failed=False)
    breakers.report(job, failed=True)
    breakers.report(job, failed=True)

    assert breakers.hold(job) is None


def test_failures_spread_wider_than_the_window_do_not_open_it(make, job, time):
    breakers = make()
    for _ in range(6):
        breakers.report(job, failed=True)
        time.now += 6

    assert breakers.hold(job) is None


def test_after_the_cooldown_one_probe_decides(make, job, time):
    breakers = make()
    trip(breakers, job)
    time.now += 5

    assert breakers.hold(job) is None
    assert breakers.hold(job) == PROBE_WAIT

    assert breakers.report(job, failed=True, error="still down") == 5
    assert breakers.hold(job) == 5
    time.now += 5
    assert breakers.hold(job) is None
    breakers.report(job, failed=False)
    assert breakers.hold(job) is None
    assert breakers.hold(job) is None
    assert breakers.open_names() == []


def test_a_run_of_one_name_is_one_probe(make, job, time):
    breakers = make()
    trip(breakers, job)
    time.now += 5

    assert breakers.hold(job, job, job) is None
    assert breakers.hold(job) == PROBE_WAIT


def test_a_run_that_must_wait_for_one_of_its_names_takes_no_probe_of_another(
    make, job, other, time
):
    breakers = make()
    trip(breakers, job)
    time.now += 5
    trip(breakers, other)

    assert breakers.hold(job, other) == 5
    # The probe of the first name is still to be had.
    assert breakers.hold(job) is None


def test_a_probe_that_was_given_back_leaves_room_for_the_next(make, job, time):
    breakers = make()
    trip(breakers, job)
    time.now += 5
    assert breakers.hold(job) is None

    breakers.cancel_probe(job)

    assert breakers.hold(job) is None


def test_what_was_running_when_it_opened_changes_nothing(make, job):
    breakers = make()
    trip(breakers, job)

    assert breakers.report(job, failed=True) is None
    breakers.report(job, failed=False)

    assert breakers.hold(job) == 5


def test_another_process_reads_that_it_is_open_and_that_it_is_closed_again(make, job, time):
    first, second = make("first"), make("second")
    trip(first, job)
    first.exchange()
    second.exchange()

    row = Breaker.objects.get()
    assert (row.name, row.failures, row.error, row.opened_by) == ("job", 3, "down", "first")
    assert 4 < second.hold(job) <= 5

    time.now += 5
    assert first.hold(job) is None
    first.report(job, failed=False)
    first.exchange()
    second.exchange()
    assert not Breaker.objects.exists()
    assert second.hold(job) is None


def test_a_failed_probe_elsewhere_is_a_reason_not_to_try_here(make, job, time):
    first, second = make("first"), make("second")
    trip(first, job)
    first.exchange()
    second.exchange()
    time.now += 5
    assert first.hold(job) is None
    first.report(job, failed=True, error="still down")
    first.exchange()

    second.exchange()

    assert 4 < second.hold(job) <= 5


def test_what_could_not_be_written_is_written_later(make, job, monkeypatch):
    breakers = make()
    trip(breakers, job)

    def away(name: str, error: str) -> None:
        raise OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr(breakers, "_store", away)
        with pytest.raises(OperationalError):
            breakers.exchange()
    assert not Breaker.objects.exists()

    breakers.exchange()

    assert Breaker.objects.get().name == "job"
    assert breakers.hold(job) == 5


def test_a_name_without_a_breaker_is_never_held(make):
    plain = Handler(name="plain", function=print)
    breakers = make()

    for _ in range(50):
        assert breakers.report(plain, failed=True) is None

    assert breakers.hold(plain, None) is None


def test_a_person_holds_a_name_of_a_handler_with_and_without_a_breaker(make, job, time):
    registry = Registry()
    plain = Handler(name="plain", function=print, breaker=None)
    registry.add(plain)
    lone = Breakers(worker="lone", using="default", handlers=registry, time=time)
    breakers = make()
    for each in (lone, breakers):
        each.exchange()
    hold_breaker("plain", by="ann", why="the provider asked")
    hold_breaker("job", by="ann")
    time.now += HOLDS

    for each in (lone, breakers):
        each.exchange()

    assert lone.hold(plain) == PROBE_WAIT
    assert breakers.hold(job) == PROBE_WAIT
    assert sorted(lone.open_names()) == sorted(breakers.open_names()) == ["job", "plain"]


def test_a_hold_is_obeyed_by_a_worker_that_starts_later(make, job):
    hold_breaker("job", by="ann")

    started = make("started later")
    started.exchange()

    assert not started.are_closed
    assert started.hold(job) == PROBE_WAIT


def test_a_reset_frees_a_name_that_a_person_holds_and_one_that_failed(make, job, other, time):
    first, second = make("first"), make("second")
    trip(first, job)
    hold_breaker("other", by="ann")
    for each in (first, second):
        each.exchange()
    assert [each.hold(job) for each in (first, second)] == [5, pytest.approx(5, abs=0.5)]

    reset_breaker("job", by="ann")
    reset_breaker("other", by="ann")
    for each in (first, second):
        each.exchange()

    assert [each.hold(job, other) for each in (first, second)] == [None, None]
    assert Breaker.objects.count() == 0


def test_messages_are_put_aside_for_longer_the_longer_the_hold_lasts(make, job, time):
    hold_breaker("job", by="ann")
    breakers = make()
    breakers.exchange()

    waits = []
    for passed in (0, 10, 30, 600):
        time.now = 100.0 + passed
        waits.append(round(breakers.hold(job)))

    assert waits == [1, 5, 15, HOLD_WAIT]


def test_a_long_cooldown_is_looked_at_again_because_it_may_be_reset(time):
    slow = Handler(name="slow", function=print, breaker=BreakerPolicy(failures=1, cooldown=3_600))
    registry = Registry()
    registry.add(slow)
    breakers = Breakers(worker="w", using="default", handlers=registry, time=time)

    breakers.report(slow, failed=True)

    assert breakers.hold(slow) == HOLD_WAIT


def test_a_hold_for_a_time_ends_by_itself_and_its_row_is_deleted(make, job, other, time, clock):
    hold_breaker("job", duration="10m", by="ann")
    hold_breaker("other", duration="1h", by="ann")
    breakers = make()
    breakers.exchange()
    time.now += 601
    clock.advance(601)

    assert breakers.hold(job) is None
    breakers.exchange()

    assert list(Breaker.objects.values_list("name", flat=True)) == ["other"]
    assert breakers.open_names() == ["other"]
    assert breakers.hold(other) == HOLD_WAIT


def test_a_worker_neither_changes_nor_deletes_the_row_of_a_person(make, job, other, time):
    breakers = make()
    trip(breakers, job)
    trip(breakers, other)
    breakers.exchange()
    for name in ("job", "other"):
        hold_breaker(name, duration=3_600, by="ann", why="wait for the provider")
    before = list(Breaker.objects.order_by("name").values())

    # One is probed and succeeds, one fails again: the worker has not read the holds yet.
    time.now += 5
    breakers.hold(job)
    breakers.report(job, failed=False)
    breakers.hold(other)
    breakers.report(other, failed=True, error="down again")
    breakers.exchange()

    assert list(Breaker.objects.order_by("name").values()) == before
    assert [row["failures"] for row in before] == [3, 3]
    assert breakers.hold(job) == PROBE_WAIT
    assert breakers.hold(other) == PROBE_WAIT


def test_a_flow_with_the_name_of_a_held_handler_is_not_held(make, job):
    flow = Handler(name="job", function=print, breaker=None, versions={"1": print})
    hold_breaker("job", by="ann")
    breakers = make()
    breakers.exchange()

    assert breakers.hold(flow) is None
    assert breakers.hold(job) is not None


def test_workers_without_breakers_read_the_table_every_other_second_only(
    time, django_assert_num_queries
):
    registry = Registry()
    registry.add(Handler(name="plain", function=print, breaker=None))
    breakers = Breakers(worker="w", using="default", handlers=registry, time=time)

    with django_assert_num_queries(2):
        for _ in range(4):  # four rounds of a housekeeper, a second apart
            breakers.exchange()
            time.now += 1
