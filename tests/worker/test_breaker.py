"""The circuit breaker alone, on a clock of its own."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from deadletter.backoff import BreakerPolicy
from deadletter.models import Breaker
from deadletter.worker.breaker import PROBE_WAIT, Breakers
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
